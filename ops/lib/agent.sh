# shellcheck shell=bash disable=SC2154
# What the scripts of a host's agent share, whichever agent it is. Needs release.sh, config.sh and host.sh. The script that
# reads this has said: `prefix` of the agent's variables, its `home` (`state` is where that is staged), `settings_of_sudo`
# (its own variables that come along to root), `agent_env` (those that units give the agent), `tree` (the checkout).

# default_bin <program>: a program that a package put into /usr/bin is left to the package manager.
default_bin() { if [ -x "$DESTDIR/usr/bin/$1" ]; then printf '/usr/bin/%s' "$1"; else printf '/usr/local/bin/%s' "$1"; fi; }

# check_paths <path>...: they become part of units and commands.
check_paths() {
  local path
  for path in "$@"; do
    [[ $path =~ ^/[A-Za-z0-9._/-]+$ ]] || die "'$path' must be an absolute path of letters, digits and . _ / -"
  done
}

# as_root "$@": the same script again, as root; settings come along.
as_root() {
  if [ "$(id -u)" -eq 0 ] || [ -n "$DESTDIR" ]; then return 0; fi
  command -v sudo >/dev/null 2>&1 || die "needs root and there is no sudo; run it as root"
  exec sudo --preserve-env="$settings_of_sudo,FUSED_BIN_SRC,ORCH_BIN,ORCH_BIN_SRC,DATABASE_URL,PUBLIC_HOST,FUSE_REPO,FUSE_RELEASE_URL,FUSE_LATEST_URL,FUSE_ORCH_SERVICE,FUSE_ORCH_BIN,GH_TOKEN,VERSION" \
    -- "$0" "$@"
}

# ensure_token: the secret that opens this host's agent; made once.
ensure_token() {
  if [ -z "$(agent_token)" ]; then
    { [ ! -f "$state/.env" ] || cat "$state/.env"; printf '%s_AGENT_TOKEN=%s\n' "$prefix" "$(random_hex)"; } |
      new_file "$state/.env"
    log "made a token for this host's agent in $home/.env"
  fi
  chmod 0600 "$state/.env"
}

agent_token() { setting "$state/.env" "${prefix}_AGENT_TOKEN"; }

# agent_scheme: https once this host's agent has a certificate.
agent_scheme() { if [ -n "$(setting "$state/.env" "${prefix}_AGENT_TLS_CERT")" ]; then printf https; else printf http; fi; }

# agent_near <port>: the agent as this host itself reaches it; a certificate names the host, hardly 127.0.0.1.
agent_near() {
  if [ "$(agent_scheme)" = https ]; then printf 'https://%s:%s' "$(public_host)" "$1"; else printf 'http://127.0.0.1:%s' "$1"; fi
}

# trust_agent: lets curl know the agent by its own certificate.
trust_agent() {
  [ "$(agent_scheme)" = https ] || return 0
  CURL_CA_BUNDLE=$(setting "$state/.env" "${prefix}_AGENT_TLS_CERT")
  export CURL_CA_BUNDLE
}

# install_certificate <unit>: one that this host signs itself, for the address at which others reach it; made once, and
# again in its last 30 days. Prints it.
install_certificate() {
  local own=$home/agent.crt key=$home/agent.key cert
  cert=$(setting "$state/.env" "${prefix}_AGENT_TLS_CERT")
  if [ -n "$cert" ] && { [ "$cert" != "$own" ] || openssl x509 -checkend 2592000 -noout -in "$DESTDIR$cert" >/dev/null; }; then
    log "keeping $cert"
  else
    make_certificate "$1" "$own" "$key"
    [ -n "$cert" ] || { cat "$state/.env"; printf '%s_AGENT_TLS_CERT=%s\n%s_AGENT_TLS_KEY=%s\n' "$prefix" "$own" "$prefix" "$key"; } |
      new_file "$state/.env"
    cert=$own
    [ ! -f "$units/$1" ] || systemctl restart "$1"
    log "the agent speaks TLS now, and nothing else. Add what follows to the file that ORCH_AGENT_CA names and restart the"
    log "orchestrator; give it this host's address with https://, as FIRECRACKER_BASE_URL or by registering the host again"
  fi
  cat "$DESTDIR$cert"
}

# make_certificate <name> <certificate> <key>
make_certificate() {
  local host kind
  command -v openssl >/dev/null || die "openssl is missing: apt-get install openssl"
  host=$(public_host) host=${host#[} host=${host%]}
  case $host in *:*) kind=IP ;; *[!0-9.]*) kind=DNS ;; *) kind=IP ;; esac
  ensure_token
  (umask 077 && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 -subj "/CN=$1" \
    -addext "subjectAltName=$kind:$host" -addext basicConstraints=critical,CA:FALSE \
    -keyout "$DESTDIR$3.new" -out "$DESTDIR$2.new" 2>/dev/null) || die "openssl made no certificate for $host"
  mv -f "$DESTDIR$3.new" "$DESTDIR$3"
  mv -f "$DESTDIR$2.new" "$DESTDIR$2"
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

