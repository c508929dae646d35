#!/usr/bin/env bash
# Packs built programs: ops/dev/pack.sh <directory of programs> <output directory>
# The same programs, FUSE_VERSION and SOURCE_DATE_EPOCH give the same bytes, whoever packs them, where and when.
set -euo pipefail
: "${FUSE_VERSION:?}" "${SOURCE_DATE_EPOCH:?}"
programs=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
cd "$(dirname "$0")/../.."
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
case $(uname -m) in
  x86_64) cpu=x86_64 deb=amd64 ;;
  aarch64) cpu=arm64 deb=arm64 ;;
  *) printf 'pack: no releases for %s\n' "$(uname -m)" >&2; exit 1 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find "$out" -mindepth 1 -maxdepth 1 \( -name 'fuse*' -o -name 'install-*.sh' \) -delete

# alone <script> <file>: the script with everything in it that it reads from "$ops" in a checkout.
alone() {
  awk '
    function put(file,   line, end) {
      while ((end = getline line <file) > 0) if (line !~ /^# shellcheck shell=/) print line
      if (end < 0) { print "pack: cannot read " file >"/dev/stderr"; exit 1 }
      close(file)
    }
    /^# >>> in a checkout$/, /^# <<< in a checkout$/ { next }
    /^# shellcheck source=/ { next }
    /^ *(\.|cat) "\$ops\/[a-z\/.-]*"$/ {
      file = $2
      gsub(/"/, "", file)
      sub(/^\$ops/, "ops", file)
      if ($1 == ".") put(file)
      else { print "  cat <<\047PACKED\047"; put(file); print "PACKED" }
      next
    }
    { print }' "$1" >"$2"
  ! grep -Hn "[$]ops\b" "$2" >&2 || return 1
  chmod 0755 "$2"
}

# bundle <asset> <program>...: programs and what belongs to every copy of them.
bundle() {
  local asset=$1 dir=$work/$1
  shift
  mkdir "$dir"
  install -m 0755 "${@/#/$programs/}" "$dir"
  install -m 0644 README.md LICENSE CHANGELOG.md "$dir"
  (cd "$dir" && tar --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - -- *) |
    gzip -9n >"$out/$asset"
}

# libc <program>...: the dependency on the oldest C library that all of them start with.
libc() {
  local version
  version=$(objdump -T "${@/#/$programs/}" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1) || true
  printf 'libc6%s' "${version:+ (>= ${version#GLIBC_})}"
}

# package <name> <description> <depends>: from the tree that is in $work/<name>.
package() {
  local root=$work/$1
  install -d -m 0755 "$root/DEBIAN" "$root/usr/share/doc/$1"
  install -m 0644 LICENSE "$root/usr/share/doc/$1/copyright"
  cat >"$root/DEBIAN/control" <<TEXT
Package: $1
Version: $FUSE_VERSION
Architecture: $deb
Maintainer: The Fuse maintainers <fuse@localhost>
Installed-Size: $(find "$root" -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
Depends: $3
Section: admin
Priority: optional
Description: $2
TEXT
  for script in postinst prerm postrm; do
    [ ! -f "ops/packages/$1.$script" ] || alone "ops/packages/$1.$script" "$root/DEBIAN/$script"
  done
  # gzip, because what xz writes depends on how many threads it takes.
  dpkg-deb --root-owner-group -Zgzip -z9 --build "$root" "$out/${1}_${FUSE_VERSION}_$deb.deb" >/dev/null
}

bundle "fuse_Linux_$cpu.tar.gz" orchestrator
bundle "fuse-cli_Linux_$cpu.tar.gz" fuse
bundle "fuse-agent_Linux_$cpu.tar.gz" fc-agent qemu-agent fc-emulator
install -m 0755 "$programs/fused" "$out/fused_Linux_$cpu"
for script in install-fuse.sh install-orchestrator.sh; do alone "ops/$script" "$out/$script"; done

root=$work/fuse-cli
install -d -m 0755 "$root/usr/bin"
install -m 0755 "$programs/fuse" "$root/usr/bin"
package fuse-cli 'command line of Fuse, microVMs behind an API' "$(libc fuse)"

root=$work/fuse-orchestrator
install -d -m 0755 "$root/usr/bin" "$root/usr/lib/systemd/system"
install -m 0755 "$programs/orchestrator" "$root/usr/bin"
sed 's|/usr/local/bin/|/usr/bin/|' ops/systemd/fuse-orchestrator.service >"$root/usr/lib/systemd/system/fuse-orchestrator.service"
package fuse-orchestrator 'control plane of Fuse, microVMs behind an API' "$(libc orchestrator)"

root=$work/fuse-host
install -d -m 0755 "$root/usr/bin" "$root/usr/lib/fuse"
install -m 0755 "$programs/fc-agent" "$programs/qemu-agent" "$programs/fc-emulator" "$root/usr/bin"
install -m 0755 "$programs/fused" "$root/usr/lib/fuse"
for dir in host-agent/firecracker host-agent/qemu ops/lib ops/systemd; do
  install -d -m 0755 "$root/usr/share/fuse/$dir"
  for file in "$dir"/*; do
    if [ -x "$file" ]; then mode=0755; else mode=0644; fi
    install -m "$mode" "$file" "$root/usr/share/fuse/$dir"
  done
done
package fuse-host 'host agent of Fuse, runs microVMs on this machine' \
  "$(libc fc-agent qemu-agent fc-emulator), ca-certificates, curl, e2fsprogs, iproute2, lz4, mmdebstrap, nftables, procps, xz-utils, zstd"

python3 ops/dev/sbom.py "$FUSE_VERSION" >"$out/fuse_sbom.cdx.json"
chmod 0644 "$out"/*.tar.gz "$out"/*.deb "$out"/*.json
(cd "$out" && sha256sum fuse* install-*.sh >checksums.txt)
printf 'packed in %s:\n' "$out" >&2
cat "$out/checksums.txt" >&2
