#!/usr/bin/env bash
# Cuts GPUs into MIG instances that guests can be given, keeps the layout, and makes it again.
#
#   qemu-mig-setup.sh --profile <profile>=<count> ... [--dry-run]
#                                     so many instances of each profile on this host, as far as they fit
#   qemu-mig-setup.sh                 the layout of before (at boot, and after a VM gave instances back)
#   qemu-mig-setup.sh --list          writes the inventory anew and prints it
#   qemu-mig-setup.sh --unbind <uuid> takes one instance out of it: its device, its partition, and one from the layout
#
# An instance that a guest is given is a mediated device, which has a UUID of its own (the MIG-... id that nvidia-smi shows
# names the partition and cannot be attached). The UUIDs are kept, so guests find their instance again after a reboot.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"

usage() { die "usage: qemu-mig-setup.sh [--profile <profile>=<count> ... [--dry-run] | --list | --unbind <uuid>]"; }
mdevs=$sysfs/bus/mdev/devices
declare -A want have
profiles=() dry=''

# gpus: index,uuid,name,bus id,mig mode of each GPU, without blanks around them.
gpus() {
  nvidia-smi --query-gpu=index,uuid,name,pci.bus_id,mig.mode.current --format=csv,noheader,nounits |
    sed 's/ *, */,/g; s/^ *//; s/ *$//'
}

# partitions <gpu uuid>: the profiles of the MIG partitions that it has, one a line.
partitions() {
  nvidia-smi -L | awk -v gpu="$1" '
    /^GPU / { inside = index($0, "(UUID: " gpu ")") > 0 }
    inside && /^ *MIG / { print tolower($2) }'
}

# enable <index> <uuid> <mode>
enable() {
  case $3 in
    Enabled) return 0 ;;
    Disabled) ;;
    *) log "warning: GPU $1 ($2) cannot be partitioned"; return 1 ;;
  esac
  [ -z "$dry" ] || { log "would switch MIG mode on: GPU $1 ($2)"; return 0; }
  nvidia-smi -i "$1" -mig 1 >/dev/null ||
    die "MIG mode of GPU $1 ($2) cannot be switched on; stop what uses it, reset it by hand (nvidia-smi -i $1 --gpu-reset) and run this again"
  gpus | grep -q "^$1,.*,Enabled$" ||
    die "MIG mode of GPU $1 ($2) waits for a reset; do it by hand (nvidia-smi -i $1 --gpu-reset) and run this again"
}

