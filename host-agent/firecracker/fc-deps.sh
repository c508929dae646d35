#!/usr/bin/env bash
# Installs the system packages of a host, then checks each program and whether KVM can be used.
# Running it again changes nothing.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: fc-deps.sh (it takes no arguments; Fuse needs no compiler on a host)"
as_root "$@"

# program|package with apt|package with dnf
needs='
curl|curl|curl
tar|tar|tar
awk|mawk|gawk
ip|iproute2|iproute
nft|nftables|nftables
mkfs.ext4|e2fsprogs|e2fsprogs
mmdebstrap|mmdebstrap|mmdebstrap
lz4|lz4|lz4
zstd|zstd|zstd
xz|xz-utils|xz
setsid|util-linux|util-linux
pgrep|procps|procps-ng
'
PATH=$PATH:/usr/sbin:/sbin
manager=none
if command -v apt-get >/dev/null 2>&1; then manager=apt
elif command -v dnf >/dev/null 2>&1; then manager=dnf
fi

packages=()
while IFS='|' read -r program apt dnf; do
  [ -n "$program" ] || continue
  command -v "$program" >/dev/null 2>&1 && continue
  if [ $manager = dnf ]; then packages+=("$dnf"); else packages+=("$apt"); fi
done <<<"$needs"

if [ ${#packages[@]} -gt 0 ]; then
  log "installing ${packages[*]}"
  case $manager in
    apt)
      apt-get update -qq
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates "${packages[@]}" >/dev/null ;;
    dnf) dnf install -y -q ca-certificates "${packages[@]}" ;;
    *) die "neither apt nor dnf here; install these by hand and run again: ca-certificates ${packages[*]}" ;;
  esac
fi

missing=()
while IFS='|' read -r program _; do
  [ -z "$program" ] || command -v "$program" >/dev/null 2>&1 || missing+=("$program")
done <<<"$needs"
[ ${#missing[@]} -eq 0 ] || die "still missing after the installation: ${missing[*]}"

if [ ! -e /dev/kvm ]; then
  log "warning: no /dev/kvm: guests cannot run here in Firecracker; enable virtualisation in the firmware or, in a VM, nesting"
elif [ ! -r /dev/kvm ] || [ ! -w /dev/kvm ]; then
  log "warning: /dev/kvm cannot be opened: check its group and permissions"
fi
log "everything is there"
