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

tag='' rollback=''
case "$#:${1:-}" in
  0:) ;;
  2:--to) tag=$2 ;;
  1:--rollback) rollback=1 ;;
  *) die "usage: fc-update.sh [--to <tag> | --rollback]" ;;
esac
as_root "$@"

for program in "$FC_AGENT_BIN" "${FUSE_ORCH_BIN:-$ORCH_BIN}"; do
  case $program in /usr/bin/*) die "$program comes from a package; update it with the package manager" ;; esac
done

version_file=$state/.fc-version
orchestrator=''
if [ -n "${FUSE_ORCH_SERVICE:-}" ]; then orchestrator=${FUSE_ORCH_BIN:-$ORCH_BIN}; fi
[[ ${orchestrator:-/} =~ ^/[A-Za-z0-9._/-]*$ ]] || die "FUSE_ORCH_BIN='$orchestrator' is not an absolute path"

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

# bake: the guest image with the guest agent that is in place. Not from here, where a program may lie about.
bake() { [ -n "${FC_SKIP_REBAKE:-}" ] || (cd / && "$here/fc-bake-rootfs.sh"); }

if [ -n "$rollback" ]; then
  back "$DESTDIR$FC_AGENT_BIN"
  if [ -f "$state/fused.old" ]; then back "$state/fused"; bake; fi
  restarted fc-agent.service
  if [ -n "$orchestrator" ]; then back "$DESTDIR$orchestrator"; restarted "$FUSE_ORCH_SERVICE"; fi
  rm -f "$version_file"
  log "back at the programs before the last update"
  exit 0
fi

[ -n "$tag" ] || tag=$(latest_tag)
check_tag "$tag"
if [ "$(cat "$version_file" 2>/dev/null)" = "$tag" ] && [ -x "$state/fused" ] && [ -z "${FC_FORCE:-}" ]; then
  log "$tag is installed"
  exit 0
fi

# First everything is fetched and proved, then everything is replaced.
scratch
cpu=$(release_arch)
release_asset "$tag" "fuse-agent_Linux_$cpu.tar.gz" "$work"
release_asset "$tag" "fused_Linux_$cpu" "$work"
unpack "$work/fuse-agent_Linux_$cpu.tar.gz" fc-agent "$work"
chmod 0755 "$work/fc-agent" "$work/fused_Linux_$cpu"
programs=("$work/fc-agent")
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
swap "$work/fc-agent" "$DESTDIR$FC_AGENT_BIN"
if ! bake; then
  for program in "$state/fused" "$DESTDIR$FC_AGENT_BIN"; do [ ! -f "$program.old" ] || back "$program"; done
  die "the guest image of $tag could not be built; the programs are the old ones, nothing was restarted"
fi
run_new "$DESTDIR$FC_AGENT_BIN" fc-agent.service
if [ -n "$orchestrator" ]; then
  swap "$work/orchestrator" "$DESTDIR$orchestrator"
  run_new "$DESTDIR$orchestrator" "$FUSE_ORCH_SERVICE"
fi
printf '%s\n' "$tag" >"$version_file.new"
mv -f "$version_file.new" "$version_file"
log "updated to $tag"