# type_dirs <bus id> <profile>: the kinds of mediated devices that are backed by an instance of the profile, on the card or
# one of its virtual functions. Their names end in the number of compute slices and the memory: 1g.10gb is A100-1-10C.
type_dirs() {
  local slot slices memory suffix=C function dir
  slot=$(pci_address "$1") || return 0
  slices=${2%%g.*} memory=${2#*.}
  memory=${memory%%gb*}
  case $2 in *+me) suffix=CME ;; esac
  for function in "$sysfs/bus/pci/devices/$slot" "$sysfs/bus/pci/devices/$slot"/virtfn*; do
    for dir in "$function"/mdev_supported_types/*; do
      [ -f "$dir/name" ] || continue
      case $(cat "$dir/name") in *"-$slices-$memory$suffix") printf '%s\n' "$dir" ;; esac
    done
  done
}

# make_mdev <bus id> <profile> <uuid>: fails when none of the types has room.
make_mdev() {
  local dir
  for dir in $(type_dirs "$1" "$2"); do
    [ "$(cat "$dir/available_instances")" -gt 0 ] || continue
    printf '%s\n' "$3" >"$dir/create" || continue
    for _ in 1 2 3 4 5 6 7 8 9 10; do
      [ ! -e "$mdevs/$3" ] || return 0
      sleep 0.2
    done
  done
  return 1
}

# listed: the lines of the inventory that say something.
listed() { [ ! -f "$mig_inventory" ] || grep -E '^[[:space:]]*[^#[:space:]]' "$mig_inventory" || true; }

# write_inventory: the instances whose device is there, in small letters.
write_inventory() {
  local profile kind uuid parent
  listed | while read -r profile kind uuid parent; do
    [ -e "$mdevs/${uuid,,}" ] || continue
    printf '%s %s %s%s\n' "${profile,,}" "${kind,,}" "${uuid,,}" "${parent:+ $parent}"
  done | replace "$mig_inventory"
}

# add_partition <index> <profile>: one more on the card, if it fits.
add_partition() { nvidia-smi mig -i "$1" -cgi "$2" -C >/dev/null 2>&1; }

# instances <index> <profile>: the numbers of the card's GPU instances of the profile, one a line.
instances() {
  nvidia-smi mig -i "$1" -lgi 2>/dev/null | awk -v profile="$2" '
    $1 == "|" && $3 == "MIG" && tolower($4) == profile { print $6 }'
}

# remove_partition <index> <profile>: one that nobody uses. Devices have no partition of their own (each takes a free one
# of its profile when its guest starts), and the driver lets go of none that a guest has.
remove_partition() {
  local number
  for number in $(instances "$1" "$2"); do
    nvidia-smi mig -i "$1" -dci -gi "$number" >/dev/null 2>&1 || true
    ! nvidia-smi mig -i "$1" -dgi -gi "$number" >/dev/null 2>&1 || return 0
  done
  return 1
}

# restore_listed: devices of the inventory that are gone, under the UUIDs they had.
restore_listed() {
  local profile kind uuid parent index gpu name bus mode
  while read -r profile kind uuid parent; do
    if [ -z "$uuid" ] || [ -e "$mdevs/${uuid,,}" ]; then continue; fi
    while IFS=, read -r index gpu name bus mode; do
      [ -z "$parent" ] || [ "$gpu" = "$parent" ] || continue
      [ "$(partitions "$gpu" | grep -cxF "$profile" || true)" -gt "$(live "$profile" "$gpu")" ] ||
        add_partition "$index" "$profile" || continue
      if make_mdev "$bus" "$profile" "${uuid,,}"; then log "$profile ${uuid,,} is back"; break; fi
    done <<<"$cards"
  done < <(listed)
}

# live <profile> [gpu]: instances of the inventory whose device is there.
live() {
  local profile kind uuid parent n=0
  while read -r profile kind uuid parent; do
    if [ "${profile,,}" != "$1" ] || [ ! -e "$mdevs/${uuid,,}" ]; then continue; fi
    [ -z "${2:-}" ] || [ "$parent" = "$2" ] || continue
    n=$((n + 1))
  done < <(listed)
  printf '%s' "$n"
}

# fill <profile>: further instances of it, card by card, until there are enough or no card has room.
fill() {
  local profile=$1 index gpu name bus mode uuid
  while IFS=, read -r index gpu name bus mode; do
    [ "$mode" = Enabled ] || continue
    while [ "${have[$profile]}" -lt "${want[$profile]}" ]; do
      # A partition that no device uses yet goes first.
      [ "$(partitions "$gpu" | grep -cxF "$profile" || true)" -gt "$(live "$profile" "$gpu")" ] ||
        add_partition "$index" "$profile" || break
      uuid=$(cat /proc/sys/kernel/random/uuid)
      make_mdev "$bus" "$profile" "$uuid" || break
      { listed; printf '%s %s %s %s\n' "$profile" "$(kind_of "$name")" "$uuid" "$gpu"; } | replace "$mig_inventory"
      have[$profile]=$((have[$profile] + 1))
      log "$profile $uuid on GPU $index"
    done
  done <<<"$cards"
}

# apply: what is wanted, as far as it fits.
apply() {
  local profile index gpu name bus mode
  cards=$(gpus) || die "nvidia-smi fails: is the NVIDIA driver loaded?"
  while IFS=, read -r index gpu name bus mode; do
    [ -z "$index" ] || enable "$index" "$gpu" "$mode" || true
  done <<<"$cards"
  if [ -n "$dry" ]; then
    for profile in "${profiles[@]}"; do log "would make $((want[$profile] - $(live "$profile"))) more of $profile"; done
    return 0
  fi
  cards=$(gpus)
  restore_listed
  for profile in "${profiles[@]}"; do
    have[$profile]=$(live "$profile")
    fill "$profile"
    [ "${have[$profile]}" -ge "${want[$profile]}" ] ||
      log "warning: ${want[$profile]} of $profile are wanted and ${have[$profile]} are there: no card has room for more"
  done
  write_inventory
}

# wanted <profile>=<count>
wanted() {
  local profile=${1%%=*} count=${1#*=}
  profile=${profile,,}
  [[ $profile =~ ^[1-7]g\.[0-9]+gb(\+me)?$ && $count =~ ^[1-9][0-9]{0,2}$ ]] ||
    die "'$1' is not a profile and a count, like 1g.10gb=4"
  [ -n "${want[$profile]:-}" ] || profiles+=("$profile")
  want[$profile]=$count
}

# shrink_layout <profile> <count>: no more of the profile than that, so that what was taken out stays out.
shrink_layout() {
  [ -f "$mig_layout" ] || return 0
  awk -F= -v profile="$1" -v most="$2" '
    tolower($1) == profile && $2 > most { if (most > 0) print profile "=" most; next }
    { print }' "$mig_layout" | replace "$mig_layout"
}

# unbind <uuid>: the line in the inventory goes last, so that a run that was cut short can be finished by another.
unbind() {
  local uuid=${1,,} line profile kind parent index gpu name bus mode
  [[ $uuid =~ ^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$ ]] || die "'$1' is not the UUID of a mediated device"
  line=$(listed | awk -v uuid="$uuid" 'tolower($3) == uuid')
  [ -n "$line" ] || { log "warning: there is no instance $uuid"; return 0; }
  read -r profile kind _ parent <<<"${line,,}"
  if [ -e "$mdevs/$uuid" ]; then
    printf '1\n' >"$mdevs/$uuid/remove" || die "$uuid cannot be taken out: a guest uses it"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
      [ -e "$mdevs/$uuid" ] || break
      sleep 0.2
    done
    [ ! -e "$mdevs/$uuid" ] || die "$uuid cannot be taken out: a guest uses it"
  fi
  [ -n "$parent" ] || log "warning: nothing says which GPU $uuid is on, so its partition stays (nvidia-smi mig -lgi)"
  cards=$(gpus) || die "nvidia-smi fails: is the NVIDIA driver loaded?"
  while IFS=, read -r index gpu name bus mode; do
    if [ "$mode" != Enabled ] || [ "${gpu,,}" != "$parent" ]; then continue; fi
    # What other devices need stays, and so does what an earlier run left over.
    if [ "$(instances "$index" "$profile" | wc -l)" -gt "$(live "$profile" "$gpu")" ]; then
      remove_partition "$index" "$profile" ||
        die "the $profile partition of $uuid cannot be removed: something uses it (nvidia-smi mig -i $index -lgi); run this again when it does not"
      log "$profile $uuid is gone, and its partition on GPU $index"
    fi
  done <<<"$cards"
  shrink_layout "$profile" "$(listed | awk -v profile="$profile" -v uuid="$uuid" 'tolower($1) == profile && tolower($3) != uuid' | wc -l)"
  write_inventory
}

as_root "$@"
command -v nvidia-smi >/dev/null 2>&1 || die "nvidia-smi is missing: MIG needs the NVIDIA driver on this host"
action=saved
given=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --profile) [ $# -ge 2 ] || usage; wanted "$2"; action=profiles; shift 2 ;;
    --dry-run) dry=1; shift ;;
    --list) action=list; shift ;;
    --unbind) [ $# -ge 2 ] || usage; action=unbind instance=$2; shift 2 ;;
    *) usage ;;
  esac
done
case $action:${#given[@]} in list:1 | unbind:2 | saved:0 | profiles:*) ;; *) usage ;; esac
case $action in
  list) write_inventory; cat "$mig_inventory" ;;
  unbind) unbind "$instance" ;;
  profiles)
    if [ -z "$dry" ]; then for profile in "${profiles[@]}"; do printf '%s=%s\n' "$profile" "${want[$profile]}"; done | replace "$mig_layout"; fi
    apply ;;
  saved)
    [ -s "$mig_layout" ] || die "there is no layout in $mig_layout; say one: qemu-mig-setup.sh --profile 1g.10gb=4"
    while read -r line; do case $line in '' | '#'*) ;; *) wanted "$line" ;; esac; done <"$mig_layout"
    apply ;;
esac
