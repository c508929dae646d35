#!/usr/bin/env bash
# Installs the control plane on a host of its own: /usr/local/bin/orchestrator, /etc/fuse/orchestrator.env and
# fuse-orchestrator.service. Runs as root; running it again keeps the configuration and its secrets.
#
#   ORCH_BIN_SRC=/path    install this program; else ./orchestrator, else the release VERSION (default: the latest)
#   ORCH_LISTEN=:8080     address to listen on, for a configuration that is written now
#   DESTDIR=/stage        put everything under another root
set -euo pipefail

# >>> release helpers
FUSE_REPO=${FUSE_REPO:-folsomintel/fuse}
# Where assets are: <base>/<tag>/<asset>. A mirror answers both.
FUSE_RELEASE_URL=${FUSE_RELEASE_URL:-https://github.com/$FUSE_REPO/releases/download}
FUSE_LATEST_URL=${FUSE_LATEST_URL:-https://api.github.com/repos/$FUSE_REPO/releases/latest}

release_die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# origin_of <url>: scheme, host and port.
origin_of() {
  local rest=${1#*://}
  printf '%s://%s' "${1%%://*}" "${rest%%[/?#]*}"
}

# may_follow <from> <to>: a redirect stays where it is, except that GitHub keeps its assets on hosts of its own.
may_follow() {
  [ "$(origin_of "$1")" = "$(origin_of "$2")" ] && return 0
  [ "$(origin_of "$1")" = https://github.com ] || return 1
  case $(origin_of "$2") in
    https://objects.githubusercontent.com | https://release-assets.githubusercontent.com) return 0 ;;
  esac
  return 1
}

# request_config <url>: options for curl that must not be seen in its argument list.
request_config() {
  case $(origin_of "$1") in
    https://github.com | https://api.github.com)
      [ -z "${GH_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$GH_TOKEN" ;;
  esac
}

# fetch <url> <file>: all of it, or nothing and an end.
fetch() {
  local url=$1 file=$2 answer status next hop
  for hop in 1 2 3 4 5; do
    answer=$(request_config "$url" | curl --silent --show-error --config - --proto '=http,https' \
      --connect-timeout 15 --speed-limit 1 --speed-time 60 \
      --output "$file" --write-out '%{http_code} %{redirect_url}' "$url") ||
      { rm -f "$file"; release_die "download of $url did not finish (try $hop); nothing was changed"; }
    status=${answer%% *} next=${answer#* }
    case $status in
      200) return 0 ;;
      301 | 302 | 303 | 307 | 308)
        rm -f "$file"
        may_follow "$url" "$next" || release_die "$url redirects to another host ($next); nothing was changed"
        url=$next ;;
      *) rm -f "$file"; release_die "$url answered HTTP $status; nothing was changed" ;;
    esac
  done
  release_die "$1 redirects in circles; nothing was changed"
}

# sha256_of <file>
sha256_of() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1" | cut -d ' ' -f 1
  elif command -v shasum >/dev/null 2>&1; then shasum -a 256 <"$1" | cut -d ' ' -f 1
  else release_die "neither sha256sum nor shasum is installed, so nothing can be verified"
  fi
}

# verify_asset <file> <asset> <checksums>: the digest under exactly this name, or an end.
verify_asset() {
  local file=$1 asset=$2 sums=$3 want got
  [ -f "$file" ] || release_die "$asset was not downloaded"
  [ -s "$sums" ] || release_die "checksums.txt is missing or empty, so $asset cannot be verified"
  want=$(awk -v name="$asset" '{ n = $2; sub(/^\*/, "", n); if (NF == 2 && n == name) { print $1; exit } }' "$sums")
  [ -n "$want" ] || release_die "checksums.txt has no entry for $asset; it was not installed"
  got=$(sha256_of "$file")
  [ "$got" = "$want" ] ||
    release_die "checksum of $asset does not match checksums.txt (expected $want, got $got); it was not installed"
}

# check_tag <tag>: it becomes part of a URL.
check_tag() {
  [[ $1 =~ ^v[0-9]+\.[0-9]+\.[0-9]+([-+.][0-9A-Za-z.+-]+)?$ ]] ||
    release_die "'$1' is not a release tag (expected something like v1.2.3)"
}

# latest_tag: of the repository.
latest_tag() {
  local answer tag
  answer=$(mktemp)
  fetch "$FUSE_LATEST_URL" "$answer"
  tag=$(sed -n 's/.*"tag_name"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' "$answer" | head -n 1)
  rm -f "$answer"
  [ -n "$tag" ] || release_die "$FUSE_LATEST_URL names no release"
  check_tag "$tag"
  printf '%s' "$tag"
}

# release_asset <tag> <asset> <dir>: puts the verified asset into the directory.
release_asset() {
  check_tag "$1"
  [ -s "$3/checksums.txt" ] || fetch "$FUSE_RELEASE_URL/$1/checksums.txt" "$3/checksums.txt"
  fetch "$FUSE_RELEASE_URL/$1/$2" "$3/$2"
  verify_asset "$3/$2" "$2" "$3/checksums.txt"
}

# unpack <archive> <member> <dir>: one program out of a verified archive, and nothing else.
unpack() {
  tar -xzf "$1" -C "$3" --no-same-owner "$2" || release_die "$1 holds no $2"
  { [ -f "$3/$2" ] && [ ! -L "$3/$2" ]; } || release_die "$2 in $1 is not a program"
}

# release_arch: of this machine, as assets spell it.
release_arch() {
  case $(uname -m) in
    x86_64 | amd64) printf x86_64 ;;
    aarch64 | arm64) printf arm64 ;;
    *) release_die "there is no release for $(uname -m) CPUs (x86_64 and arm64 only)" ;;
  esac
}

