#!/usr/bin/env bash
# Installs the system packages that building, running and testing Fuse needs.
# Says which ones are missing and what each is for before it installs anything.
#
#   ops/dev/deps.sh run     what `make run` needs
#   ops/dev/deps.sh test    that, and what the test suite needs on top
#   ops/dev/deps.sh --check run|test   only report; exit 1 if something is missing
set -euo pipefail

check=0
if [ "${1:-}" = --check ]; then check=1; shift; fi
purpose=${1:-run}

die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

# tool|package|why: a tool on PATH stands for its package, so machines that got it another way are left alone.
run_tools='
cc|gcc|links Rust programs and compiles the embedded SQLite
qemu-system-x86_64|qemu-system-x86|runs guests where /dev/kvm cannot (fc-emulator)
mmdebstrap|mmdebstrap|builds the base root file system of the guests
mkfs.ext4|e2fsprogs|makes the base image and the overlay disks
nft|nftables|publishes guest ports and isolates guests
ip|iproute2|shows and tests the host network
lz4|lz4|unpacks the kernel image
zstd|zstd|unpacks kernel modules
xz|xz-utils|unpacks kernel modules
'
test_tools='
busybox|busybox-static|runs compiled startup scripts under a third shell
dash|dash|runs compiled startup scripts under dash
tmux|tmux|drives the interactive parts of the CLI
shellcheck|shellcheck|checks the shell scripts
curl|curl|calls services the way a user would
promtool|prometheus|checks the alert rules
systemd-analyze|systemd|checks the service units
git|git|takes the clean clone that the newcomer test starts from
cpio|cpio|reads the archives that the initramfs is made of
'

case $purpose in
  run) tools=$run_tools ;;
  test) tools=$run_tools$test_tools ;;
  *) die "usage: ops/dev/deps.sh [--check] run|test" ;;
esac

command -v cargo >/dev/null 2>&1 || die "cargo is not on PATH: install a Rust toolchain (1.95 or newer) with rustup first"

PATH=$PATH:/usr/sbin:/sbin
missing=()
while IFS='|' read -r tool package why; do
  [ -n "$tool" ] || continue
  command -v "$tool" >/dev/null 2>&1 && continue
  missing+=("$package")
  printf 'deps: missing %-20s (%s)\n' "$package" "$why" >&2
done <<<"$tools"

# gcc alone brings no C library to link with: that is only recommended by its package.
if [ ! -e /usr/include/stdio.h ]; then
  missing+=(libc6-dev)
  printf 'deps: missing %-20s (%s)\n' libc6-dev 'what Rust programs and the embedded SQLite are linked with' >&2
fi

if [ "$purpose" = test ] && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
  missing+=(postgresql)
  printf 'deps: missing %-20s (%s)\n' postgresql 'the store is tested on a real PostgreSQL' >&2
fi

if [ "$purpose" = test ] && [ "$(uname -m)" = x86_64 ] && ! compgen -G '/usr/share/OVMF/OVMF_CODE*.fd' >/dev/null; then
  missing+=(ovmf)
  printf 'deps: missing %-20s (%s)\n' ovmf 'a guest is started through UEFI firmware' >&2
fi
if [ "$purpose" = test ] && ! python3 -c 'import ensurepip, venv' >/dev/null 2>&1; then
  missing+=(python3-venv)
  printf 'deps: missing %-20s (%s)\n' python3-venv 'the API is tested with the published Python SDK' >&2
fi

[ ${#missing[@]} -gt 0 ] || exit 0
[ $check -eq 0 ] || exit 1

command -v apt-get >/dev/null 2>&1 ||
  die "this is not a Debian or Ubuntu machine; install these by hand and run again: ${missing[*]}"

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || die "not root and no sudo: as root, run  apt-get install ${missing[*]}"
  sudo=(sudo)
fi
printf 'deps: installing %s\n' "${missing[*]}" >&2
"${sudo[@]}" apt-get update -qq
# A stock PostgreSQL package would start a cluster of its own; the tests bring up theirs.
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
