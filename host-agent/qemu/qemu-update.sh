#!/usr/bin/env bash
# Brings the programs of this GPU host to a release: the host agent, the guest agent and image (the one with CUDA too, if
# its kernel changes) and, if FUSE_ORCH_SERVICE names its unit, the orchestrator. Everything comes from one tag and is
# verified before anything is replaced. Running guests, their devices and the MIG layout are not touched. A program that
# does not start again is replaced by the one before it.
#
#   qemu-update.sh [--to <tag>]    the default is the latest release
#   qemu-update.sh --rollback      back to the programs before the last update
#
# QEMU_FORCE=1 updates although the tag is installed; QEMU_SKIP_REBAKE=1 leaves the guest images alone.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
agent=qemu-agent agent_path=$QEMU_AGENT_BIN
bake() { "$here/qemu-bake-rootfs.sh"; }
# shellcheck source=ops/lib/update.sh
. "$tree/ops/lib/update.sh"
as_root "$@"
update "$@"
