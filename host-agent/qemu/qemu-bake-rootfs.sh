#!/usr/bin/env bash
# Builds what guests boot: kernel, initramfs with the guest agent in it, base root file system. Parts that are current
# are left alone; a part is built under another name and moved, so guests that start meanwhile see the old one. The image
# with CUDA, if there is one, is made again when its driver is of another kernel than the one that guests boot now.
#
#   qemu-bake-rootfs.sh [--refresh] [VARIANT...]
#
# --refresh takes the current versions of all packages, in both images. A VARIANT is a root file system with more in it,
# which environments name as their image: services (podman and compose), node.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
read_bake_options "$@"
as_root "$@"
bake_image "$QEMU_AGENT_BIN" "${bake_options[@]}"
[ -f "$cuda_image" ] || exit 0
if [ ! -f "$cuda_image.driver" ]; then
  log "warning: nothing says which driver is in $cuda_image; if guests miss theirs: ./qemu-bake-cuda-rootfs.sh <driver branch>"
  exit 0
fi
read -r driver made_for <"$cuda_image.driver"
if [ "$made_for" != "$(guest_kernel)" ] || [[ " $* " == *" --refresh "* ]]; then "$here/qemu-bake-cuda-rootfs.sh" "$driver"; fi