# uninstall_agent <program> <updater> <unit>... [--purge]: the agent; with --purge also its guests, and all that it kept
# for them.
uninstall_agent() {
  local program=$1 updater=$2 agent_units=() elsewhere=() name path
  shift 2
  while [ $# -gt 0 ] && [[ $1 = *.service ]]; do agent_units+=("$1"); shift; done
  # Settings may keep some of it elsewhere; that is named, and whoever chose the place removes it.
  for name in IMAGES_DIR SNAPSHOTS_DIR "${prefix}_JAILER_DIR"; do
    path=$(setting "$state/.env" "$name")
    case $path in "$home"/* | '' | [!/]*) ;; *) elsewhere+=("$path") ;; esac
  done
  if is_purge "$@"; then
    [ ! -e "$state" ] || [ -n "$(agent_token)" ] ||
      die "$home has no token of this host's agent in .env, so it may be somebody else's: remove it by hand"
    if [ -x "$DESTDIR$program" ]; then
      [ ! -e "$state" ] || end_guests "$program" "${agent_units[0]}"
    elif compgen -G "$state/agent-state/vms/*" >/dev/null; then
      die "$program is missing, and only it can end the guests of this host: install it again (${0##*/} install-service), then run this again"
    fi
    remove_units "$updater.timer" "$updater.service" "${agent_units[@]}"
    purge "$home" "$program"
  else
    remove_units "${agent_units[@]}"
    stays "$home" "$program"
    log "guests, snapshots and images are in $home; --purge ends and removes them, too"
  fi
  stays "${elsewhere[@]}"
}

# end_guests <program> <unit>: stops the agent's service, powers its guests off and takes their network away.
end_guests() {
  if [ -f "$units/$2" ]; then systemctl stop "$2"; fi
  (load_settings; export "${agent_env[@]}"; "$DESTDIR$1" stop-vms)
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

find_fused() {
  local packaged=$DESTDIR/usr/lib/fuse/fused
  [ ! -x "$packaged" ] || FUSED_BIN_SRC=${FUSED_BIN_SRC:-$packaged}
  find_program fused "${FUSED_BIN_SRC:-}" "$home/fused" "fused_Linux_$(release_arch)" ''
}

# read_bake_options [--refresh] [VARIANT...]: puts into the array bake_options what that is to `image build`.
read_bake_options() {
  bake_options=()
  local word
  for word in "$@"; do
    case $word in
      --refresh) bake_options+=(--refresh) ;;
      '' | *[!a-z]*) die "usage: ${0##*/} [--refresh] [VARIANT...]" ;;
      *) bake_options+=(--variant "$word") ;;
    esac
  done
}

# bake_image <agent> [option...]: what guests boot, with the guest agent that is in place.
bake_image() {
  find_agent
  find_fused
  mkdir -p "$state"
  "$DESTDIR$1" image build --out "$state" --fused "$state/fused" "${@:2}"
}

# install_updater <name>: the service and the timer of that name.
install_updater() {
  mkdir -p "$state"
  install_unit "$1.service"
  install_unit "$1.timer"
  systemctl enable --now "$1.timer"
  log "updates come every Monday around 04:00 UTC; at once: systemctl start $1"
}

# What each agent needs on its host: program|package with apt|package with dnf
agent_needs='
curl|curl|curl
tar|tar|tar
awk|mawk|gawk
ip|iproute2|iproute
nft|nftables|nftables
mkfs.ext4|e2fsprogs|e2fsprogs
mmdebstrap|mmdebstrap|mmdebstrap
lz4|lz4|lz4
zstd|zstd|zstd
xz|xz-utils|xz
'

# install_missing <needs>: installs the packages of the programs that are missing, those above and lines of the same
# form, and ends if one is missing still.
install_missing() {
  local needs=$agent_needs$1 manager=none program apt dnf packages=() missing=()
  PATH=$PATH:/usr/sbin:/sbin
  if command -v apt-get >/dev/null 2>&1; then manager=apt
  elif command -v dnf >/dev/null 2>&1; then manager=dnf
  fi
  while IFS='|' read -r program apt dnf; do
    [ -n "$program" ] || continue
    command -v "$program" >/dev/null 2>&1 && continue
    if [ $manager = dnf ]; then packages+=("$dnf"); else packages+=("$apt"); fi
  done <<<"$needs"

  if [ ${#packages[@]} -gt 0 ]; then
    log "installing ${packages[*]}"
    case $manager in
      apt)
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates "${packages[@]}" >/dev/null ;;
      dnf) dnf install -y -q ca-certificates "${packages[@]}" ;;
      *) die "neither apt nor dnf here; install these by hand and run again: ca-certificates ${packages[*]}" ;;
    esac
  fi

  while IFS='|' read -r program _; do
    [ -z "$program" ] || command -v "$program" >/dev/null 2>&1 || missing+=("$program")
  done <<<"$needs"
  [ ${#missing[@]} -eq 0 ] || die "still missing after the installation: ${missing[*]}"
}
