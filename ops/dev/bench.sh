#!/usr/bin/env bash
# Builds the release programs and measures them against their budgets. Arguments go to fuse-bench:
#   ops/dev/bench.sh --only store --json > bench.json
set -euo pipefail
cd "$(dirname "$0")/../.."
ops/dev/deps.sh test
cargo build --release --locked --workspace --bins >&2
ops/dev/image.sh target/release/fc-agent >&2
exec target/release/fuse-bench "$@"
