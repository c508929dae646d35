#!/usr/bin/env bash
# Builds the guest agent as one static binary and prints its path.
# Its own target directory, because the static C runtime is a flag for every crate it links.
set -euo pipefail
cd "$(dirname "$0")/../.."
arch=$(uname -m)
target=$arch-unknown-linux-gnu
flags=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$target")_RUSTFLAGS
env "$flags=-C target-feature=+crt-static ${FUSED_RUSTFLAGS:-}" \
  cargo build --locked --profile guest -p fuse-guest-agent --target "$target" --target-dir target/guest >&2
printf '%s\n' "$PWD/target/guest/$target/guest/fused"
