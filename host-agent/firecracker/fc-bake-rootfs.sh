#!/usr/bin/env bash
# Builds what guests boot: kernel, initramfs with the guest agent in it, base root file system. Parts that are current
# are left alone; a part is built under another name and moved, so guests that start meanwhile see the old one.
#
#   fc-bake-rootfs.sh [--refresh] [VARIANT...]
#
# --refresh takes the current versions of all packages. A VARIANT is a root file system with more in it, which
# environments name as their image: services (podman and compose), node.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
read_bake_options "$@"
as_root "$@"
bake_image "$FC_AGENT_BIN" "${bake_options[@]}"
