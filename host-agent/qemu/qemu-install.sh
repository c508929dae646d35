#!/usr/bin/env bash
# Puts onto this host what guests with GPUs need: QEMU, the host agent, the guest agent, kernel and base root file system.
# Installs what is missing and nothing else.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: qemu-install.sh (it takes no arguments)"
as_root "$@"

install_missing '
qemu-system-x86_64|qemu-system-x86|qemu-kvm
qemu-img|qemu-utils|qemu-img
lspci|pciutils|pciutils
'
if [ ! -e /dev/kvm ]; then
  log "warning: no /dev/kvm: guests will run on an emulated CPU; enable virtualisation in the firmware"
fi
[ -n "$(ls -A "$sysfs/kernel/iommu_groups" 2>/dev/null)" ] ||
  log "warning: no IOMMU groups, so guests cannot be given GPUs: enable the IOMMU in the firmware and boot with intel_iommu=on or amd_iommu=on"

"$here/qemu-bake-rootfs.sh"
# Until an image with the NVIDIA driver is baked, guests start from the plain one.
if [ ! -e "$cuda_image" ] && [ -z "$(setting "$state/.env" BASE_ROOTFS)" ]; then
  { [ ! -f "$state/.env" ] || cat "$state/.env"; printf 'BASE_ROOTFS=%s/rootfs-fused.ext4\n' "$QEMU_DIR"; } | new_file "$state/.env"
  log "guests start from the plain image; for CUDA: ./qemu-bake-cuda-rootfs.sh <driver branch>"
fi
log "done; next: ./qemu-vfio-bind.sh or ./qemu-mig-setup.sh for the GPUs, then ./qemu-agent.sh install-service"
