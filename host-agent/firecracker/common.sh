# shellcheck shell=bash
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

DESTDIR=${DESTDIR:-}
FC_DIR=${FC_DIR:-/var/lib/fuse}
FC_AGENT_PORT=${FC_AGENT_PORT:-8090}
# A program that a package put into /usr/bin is left to the package manager.
default_bin() { if [ -x "$DESTDIR/usr/bin/$1" ]; then printf '/usr/bin/%s' "$1"; else printf '/usr/local/bin/%s' "$1"; fi; }
ORCH_BIN=${ORCH_BIN:-$(default_bin orchestrator)}
FC_AGENT_BIN=${FC_AGENT_BIN:-$(default_bin fc-agent)}
FC_BIN=${FC_BIN:-/usr/local/bin/firecracker}
units=$DESTDIR/etc/systemd/system
state=$DESTDIR$FC_DIR

for path in "$FC_DIR" "$ORCH_BIN" "$FC_AGENT_BIN" "$FC_BIN"; do
  [[ $path =~ ^/[A-Za-z0-9._/-]+$ ]] || die "'$path' must be an absolute path of letters, digits and . _ / -"
done
case $FC_AGENT_PORT in '' | *[!0-9]*) die "FC_AGENT_PORT='$FC_AGENT_PORT' is not a port" ;; esac

# as_root "$@": the same script again, as root; settings come along.
as_root() {
  if [ "$(id -u)" -eq 0 ] || [ -n "$DESTDIR" ]; then return 0; fi
  command -v sudo >/dev/null 2>&1 || die "needs root and there is no sudo; run it as root"
  exec sudo --preserve-env=FC_DIR,FC_AGENT_PORT,FC_AGENT_BIN,FC_AGENT_BIN_SRC,FC_BIN,FC_BIN_SRC,FC_VERSION,FC_SHA256,FC_FORCE,FC_SKIP_REBAKE,FUSED_BIN_SRC,ORCH_BIN,ORCH_BIN_SRC,DATABASE_URL,PUBLIC_HOST,FUSE_REPO,FUSE_RELEASE_URL,FUSE_LATEST_URL,FUSE_ORCH_SERVICE,FUSE_ORCH_BIN,GH_TOKEN,VERSION \
    -- "$0" "$@"
}

# ensure_token: the secret that opens this host's agent; made once.
ensure_token() {
  local legacy=$state/.fc-agent.env
  [ ! -f "$legacy" ] || [ -f "$state/.env" ] || mv "$legacy" "$state/.env"
  if [ -z "$(setting "$state/.env" FC_AGENT_TOKEN)" ]; then
    { [ ! -f "$state/.env" ] || cat "$state/.env"; printf 'FC_AGENT_TOKEN=%s\n' "$(random_hex)"; } |
      new_file "$state/.env"
    log "made a token for this host's agent in $FC_DIR/.env"
  fi
  chmod 0600 "$state/.env"
}

# load_settings: this host's settings into the environment, as systemd reads them: no shell in between.
load_settings() {
  local settings
  [ -f "$state/.env" ] || return 0
  mapfile -t settings < <(grep -E '^[A-Z][A-Z0-9_]*=' "$state/.env")
  export "${settings[@]}"
}

# with_token <token> <argument of curl>...: no token shows in an argument list.
with_token() {
  printf 'header = "Authorization: Bearer %s"\n' "$1" | curl --silent --show-error --config - "${@:2}"
}

# field <name>: a text of the flat JSON object on stdin.
field() { sed -n "s/.*\"$1\" *: *\"\\([^\"]*\\)\".*/\\1/p" | head -n 1; }

agent_token() { setting "$state/.env" FC_AGENT_TOKEN; }

# install_unit <unit>: with this host's paths.
install_unit() {
  local text
  text=$(sed -e "s|/var/lib/fuse/|$FC_DIR/|g" -e "s|/var/lib/fuse\$|$FC_DIR|" \
    -e "s|/usr/local/bin/fc-agent\$|$FC_AGENT_BIN|" -e "s|/usr/local/bin/orchestrator\$|$ORCH_BIN|" \
    -e "s|=FC_AGENT_PORT=8090\$|=FC_AGENT_PORT=$FC_AGENT_PORT|" -e "s|/usr/local/bin/firecracker\$|$FC_BIN|" \
    -e "s|/usr/share/fuse/|$tree/|" -- "$tree/ops/systemd/$1")
  write_unit "$units/$1" "$text"
}

# remove_units <unit>...
remove_units() {
  local unit
  for unit in "$@"; do
    [ -f "$units/$unit" ] || { log "$unit is not installed"; continue; }
    systemctl disable --now "$unit"
    rm -f "$units/$unit"
  done
  systemctl daemon-reload
}

# find_program <name> <given> <path> <asset> <member>: puts the first of these at the path: the given file, one of this
# name in the current directory, what is there already, the verified asset of the release (a member of it, or
# itself). `changed` says whether the program is a new one.
find_program() {
  chosen_program "$1" "$2"
  if [ -z "$source" ]; then
    if [ -x "$DESTDIR$3" ]; then log "keeping $3"; return 0; fi
    released_program "$4" "$5"
  fi
  put_program "$3"
}

find_agent() {
  find_program fc-agent "${FC_AGENT_BIN_SRC:-}" "$FC_AGENT_BIN" "fuse-agent_Linux_$(release_arch).tar.gz" fc-agent
}
find_orchestrator() {
  find_program orchestrator "${ORCH_BIN_SRC:-}" "$ORCH_BIN" "fuse_Linux_$(release_arch).tar.gz" orchestrator
}
find_fused() {
  local packaged=$DESTDIR/usr/lib/fuse/fused
  [ ! -x "$packaged" ] || FUSED_BIN_SRC=${FUSED_BIN_SRC:-$packaged}
  find_program fused "${FUSED_BIN_SRC:-}" "$FC_DIR/fused" "fused_Linux_$(release_arch)" ''
}
