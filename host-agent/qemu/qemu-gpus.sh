#!/usr/bin/env bash
# Readies this host's GPUs as they were before it was rebooted: the MIG layout that was saved, and vfio-pci for the cards
# that were bound. What was never set up stays alone. qemu-gpus.service runs it before the agent.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: qemu-gpus.sh (it takes no arguments)"
as_root "$@"
# MIG first: it needs the cards' own driver, which binding takes away.
if [ -s "$mig_layout" ]; then "$here/qemu-mig-setup.sh"; fi
if [ -s "$vfio_inventory" ]; then "$here/qemu-vfio-bind.sh"; fi
