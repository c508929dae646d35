#!/usr/bin/env bash
# Builds what a release is made of into dist/: archives, packages, installers, the list of what is in them, checksums.txt.
#   FUSE_VERSION=1.2.3 ops/dev/dist.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${FUSE_VERSION:-$(git describe --tags --match 'v[0-9]*' 2>/dev/null || true)}
version=${version#v}
export FUSE_VERSION=${version:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# Where the tree lies and who builds it must not show in the programs.
remap="--remap-path-prefix=$PWD=/fuse --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"

RUSTFLAGS=$remap cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp target/release/{orchestrator,fuse,fc-agent,qemu-agent,fc-emulator} "$(FUSED_RUSTFLAGS=$remap ops/dev/fused.sh)" "$work/"
ops/dev/pack.sh "$work" dist