# place <file> <path>: a program at its path, in one step; the old one goes on running until it is restarted.
place() {
  mkdir -p "$(dirname "$2")"
  cp "$1" "$2.new"
  chmod 0755 "$2.new"
  mv -f "$2.new" "$2"
}
# <<< release helpers

die() { printf 'install-orchestrator: error: %s\n' "$*" >&2; exit 1; }
log() { printf 'install-orchestrator: %s\n' "$*" >&2; }

DESTDIR=${DESTDIR:-}
config=$DESTDIR/etc/fuse/orchestrator.env
program=$DESTDIR/usr/local/bin/orchestrator
unit=$DESTDIR/etc/systemd/system/fuse-orchestrator.service
changed=''

# The same text as ops/systemd/fuse-orchestrator.service, for an installer that came alone.
unit_text() {
  cat <<'UNIT'
# The control plane of a host of its own; ops/install-orchestrator.sh installs it.
# On a host that also runs guests it is orchestrator.service instead, never both.
[Unit]
Description=Fuse orchestrator
Documentation=https://github.com/folsomintel/fuse
After=network-online.target
Wants=network-online.target
Conflicts=orchestrator.service
# A database or network that is late is waited for, however long it takes.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
WatchdogSec=60
EnvironmentFile=/etc/fuse/orchestrator.env
ExecStart=/usr/local/bin/orchestrator
Restart=on-failure
RestartSec=2
# Longer than ORCH_SHUTDOWN_TIMEOUT_SECONDS plus the time to close the store.
TimeoutStopSec=60

# A user of its own that exists while the service runs; /var/lib/fuse-orchestrator is its only directory.
DynamicUser=yes
User=fuse-orchestrator
StateDirectory=fuse-orchestrator
StateDirectoryMode=0700
WorkingDirectory=/var/lib/fuse-orchestrator
UMask=0077
LimitNOFILE=65536

AmbientCapabilities=
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
UNIT
}

random_hex() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
setting() { sed -n "s/^$1=//p" "$config" | tail -n 1; }

