# shellcheck shell=bash disable=SC2034
# What the scripts beside it share. DESTDIR stages everything under another root, for packaging and tests; FUSE_SYSFS is
# another kernel's view of devices, for tests.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../.." && pwd)
# shellcheck source=ops/lib/release.sh
. "$tree/ops/lib/release.sh"
# shellcheck source=ops/lib/config.sh
. "$tree/ops/lib/config.sh"
# shellcheck source=ops/lib/host.sh
. "$tree/ops/lib/host.sh"
# shellcheck source=ops/lib/agent.sh
. "$tree/ops/lib/agent.sh"

DESTDIR=${DESTDIR:-}
QEMU_DIR=${QEMU_DIR:-/var/lib/fuse-gpu}
QEMU_AGENT_PORT=${QEMU_AGENT_PORT:-8091}
QEMU_AGENT_BIN=${QEMU_AGENT_BIN:-$(default_bin qemu-agent)}
units=$DESTDIR/etc/systemd/system
state=$DESTDIR$QEMU_DIR
sysfs=${FUSE_SYSFS:-/sys}
prefix=QEMU home=$QEMU_DIR agent_env=("QEMU_DIR=$QEMU_DIR")
settings_of_sudo=QEMU_DIR,QEMU_AGENT_PORT,QEMU_AGENT_BIN,QEMU_AGENT_BIN_SRC,QEMU_AGENT_TOKEN,QEMU_AGENT_URL,QEMU_FORCE,QEMU_SKIP_REBAKE,QEMU_ROOTFS_SIZE,QEMU_BAKE_MOUNT,QEMU_BAKE_WORK,CUDA_REPO,FUSE_GPU_TEST,VFIO_INVENTORY,MIG_INVENTORY,MIG_LAYOUT_CONF,FUSE_SYSFS
vfio_inventory=${VFIO_INVENTORY:-$state/vfio-inventory.txt}
mig_inventory=${MIG_INVENTORY:-$state/mig-inventory.txt}
mig_layout=${MIG_LAYOUT_CONF:-$state/mig-layout.conf}
# Beside it, a file that says which driver is in it, for which kernel.
cuda_image=$state/rootfs-cuda.qcow2

check_paths "$QEMU_DIR" "$QEMU_AGENT_BIN"
case $QEMU_AGENT_PORT in '' | *[!0-9]*) die "QEMU_AGENT_PORT='$QEMU_AGENT_PORT' is not a port" ;; esac

# install_unit <unit>: with this host's paths.
install_unit() {
  local text
  text=$(sed -e "s|/var/lib/fuse-gpu/|$QEMU_DIR/|g" -e "s|/var/lib/fuse-gpu\$|$QEMU_DIR|" \
    -e "s|/usr/local/bin/qemu-agent\$|$QEMU_AGENT_BIN|" -e "s|=QEMU_AGENT_PORT=8091\$|=QEMU_AGENT_PORT=$QEMU_AGENT_PORT|" \
    -e "s|/usr/share/fuse/|$tree/|" -- "$tree/ops/systemd/$1")
  write_unit "$units/$1" "$text"
}

find_agent() {
  find_program qemu-agent "${QEMU_AGENT_BIN_SRC:-}" "$QEMU_AGENT_BIN" "fuse-agent_Linux_$(release_arch).tar.gz" qemu-agent
}

# guest_kernel: the version of the kernel that guests boot.
guest_kernel() { field kernel_version <"$state/image.json"; }

# need_agent: `api` and `token` of the agent that runs here; a script that tests it ends where there is none.
need_agent() {
  token=${QEMU_AGENT_TOKEN:-$(agent_token)}
  api=${QEMU_AGENT_URL:-$(agent_near "$QEMU_AGENT_PORT")}
  trust_agent
  if ! curl --silent --output /dev/null --max-time 10 "$api/healthz"; then
    printf 'SKIP %s: no agent answers at %s\n' "$me" "$api"
    exit 0
  fi
  [ -n "$token" ] || die "there is no QEMU_AGENT_TOKEN, neither in the environment nor in $QEMU_DIR/.env: ./qemu-agent.sh install-service makes one"
}

# replace <file>: stdin becomes its content, whole or not at all.
replace() {
  mkdir -p "$(dirname "$1")"
  cat >"$1.new"
  mv -f "$1.new" "$1"
}

# pci_address <text>: as the kernel writes it; nvidia-smi has eight digits in the domain, lspci may have none.
pci_address() {
  local text=${1,,}
  case $text in
    [0-9a-f][0-9a-f]:*) text=0000:$text ;;
    [0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]:*) text=${text:4} ;;
  esac
  [[ $text =~ ^[0-9a-f]{4,7}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$ ]] || return 1
  printf '%s' "$text"
}

# kind_of <model>: one word, in small letters, without the vendor.
kind_of() {
  local kind=${1,,}
  kind=${kind#nvidia }
  printf '%s' "${kind// /-}"
}
