#!/usr/bin/env bash
# Takes this host's NVIDIA GPUs from their driver, so that guests can be given them whole, and writes down which there are.
#
#   qemu-vfio-bind.sh [bind]          every GPU with all of its IOMMU group (what is done already stays as it is)
#   qemu-vfio-bind.sh --list          what bind would write down
#   qemu-vfio-bind.sh --unbind <pci>  gives a device back; nothing to do if it is not bound
#
# What is known of a GPU (UUID, model, memory) only its own driver can tell, so it is asked before anything is taken from
# it, and kept from an earlier run. Cards in MIG mode stay with their driver: they are given out in parts.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"

usage() { die "usage: qemu-vfio-bind.sh [bind | --list | --unbind <pci address>]"; }
devices=$sysfs/bus/pci/devices
declare -A facts mig_mode

# driver_of <slot>: the driver that has it, or nothing.
driver_of() { local link; link=$(readlink "$devices/$1/driver") || return 0; basename "$link"; }
group_of() { local link; link=$(readlink "$devices/$1/iommu_group") || return 1; basename "$link"; }
class_of() { cat "$devices/$1/class" 2>/dev/null || printf 0x000000; }

# gpus: the slots of NVIDIA's display functions.
gpus() {
  local device
  for device in "$devices"/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
    case $(class_of "${device##*/}") in 0x03*) printf '%s\n' "${device##*/}" ;; esac
  done
}

# members <group>: its functions without bridges, which stay with the host.
members() {
  local member
  for member in "$sysfs/kernel/iommu_groups/$1/devices"/*; do
    case $(class_of "${member##*/}") in 0x06*) ;; *) printf '%s\n' "${member##*/}" ;; esac
  done
}

# learn: what is known of each GPU, from the inventory of before and from the driver, whose word is newer.
learn() {
  local line slot found bus uuid model memory driver compute mode
  if [ -f "$vfio_inventory" ]; then
    while IFS= read -r line; do
      case $line in '#'* | *[![:print:]]*) continue ;; *'|'*) ;; *) continue ;; esac
      found=${line#*|}
      bus=$(sed -n 's/.*bus_id=\([^;]*\).*/\1/p' <<<"$found")
      slot=$(pci_address "${bus:-$(awk '{ print $3 }' <<<"$line")}") || continue
      facts[$slot]=${found# }
    done <"$vfio_inventory"
  fi
  command -v nvidia-smi >/dev/null 2>&1 || return 0
  while IFS=, read -r bus uuid model memory driver compute mode; do
    slot=$(pci_address "$bus") || continue
    mig_mode[$slot]=$mode
    facts[$slot]="bus_id=$slot;uuid=$uuid;model=${model//;/ };memory_mb=$memory;driver_version=$driver;compute_cap=$compute;mig_mode=${mode//[\[\]]/}"
  done < <(nvidia-smi --query-gpu=pci.bus_id,uuid,name,memory.total,driver_version,compute_cap,mig.mode.current \
    --format=csv,noheader,nounits 2>/dev/null | sed 's/ *, */,/g; s/^ *//; s/ *$//' || true)
}

# kind_of_slot <slot>: the name in the last brackets that lspci has for it.
kind_of_slot() {
  local name
  name=$(lspci -s "$1" 2>/dev/null | sed -n 's/.*\[\([^][]*\)\].*/\1/p' | head -n 1) || true
  if [ -n "$name" ]; then kind_of "$name"; else printf nvidia-gpu; fi
}

# inventory <check>: a line for every group of which `check` says that each function may be given away.
inventory() {
  local slot group member done_groups=' ' count first slots ok
  for slot in $(gpus); do
    group=$(group_of "$slot") || die "$slot has no IOMMU group: boot with intel_iommu=on or amd_iommu=on"
    case $done_groups in *" $group "*) continue ;; esac
    done_groups="$done_groups$group " count=0 first='' slots='' ok=1
    for member in $(members "$group"); do
      slots="$slots $member"
      case $(cat "$devices/$member/vendor" 2>/dev/null):$(class_of "$member") in
        0x10de:0x03*)
          count=$((count + 1)) first=${first:-$member}
          [ "${mig_mode[$member]:-}" != Enabled ] || ok='' ;;
      esac
      "$1" "$member" || ok=''
    done
    if [ -n "$ok" ]; then
      printf '%s %s%s%s\n' "$count" "$(kind_of_slot "$first")" "$slots" "${facts[$first]:+ | ${facts[$first]}}"
    fi
  done
}
anyone() { true; }
is_ours() { [ "$(driver_of "$1")" = vfio-pci ]; }

# tell <file> <text>: to the kernel.
tell() { printf '%s\n' "$2" >"$1"; }

# settled <slot> <driver>: the kernel binds in the background on some versions.
settled() {
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(driver_of "$1")" != "$2" ] || return 0
    sleep 0.2
  done
  return 1
}

# release <slot>: from the driver that has it.
release() {
  tell "$devices/$1/driver/unbind" "$1"
  settled "$1" '' || die "$1 does not leave its driver; is something using it?"
}

take() {
  local slot=$1 driver
  driver=$(driver_of "$slot")
  [ "$driver" != vfio-pci ] || return 0
  tell "$devices/$slot/driver_override" vfio-pci
  [ -z "$driver" ] || release "$slot"
  tell "$sysfs/bus/pci/drivers_probe" "$slot"
  settled "$slot" vfio-pci ||
    die "$slot did not go to vfio-pci (it has ${driver:-no driver}); is something using it? nothing was written down"
  log "$slot: ${driver:-no driver} -> vfio-pci"
}

bind() {
  local wanted slot
  learn
  wanted=$(inventory anyone)
  if [ -z "$(gpus)" ]; then log "warning: there are no NVIDIA GPUs on this host"; return 0; fi
  [ -n "$wanted" ] || log "warning: every GPU is in MIG mode; they are given out in parts (qemu-mig-setup.sh)"
  if [ -z "${FUSE_SYSFS:-}" ]; then modprobe vfio-pci || die "there is no module vfio-pci for this kernel"; fi
  while read -r _ _ wanted; do
    for slot in ${wanted%%|*}; do take "$slot"; done
  done <<<"$wanted"
  inventory is_ours | replace "$vfio_inventory"
  log "$(grep -c . "$vfio_inventory" || true) groups in $vfio_inventory"
}

unbind() {
  local slot
  slot=$(pci_address "$1") || die "'$1' is not a PCI address like 0000:65:00.0"
  [ -e "$devices/$slot" ] || die "$slot is not on this host"
  if ! is_ours "$slot"; then log "$slot is not bound to vfio-pci"; return 0; fi
  learn
  tell "$devices/$slot/driver_override" ''
  release "$slot"
  tell "$sysfs/bus/pci/drivers_probe" "$slot"
  log "$slot given back"
  inventory is_ours | replace "$vfio_inventory"
}

as_root "$@"
[ -n "$(ls -A "$sysfs/kernel/iommu_groups" 2>/dev/null)" ] ||
  die "this host has no IOMMU groups: switch the IOMMU on in the firmware, boot with intel_iommu=on or amd_iommu=on, and run this again"
case "$#:${1:-bind}" in
  0:bind | 1:bind) bind ;;
  1:--list)
    learn
    [ -n "$(gpus)" ] || log "warning: there are no NVIDIA GPUs on this host"
    inventory anyone ;;
  2:--unbind) unbind "$2" ;;
  *) usage ;;
esac
