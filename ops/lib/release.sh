# shellcheck shell=bash
# Fetching release assets, and refusing every one that cannot be proved to be what the release holds.

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
