#!/usr/bin/env bash
# Makes the image that guests with GPUs start from: the plain one (qemu-install.sh) with NVIDIA's driver, built for the
# guests' kernel, and CUDA in it. Written under another name and moved, so guests that start meanwhile see the old one.
#
#   qemu-bake-cuda-rootfs.sh <driver branch>      for example 550; it must fit the GPUs, so there is no default
#
# QEMU_ROOTFS_SIZE (20G), CUDA_REPO (debian12 of NVIDIA's repositories), QEMU_BAKE_MOUNT and QEMU_BAKE_WORK say where.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
case "$#:${1:-}" in 1:[0-9][0-9][0-9]) ;; *) die "usage: qemu-bake-cuda-rootfs.sh <driver branch, e.g. 550>" ;; esac
as_root "$@"
driver=$1
mount=${QEMU_BAKE_MOUNT:-/tmp/qemubake}
bake=${QEMU_BAKE_WORK:-/tmp/qemubake-work}
repo=${CUDA_REPO:-debian12}
[[ $repo =~ ^[a-z0-9]+$ ]] || die "CUDA_REPO='$repo' is not the name of a repository like debian12"
check_paths "$mount" "$bake"
plain=$state/rootfs-fused.ext4
[ -f "$plain" ] || die "there is no $plain: run ./qemu-install.sh first"
kernel=$(guest_kernel)
[ -n "$kernel" ] || die "$state/image.json does not say which kernel guests boot"
for tool in qemu-img resize2fs e2fsck mount chroot curl; do
  command -v "$tool" >/dev/null 2>&1 || die "$tool is missing: run ./qemu-install.sh first"
done

undo() {
  local part
  for part in dev/pts dev proc sys ''; do
    if mountpoint -q "$mount/$part" 2>/dev/null; then umount "$mount/$part" || umount -l "$mount/$part"; fi
  done
  rm -rf "$bake"
}
trap undo EXIT
undo
mkdir -p "$mount" "$bake"
log "a copy of the plain image, ${QEMU_ROOTFS_SIZE:-20G} large"
cp --reflink=auto --sparse=always "$plain" "$bake/rootfs.ext4"
truncate -s "${QEMU_ROOTFS_SIZE:-20G}" "$bake/rootfs.ext4"
e2fsck -fy "$bake/rootfs.ext4" >/dev/null || [ $? -le 1 ] || die "the plain image is damaged: run ./qemu-install.sh again"
resize2fs "$bake/rootfs.ext4" >/dev/null
mount -o loop "$bake/rootfs.ext4" "$mount"
mount --bind /dev "$mount/dev"
mount --bind /dev/pts "$mount/dev/pts"
mount -t proc proc "$mount/proc"
mount -t sysfs sysfs "$mount/sys"
# The guest's own is made at boot.
resolv=$(readlink "$mount/etc/resolv.conf" || true)
rm -f "$mount/etc/resolv.conf"
cp /etc/resolv.conf "$mount/etc/resolv.conf"

log "driver $driver for kernel $kernel, and CUDA: this takes a while"
fetch "https://developer.download.nvidia.com/compute/cuda/repos/$repo/x86_64/cuda-keyring_1.1-1_all.deb" "$bake/cuda-keyring.deb"
install -m 0644 "$bake/cuda-keyring.deb" "$mount/tmp/cuda-keyring.deb"
chroot "$mount" /bin/sh -eu -s -- "$kernel" "$driver" <<'GUEST'
kernel=$1 driver=$2
export DEBIAN_FRONTEND=noninteractive
dpkg -i /tmp/cuda-keyring.deb
rm -f /tmp/cuda-keyring.deb
apt-get update
apt-get install -y --no-install-recommends build-essential dkms kmod "linux-headers-$kernel"
apt-get install -y --no-install-recommends "cuda-drivers-$driver" cuda-toolkit
dkms autoinstall -k "$kernel"
depmod "$kernel"
apt-get clean
rm -rf /var/lib/apt/lists/*
GUEST
[ -n "$(find "$mount/lib/modules/$kernel" -name 'nvidia.ko*' -print -quit 2>/dev/null)" ] ||
  die "no nvidia module was built for kernel $kernel; the image was left as it was"
[ -n "$(find "$mount/usr/lib" -name 'libcuda.so.1' -print -quit)" ] || log "warning: the image has no libcuda.so.1"
rm -f "$mount/etc/resolv.conf"
[ -z "$resolv" ] || ln -s "$resolv" "$mount/etc/resolv.conf"
for part in dev/pts dev proc sys ''; do umount "$mount/$part"; done
qemu-img convert -O qcow2 "$bake/rootfs.ext4" "$cuda_image.new"
mv -f "$cuda_image.new" "$cuda_image"
printf '%s %s\n' "$driver" "$kernel" | replace "$cuda_image.driver"
if [ "$(setting "$state/.env" BASE_ROOTFS)" = "$QEMU_DIR/rootfs-fused.ext4" ]; then
  grep -v '^BASE_ROOTFS=' "$state/.env" | new_file "$state/.env"
fi
log "made $QEMU_DIR/rootfs-cuda.qcow2; the agent uses it from its next start: systemctl restart qemu-agent"
