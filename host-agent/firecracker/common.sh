# shellcheck shell=bash disable=SC2034
# What the scripts beside it share. DESTDIR stages everything under another root, for packaging and tests.
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
FC_DIR=${FC_DIR:-/var/lib/fuse}
FC_AGENT_PORT=${FC_AGENT_PORT:-8090}
ORCH_BIN=${ORCH_BIN:-$(default_bin orchestrator)}
FC_AGENT_BIN=${FC_AGENT_BIN:-$(default_bin fc-agent)}
FC_BIN=${FC_BIN:-/usr/local/bin/firecracker}
units=$DESTDIR/etc/systemd/system
state=$DESTDIR$FC_DIR
prefix=FC home=$FC_DIR agent_env=("FC_DIR=$FC_DIR" "FC_BIN=$FC_BIN")
settings_of_sudo=FC_DIR,FC_AGENT_PORT,FC_AGENT_BIN,FC_AGENT_BIN_SRC,FC_AGENT_TOKEN,FC_AGENT_URL,FC_BIN,FC_BIN_SRC,FC_VERSION,FC_SHA256,FC_RELEASE_URL,FC_FORCE,FC_SKIP_REBAKE

check_paths "$FC_DIR" "$ORCH_BIN" "$FC_AGENT_BIN" "$FC_BIN"
case $FC_AGENT_PORT in '' | *[!0-9]*) die "FC_AGENT_PORT='$FC_AGENT_PORT' is not a port" ;; esac

# Where earlier versions kept the token.
if [ -f "$state/.fc-agent.env" ] && [ ! -f "$state/.env" ] && [ -w "$state" ]; then mv "$state/.fc-agent.env" "$state/.env"; fi

# install_unit <unit>: with this host's paths.
install_unit() {
  local text
  text=$(sed -e "s|/var/lib/fuse/|$FC_DIR/|g" -e "s|/var/lib/fuse\$|$FC_DIR|" \
    -e "s|/usr/local/bin/fc-agent\$|$FC_AGENT_BIN|" -e "s|/usr/local/bin/orchestrator\$|$ORCH_BIN|" \
    -e "s|=FC_AGENT_PORT=8090\$|=FC_AGENT_PORT=$FC_AGENT_PORT|" -e "s|/usr/local/bin/firecracker\$|$FC_BIN|" \
    -e "s|/usr/share/fuse/|$tree/|" -- "$tree/ops/systemd/$1")
  write_unit "$units/$1" "$text"
}

find_agent() {
  find_program fc-agent "${FC_AGENT_BIN_SRC:-}" "$FC_AGENT_BIN" "fuse-agent_Linux_$(release_arch).tar.gz" fc-agent
}
find_orchestrator() {
  find_program orchestrator "${ORCH_BIN_SRC:-}" "$ORCH_BIN" "fuse_Linux_$(release_arch).tar.gz" orchestrator
}
