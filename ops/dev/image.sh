#!/usr/bin/env bash
# Builds what a guest boots into the user's cache, unless it is there and nothing changed.
#
#   ops/dev/image.sh [fc-agent [VARIANT...]]    variants are root file systems with more in them: services, node
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${FUSE_IMAGE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fuse/image}
agent=${1:-target/release/fc-agent}
variants=()
for variant in "${@:2}"; do variants+=(--variant "$variant"); done
[ -x "$agent" ] || { cargo build --release --locked -p fuse-host-agent; agent=target/release/fc-agent; }
fused=$(ops/dev/fused.sh)
"$agent" image build --out "$dir" --fused "$fused" "${variants[@]}"
