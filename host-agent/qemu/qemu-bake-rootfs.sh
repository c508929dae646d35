#!/usr/bin/env bash
# Builds what guests boot: kernel, initramfs with the guest agent in it, base root file system. Parts that are current
# are left alone; a part is built under another name and moved, so guests that start meanwhile see the old one. The image
# with CUDA, if there is one, is made again when its driver is of another kernel than the one that guests boot now.
#
#   qemu-bake-rootfs.sh [--refresh]    --refresh takes the current versions of all packages, in both images
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
case "$#:${1:-}" in 0: | 1:--refresh) ;; *) die "usage: qemu-bake-rootfs.sh [--refresh]" ;; esac
as_root "$@"
bake_image "$QEMU_AGENT_BIN" "$@"
[ -f "$cuda_image" ] || exit 0
if [ ! -f "$cuda_image.driver" ]; then
  log "warning: nothing says which driver is in $cuda_image; if guests miss theirs: ./qemu-bake-cuda-rootfs.sh <driver branch>"
  exit 0
fi
read -r driver made_for <"$cuda_image.driver"
if [ "$made_for" != "$(guest_kernel)" ] || [ $# -gt 0 ]; then "$here/qemu-bake-cuda-rootfs.sh" "$driver"; fi
