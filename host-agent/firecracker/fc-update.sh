#!/usr/bin/env bash
# Brings the programs of this host to a release: the host agent, the guest agent and image and, if FUSE_ORCH_SERVICE
# names its unit, the orchestrator. Everything comes from one tag and is verified before anything is replaced. Running
# guests are not touched. A program that does not start again is replaced by the one before it.
#
#   fc-update.sh [--to <tag>]    the default is the latest release
#   fc-update.sh --rollback      back to the programs before the last update
#
# FC_FORCE=1 updates although the tag is installed; FC_SKIP_REBAKE=1 leaves the guest image alone.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
agent=fc-agent agent_path=$FC_AGENT_BIN
bake() { "$here/fc-bake-rootfs.sh"; }
# shellcheck source=ops/lib/update.sh
. "$tree/ops/lib/update.sh"
as_root "$@"
update "$@"
