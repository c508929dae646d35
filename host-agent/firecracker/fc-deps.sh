#!/usr/bin/env bash
# Installs the system packages of a host, then checks each program and whether KVM can be used.
# Running it again changes nothing.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: fc-deps.sh (it takes no arguments; Fuse needs no compiler on a host)"
as_root "$@"

install_missing '
setsid|util-linux|util-linux
pgrep|procps|procps-ng
'

if [ ! -e /dev/kvm ]; then
  log "warning: no /dev/kvm: guests cannot run here in Firecracker; enable virtualisation in the firmware or, in a VM, nesting"
elif [ ! -r /dev/kvm ] || [ ! -w /dev/kvm ]; then
  log "warning: /dev/kvm cannot be opened: check its group and permissions"
fi
log "everything is there"
