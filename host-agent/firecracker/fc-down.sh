#!/usr/bin/env bash
# Takes this host out of service: stops the agent, powers its guests off, takes their network away. Disks stay, and the
# next start of the agent boots the guests again. To move work away first: fuse host cordon <id>.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: fc-down.sh (it takes no arguments)"
as_root "$@"

[ -x "$DESTDIR$FC_AGENT_BIN" ] || die "$FC_AGENT_BIN is not installed, so nothing of Fuse runs here"
[ -f "$units/fc-agent.service" ] || "$here/fc-agent.sh" stop
end_guests "$FC_AGENT_BIN" fc-agent.service