public_host() {
  local address=${PUBLIC_HOST:-}
  [ -n "$address" ] || address=$(ip -4 route get 192.0.2.1 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p')
  [ -n "$address" ] || address=$(hostname)
  printf '%s' "$address"
}

install_program() {
  local source tag asset work
  if [ -n "${ORCH_BIN_SRC:-}" ]; then
    { [ -f "$ORCH_BIN_SRC" ] && [ -x "$ORCH_BIN_SRC" ]; } || die "$ORCH_BIN_SRC is not an executable file"
    source=$ORCH_BIN_SRC
  elif [ -f ./orchestrator ] && [ -x ./orchestrator ]; then source=./orchestrator
  else
    work=$(mktemp -d)
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$work'" EXIT
    asset=fuse_Linux_$(release_arch).tar.gz
    tag=${VERSION:-}
    [ -n "$tag" ] || tag=$(latest_tag)
    log "fetching $asset of $tag"
    release_asset "$tag" "$asset" "$work"
    unpack "$work/$asset" orchestrator "$work"
    source=$work/orchestrator
  fi
  if [ -f "$program" ] && cmp -s "$source" "$program"; then return 0; fi
  place "$source" "$program"
  changed=1
}

write_config() {
  mkdir -p "$(dirname "$config")"
  if [ -f "$config" ]; then chmod 0600 "$config"; log "keeping /etc/fuse/orchestrator.env"; return 0; fi
  (umask 077 && cat >"$config.new") <<TEXT
# The orchestrator of this host. Change, then: systemctl restart fuse-orchestrator
ORCH_LISTEN=${ORCH_LISTEN:-:8080}
ORCH_AUTH_TOKEN=$(random_hex)
TOKEN_ENCRYPTION_KEY=$(random_hex)

# Empty: everything is kept in memory and gone after a restart. To keep it, name a PostgreSQL database
# (postgres://user:password@host/fuse) and let the orchestrator refuse to start without it:
DATABASE_URL=
#ORCH_REQUIRE_AUTH=true

#ORCH_ALLOWED_CIDRS=10.0.0.0/8
TEXT
  mv -f "$config.new" "$config"
  log "wrote /etc/fuse/orchestrator.env with fresh secrets"
}

install_unit() {
  if [ -f "$unit" ] && [ "$(cat "$unit")" = "$(unit_text)" ]; then return 0; fi
  mkdir -p "$(dirname "$unit")"
  unit_text >"$unit.new"
  chmod 0644 "$unit.new"
  mv -f "$unit.new" "$unit"
  systemctl daemon-reload
  changed=1
}

[ $# -eq 0 ] || die "it takes no arguments; its settings are environment variables"
[ "$(id -u)" -eq 0 ] || [ -n "$DESTDIR" ] || die "needs root: sudo ./ops/install-orchestrator.sh"
command -v systemctl >/dev/null 2>&1 || die "needs systemd (there is no systemctl)"
release_arch >/dev/null
! systemctl is-enabled --quiet orchestrator.service 2>/dev/null ||
  die "orchestrator.service (the installation beside a host agent) is enabled on this host; one per host: systemctl disable --now orchestrator, then run this again"

install_program
write_config
install_unit
systemctl enable fuse-orchestrator.service
# Both return when the orchestrator has said that it is ready.
if [ -n "$changed" ]; then systemctl restart fuse-orchestrator.service; else systemctl start fuse-orchestrator.service; fi

listen=$(setting ORCH_LISTEN)
listen=${listen:-:8080}
scheme=http
[ -z "$(setting ORCH_TLS_CERT)" ] || scheme=https
printf 'orchestrator installed and listening on %s\n\n' "$listen"
printf '  fuse connect %s://%s:%s --token %s --master\n' "$scheme" "$(public_host)" "${listen##*:}" "$(setting ORCH_AUTH_TOKEN)"
