#!/usr/bin/env bash
# Builds what guests boot: kernel, initramfs with the guest agent in it, base root file system. Parts that are current
# are left alone; a part is built under another name and moved, so guests that start meanwhile see the old one.
#
#   fc-bake-rootfs.sh [--refresh]    --refresh takes the current versions of all packages
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
case "$#:${1:-}" in 0: | 1:--refresh) ;; *) die "usage: fc-bake-rootfs.sh [--refresh]" ;; esac
as_root "$@"
bake_image "$FC_AGENT_BIN" "$@"
