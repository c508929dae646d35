# shellcheck shell=bash disable=SC2154
# Updates of a host agent, whichever it is. Needs what agent.sh needs and agent.sh itself; the script that reads this has
# said: the `agent` (its program, and the name of its unit), `agent_path` and `bake`, which makes what guests boot with the
# programs that are in place.

orchestrator='' version_file=$state/.${agent%-agent}-version
if [ -n "${FUSE_ORCH_SERVICE:-}" ]; then orchestrator=${FUSE_ORCH_BIN:-${ORCH_BIN:-$(default_bin orchestrator)}}; fi

# swap <new> <path>: keeps what was there as <path>.old.
swap() {
  [ ! -f "$2" ] || { cp -p "$2" "$2.old.new" && mv -f "$2.old.new" "$2.old"; }
  place "$1" "$2"
}

# back <path>: the program before.
back() {
  [ -f "$1.old" ] || die "there is no $1.old to go back to"
  mv -f "$1.old" "$1"
}

# restarted <unit>: a unit that is not enabled here has nothing to restart. Type=notify: success means ready.
restarted() {
  systemctl is-enabled --quiet "$1" 2>/dev/null || { log "$1 is not enabled; start it yourself"; return 0; }
  systemctl restart "$1"
}

# run_new <path> <unit>: starts the new program, or puts the old one back and says so.
run_new() {
  restarted "$2" && return 0
  log "$2 does not start with the new program; going back"
  [ ! -f "$1.old" ] || { back "$1"; restarted "$2" || log "$2 does not start with the old program either"; }
  die "the update was undone: journalctl -u $2 says why"
}

# baked: not from here, where a program may lie about.
baked() {
  local skip=${prefix}_SKIP_REBAKE
  [ -n "${!skip:-}" ] || (cd / && bake)
}

roll_back() {
  back "$DESTDIR$agent_path"
  if [ -f "$state/fused.old" ]; then back "$state/fused"; baked; fi
  restarted "$agent.service"
  if [ -n "$orchestrator" ]; then back "$DESTDIR$orchestrator"; restarted "$FUSE_ORCH_SERVICE"; fi
  rm -f "$version_file"
  log "back at the programs before the last update"
}

# bring <tag>: first everything is fetched and proved, then everything is replaced.
bring() {
  local tag=$1 cpu program programs
  scratch
  cpu=$(release_arch)
  release_asset "$tag" "fuse-agent_Linux_$cpu.tar.gz" "$work"
  release_asset "$tag" "fused_Linux_$cpu" "$work"
  unpack "$work/fuse-agent_Linux_$cpu.tar.gz" "$agent" "$work"
  chmod 0755 "$work/$agent" "$work/fused_Linux_$cpu"
  programs=("$work/$agent")
  if [ -n "$orchestrator" ]; then
    release_asset "$tag" "fuse_Linux_$cpu.tar.gz" "$work"
    unpack "$work/fuse_Linux_$cpu.tar.gz" orchestrator "$work"
    programs+=("$work/orchestrator")
  fi
  for program in "${programs[@]}"; do
    "$program" --version >/dev/null || die "$(basename "$program") of $tag does not run here; nothing was changed"
  done

  mkdir -p "$state"
  swap "$work/fused_Linux_$cpu" "$state/fused"
  swap "$work/$agent" "$DESTDIR$agent_path"
  if ! baked; then
    for program in "$state/fused" "$DESTDIR$agent_path"; do [ ! -f "$program.old" ] || back "$program"; done
    die "the guest image of $tag could not be built; the programs are the old ones, nothing was restarted"
  fi
  run_new "$DESTDIR$agent_path" "$agent.service"
  if [ -n "$orchestrator" ]; then
    swap "$work/orchestrator" "$DESTDIR$orchestrator"
    run_new "$DESTDIR$orchestrator" "$FUSE_ORCH_SERVICE"
  fi
  printf '%s\n' "$tag" >"$version_file.new"
  mv -f "$version_file.new" "$version_file"
  log "updated to $tag"
}

# update [--to <tag> | --rollback]: this host's programs, by default to the latest release.
update() {
  local tag='' program force=${prefix}_FORCE
  case "$#:${1:-}" in
    0: | 1:--rollback) ;;
    2:--to) tag=$2 ;;
    *) die "usage: $me.sh [--to <tag> | --rollback]" ;;
  esac
  for program in "$agent_path" ${orchestrator:+"$orchestrator"}; do
    case $program in /usr/bin/*) die "$program comes from a package; update it with the package manager" ;; esac
  done
  check_paths ${orchestrator:+"$orchestrator"}
  if [ "${1:-}" = --rollback ]; then roll_back; return 0; fi
  [ -n "$tag" ] || tag=$(latest_tag)
  check_tag "$tag"
  if [ "$(cat "$version_file" 2>/dev/null)" = "$tag" ] && [ -x "$state/fused" ] && [ -z "${!force:-}" ]; then
    log "$tag is installed"
    return 0
  fi
  bring "$tag"
}
