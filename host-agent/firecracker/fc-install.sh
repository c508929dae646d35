#!/usr/bin/env bash
# Puts onto this host what guests need: Firecracker, the host agent, the guest agent, kernel and base root file
# system. Fetches what is missing and nothing else; every download is verified before it is used.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: fc-install.sh (it takes no arguments)"
as_root "$@"

# The release that this version of Fuse is made for. Another one: FC_VERSION and FC_SHA256 of its archive.
pinned=v1.8.0
digest_of_pinned() {
  case $1 in
    x86_64) printf bc899bdaef8d0aa7b0fafbf49a2bf647e0298558f4faee44970d87a1c6d1ae2d ;;
    aarch64) printf 64b49ceb53167d7616bf4fd2c73def696a320259ea6e07cf1447c9091c5f9271 ;;
  esac
}

install_firecracker() {
  local cpu version want archive name
  if [ -n "${FC_BIN_SRC:-}" ]; then
    is_program "$FC_BIN_SRC" || die "$FC_BIN_SRC is not an executable file"
    cmp -s "$FC_BIN_SRC" "$DESTDIR$FC_BIN" || { place "$FC_BIN_SRC" "$DESTDIR$FC_BIN"; log "installed $FC_BIN"; }
    return
  fi
  if [ -x "$DESTDIR$FC_BIN" ]; then log "keeping $FC_BIN"; return; fi
  cpu=$(uname -m) version=${FC_VERSION:-$pinned} want=${FC_SHA256:-}
  if [ -z "$want" ] && [ "$version" = "$pinned" ]; then want=$(digest_of_pinned "$cpu"); fi
  [ -n "$want" ] ||
    die "no digest is known for Firecracker $version on $cpu; give FC_SHA256, or FC_BIN_SRC with a program you trust"
  scratch
  archive=firecracker-$version-$cpu.tgz name=release-$version-$cpu/firecracker-$version-$cpu
  log "fetching Firecracker $version"
  fetch "${FC_RELEASE_URL:-https://github.com/firecracker-microvm/firecracker/releases/download}/$version/$archive" \
    "$work/$archive"
  printf '%s  %s\n' "$want" "$archive" >"$work/firecracker.sums"
  verify_asset "$work/$archive" "$archive" "$work/firecracker.sums"
  unpack "$work/$archive" "$name" "$work"
  place "$work/$name" "$DESTDIR$FC_BIN"
  log "installed $FC_BIN"
}

install_firecracker
find_agent
"$here/fc-bake-rootfs.sh"
log "done; next: ./fc-agent.sh install-service"
