#!/usr/bin/env bash
# `make upgrade-test`: from an earlier release to this tree, part by part, in every order, while guests run; and two
# orchestrators of both on one database. The earlier release is built from its commit, once, into target/upgrade.
#   ops/dev/upgrade-test.sh [<tag or commit>]   by default the newest tag before this commit, else the commit before it
#   FUSE_UPGRADE_FROM=<dir> ops/dev/upgrade-test.sh   programs and image/ that are built already
set -euo pipefail
cd "$(dirname "$0")/../.."

# The programs and the image of a commit, in target/upgrade/<commit>.
build() {
  local from=$1 commit dir tree current
  commit=$(git rev-parse --short=12 "$from^{commit}")
  dir=$PWD/target/upgrade/$commit tree=$PWD/target/upgrade/$commit/tree
  [ ! -e "$dir/whole" ] || { printf '%s\n' "$dir"; return; }
  printf 'upgrade-test: building %s (%s)\n' "$from" "$commit" >&2
  rm -rf "$dir"
  mkdir -p "$tree" "$dir/image"
  git archive "$commit" | tar -x -C "$tree"
  # Releases share the dependencies that have not changed in between.
  (cd "$tree" && cargo build --locked --workspace --bins --target-dir ../../programs) >&2
  cp target/upgrade/programs/debug/{orchestrator,fc-agent,fc-emulator,fuse} "$dir/"
  # A base file system takes longest to make, and is taken over when the earlier release finds it good.
  current=${FUSE_IMAGE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fuse/image}
  [ ! -d "$current" ] || cp -a --sparse=always "$current/." "$dir/image/"
  "$dir/fc-agent" image build --out "$dir/image" --fused "$(cd "$tree" && ops/dev/fused.sh)" >&2
  rm -rf "$tree"
  touch "$dir/whole"
  printf '%s\n' "$dir"
}

if [ -z "${FUSE_UPGRADE_FROM:-}" ]; then
  from=${1:-$(git describe --tags --match 'v[0-9]*' --abbrev=0 HEAD^ 2>/dev/null || git rev-parse HEAD^)}
  FUSE_UPGRADE_FROM=$(build "$from")
fi
export FUSE_UPGRADE_FROM
# With the features of `make test`, so that nothing is built anew for this.
cargo build --locked --workspace --bins --tests
ops/dev/image.sh target/debug/fc-agent
cargo test --locked --workspace --test it -- upgrade:: --test-threads=1
