# shellcheck shell=bash
# What installers do to a host: programs and units into place. Needs release.sh; DESTDIR puts everything under another
# root. `source` is the program that is to be installed, `changed` says whether anything was, `me` is who speaks.
source='' changed='' me=${me:-$(basename "$0" .sh)}

log() { printf '%s: %s\n' "$me" "$*" >&2; }
die() { printf '%s: error: %s\n' "$me" "$*" >&2; exit 1; }

# scratch: one directory for everything that is downloaded; gone at the end.
scratch() {
  [ -n "${work:-}" ] && return 0
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
}

# public_host: where others reach this machine.
public_host() {
  local address=${PUBLIC_HOST:-}
  [ -n "$address" ] || address=$(ip -4 route get 192.0.2.1 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p')
  [ -n "$address" ] || address=$(hostname)
  case $address in *:*:*) address="[${address#[}" address="${address%]}]" ;; esac
  printf '%s' "$address"
}

is_program() { [ -f "$1" ] && [ -x "$1" ]; }

# chosen_program <name> <given>: the given file, else one of this name in the current directory, else none.
chosen_program() {
  source=''
  if [ -n "$2" ]; then
    is_program "$2" || die "$2 is not an executable file"
    source=$2
  elif is_program "./$1"; then source=./$1
  fi
}

# released_program <asset> <member>: the verified asset of the release VERSION (default: the latest), or a member of it.
released_program() {
  local tag=${VERSION:-}
  scratch
  [ -n "$tag" ] || tag=$(latest_tag)
  log "fetching $1 of $tag"
  release_asset "$tag" "$1" "$work"
  source=$work/$1
  if [ -n "$2" ]; then unpack "$source" "$2" "$work"; source=$work/$2; fi
}

# put_program <path>: the source, unless it is there.
put_program() {
  if [ -f "$DESTDIR$1" ] && cmp -s "$source" "$DESTDIR$1"; then return 0; fi
  place "$source" "$DESTDIR$1"
  log "installed $1"
  changed=1
}

# remove_units <unit>...: out of the directory `units`.
# shellcheck disable=SC2154  # whoever reads this says where units are
remove_units() {
  local unit
  for unit in "$@"; do
    [ -f "$units/$unit" ] || { log "$unit is not installed"; continue; }
    systemctl disable --now "$unit"
    rm -f "$units/$unit"
  done
  systemctl daemon-reload
}

# is_purge [--purge]: whether the configuration and everything that was kept go, too.
is_purge() {
  case ${1:-} in
    --purge) return 0 ;;
    '') return 1 ;;
    *) die "'$1' is not known here (--purge)" ;;
  esac
}

# stays <path>...: names what is there still.
stays() {
  local path
  for path in "$@"; do
    [ ! -e "$DESTDIR$path" ] || log "stays: $path"
  done
}

# purge <path>...: what a package put there is its own.
purge() {
  local path
  for path in "$@"; do
    [ -e "$DESTDIR$path" ] || [ -L "$DESTDIR$path" ] || continue
    case $path in /usr/bin/*) log "stays: $path, which is a package's (apt-get remove)"; continue ;; esac
    if rm -rf --one-file-system -- "$DESTDIR$path"; then log "removed $path"; else
      log "stays: what is left in $path, where another file system is mounted: unmount it and remove it by hand"
    fi
  done
}

# purge_orchestrator <configuration> <program>: with the key of its secrets, and the store if that is a file here.
purge_orchestrator() {
  local database
  database=$(setting "$DESTDIR$1" DATABASE_URL)
  case $database in '' | sqlite:///var/lib/fuse-orchestrator/*) ;; *) log "stays: the database that DATABASE_URL named; without this TOKEN_ENCRYPTION_KEY its secrets are lost" ;; esac
  # systemd keeps the state of a user that comes and goes in private/, behind a link.
  purge "$1" "$2" /var/lib/fuse-orchestrator /var/lib/private/fuse-orchestrator
}

# write_unit <path> <text>
write_unit() {
  if [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; then return 0; fi
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >"$1.new"
  chmod 0644 "$1.new"
  mv -f "$1.new" "$1"
  systemctl daemon-reload
  changed=1
}

# run_unit <unit>: restarted if anything changed, else started if it is not running.
run_unit() {
  if [ -n "$changed" ]; then systemctl restart "$1"; else systemctl start "$1"; fi
}
