#!/usr/bin/env bash
# What is in a guest: its name, its kernel and, with FUSE_GPU_TEST=1, the GPUs that NVIDIA's driver finds there.
#
#   qemu-test.sh <vm>    in that guest
#   qemu-test.sh         in one of its own, which is gone afterwards; with FUSE_GPU_TEST=1 it has a GPU
#
# Guests have no SSH: commands go through the agent that runs here. Does nothing where none answers.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=ops/lib/smoke.sh
. "$tree/ops/lib/smoke.sh"
[ $# -le 1 ] || die "usage: qemu-test.sh [<vm>]"
vm=${1:-test-$$}
[[ $vm =~ ^[a-z0-9][a-z0-9-]*$ ]] || die "'$vm' is not the id of a VM (they are what the agent lists: letters, digits and -)"
as_root "$@"
need_agent
gpus=0
[ "${FUSE_GPU_TEST:-}" != 1 ] || gpus=1
if [ $# -eq 0 ]; then
  trap 'ask DELETE "/v1/vm/$vm" >/dev/null 2>&1 || true' EXIT
  ask POST /v1/vm "{\"name\":\"$vm\",\"cpus\":1,\"memory_mb\":1024,\"gpus\":$gpus}" >/dev/null
fi

printf 'host name: %s\n' "$(guest uname -n)"
printf 'kernel: %s\n' "$(guest uname -r)"
if [ $gpus -eq 0 ]; then
  printf 'SKIP qemu-test: nvidia-smi in the guest (FUSE_GPU_TEST=1 asks for it, on a host with a GPU)\n'
else
  seen=$(guest nvidia-smi -L)
  grep -q '^GPU 0' <<<"$seen" || die "the guest's driver does not see a GPU: $seen"
  printf '%s\n' "$seen"
fi
if [ $# -eq 0 ]; then
  ask DELETE "/v1/vm/$vm" >/dev/null
  trap - EXIT
  has "$(ask GET "/v1/vm?prefix=$vm")" '"vms" *: *\[ *\]' 'nothing is left'
fi
