#!/usr/bin/env bash
# Installs the command line `fuse`, from a verified release, into a directory that needs no root where possible.
#
#   VERSION=v1.2.3            the release; default: the latest
#   FUSE_INSTALL_DIR=/path    default: /usr/local/bin if it is writable, else ~/.local/bin
set -euo pipefail

# >>> in a checkout
# What is read from "$ops" below, packing (ops/dev/pack.sh) puts in place; through a pipe there is no "$ops".
ops=$(dirname "${BASH_SOURCE[0]:-/dev/stdin}")
[ -f "$ops/lib/release.sh" ] ||
  { echo 'error: ops/lib/release.sh is missing: run ops/install-fuse.sh from a checkout, or take the install-fuse.sh of a release' >&2; exit 1; }
# <<< in a checkout
# shellcheck source=ops/lib/release.sh
. "$ops/lib/release.sh"

command -v curl >/dev/null 2>&1 || release_die "curl is not installed"
command -v tar >/dev/null 2>&1 || release_die "tar is not installed"
[ $# -eq 0 ] || release_die "it takes no arguments; its settings are environment variables"
case $(uname -s) in
  Linux | Darwin) system=$(uname -s) ;;
  *) release_die "there is no release for $(uname -s); build it with: cargo build --release -p fuse-cli" ;;
esac
asset=fuse-cli_${system}_$(release_arch).tar.gz

target=${FUSE_INSTALL_DIR:-}
if [ -z "$target" ]; then
  if [ -w /usr/local/bin ]; then target=/usr/local/bin; else target=$HOME/.local/bin; fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tag=${VERSION:-}
[ -n "$tag" ] || tag=$(latest_tag)
release_asset "$tag" "$asset" "$work"
unpack "$work/$asset" fuse "$work"
place "$work/fuse" "$target/fuse"

printf 'fuse %s installed in %s\n' "$tag" "$target"
case :$PATH: in
  *:"$target":*) ;;
  *) printf 'warning: %s is not on your PATH\n' "$target" >&2 ;;
esac
printf '\n  fuse connect http://<orchestrator>:8080 --token <its ORCH_AUTH_TOKEN> --master\n'
