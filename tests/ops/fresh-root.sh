#!/usr/bin/env bash
# `make fresh-root`: a Debian that has just been made, with nothing in it but what the quickstart asks for, comes from a
# clone to a running environment by the commands of the quickstart. As root; 10 to 15 minutes, most of them a release build.
# It is this machine's release of Debian, from this machine's package sources, in namespaces of its own.
#   FUSE_FRESH_TARGET=<dir>   begin with a copy of this target directory instead of compiling every dependency
#   FUSE_FRESH_KEEP=1         leave the root file system where it is
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo 'SKIP tests/ops/fresh-root: making a root file system and namespaces needs root'; exit 0; }
for tool in mmdebstrap unshare ip nft git; do
  command -v "$tool" >/dev/null || { echo "SKIP tests/ops/fresh-root: $tool is not installed"; exit 0; }
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/fuse-fresh-XXXXXX")
root=$work/root net=fuse-fresh table=fuse_fresh
cleanup() {
  nft delete table inet "$table" 2>/dev/null || true
  ip netns delete "$net" 2>/dev/null || true
  ! mountpoint -q "$root/root/.cargo" || umount "$root/root/.cargo"
  ! mountpoint -q "$root/root/.rustup" || umount "$root/root/.rustup"
  [ -n "${FUSE_FRESH_KEEP:-}" ] || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

step() { printf '\n-- fresh root: %s\n' "$*"; }

step 'a Debian with what the quickstart asks for: git and make'
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
# shellcheck disable=SC2016 # the names are apt's
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' | sort -u)
mmdebstrap --quiet --variant=minbase --include=ca-certificates,git,make "$release" "$root" - <<<"$sources"
for setting in /etc/apt/apt.conf.d/*; do
  case ${setting##*/} in 01autoremove* | docker-* | 20* | 50* | 70*) ;; *) cp "$setting" "$root/etc/apt/apt.conf.d/" ;; esac
done
cp -L /etc/resolv.conf "$root/etc/resolv.conf"

step 'and a Rust toolchain: this machine'"'"'s, with the crates that it has fetched'
mkdir -p "$root/root/.cargo" "$root/root/.rustup" "$work/upper" "$work/scratch"
mount -t overlay overlay -o "lowerdir=${CARGO_HOME:-$HOME/.cargo},upperdir=$work/upper,workdir=$work/scratch" "$root/root/.cargo"
mount --bind -o ro "${RUSTUP_HOME:-$HOME/.rustup}" "$root/root/.rustup"

step 'this commit, where its clone comes from'
git bundle create --quiet "$root/srv/fuse.bundle" HEAD
printf '[url "/srv/fuse.bundle"]\n\tinsteadOf = https://github.com/folsomintel/fuse\n' >"$root/root/.gitconfig"

step 'a network of its own'
ip netns delete "$net" 2>/dev/null || true
ip netns add "$net"
ip link add fuse-fresh0 type veth peer name eth0 netns "$net"
ip addr add 10.231.0.1/30 dev fuse-fresh0
ip link set fuse-fresh0 up
ip -n "$net" addr add 10.231.0.2/30 dev eth0
ip -n "$net" link set lo up
ip -n "$net" link set eth0 up
ip -n "$net" route add default via 10.231.0.1
sysctl --quiet --write net.ipv4.ip_forward=1
nft -f - <<RULES
table inet $table {
  chain out { type nat hook postrouting priority srcnat; ip saddr 10.231.0.0/30 masquerade; }
}
RULES

[ -z "${FUSE_FRESH_TARGET:-}" ] || cp -a "$FUSE_FRESH_TARGET" "$root/srv/target"

# What the kernel gives a machine that boots: /proc, /sys, /dev. Then what its owner types.
cat >"$root/srv/machine" <<'MACHINE'
set -euo pipefail
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=0755 dev /dev
mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; mknod -m 666 /dev/full c 1 7
mknod -m 666 /dev/random c 1 8; mknod -m 666 /dev/urandom c 1 9; mknod -m 666 /dev/tty c 5 0
mkdir /dev/pts /dev/shm /dev/net
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx; ln -s /proc/self/fd /dev/fd
mount -t tmpfs shm /dev/shm
mknod -m 666 /dev/net/tun c 10 200
[ -z "$KVM" ] || mknod -m 666 /dev/kvm c 10 232
hostname fresh
cd /root
began=$SECONDS
git clone https://github.com/folsomintel/fuse && cd fuse
[ ! -d /srv/target ] || mv /srv/target target
make run
echo "-- fresh root: from the clone to the environment in $((SECONDS - began)) s"
began=$SECONDS
make run | tee /srv/again
grep -q "$(uname -s)" /srv/again
echo "-- fresh root: the second time in $((SECONDS - began)) s"
fuse=target/release/fuse
"$fuse" environment list
"$fuse" environment exec fuse-hello -- cat /workspace/hello.txt
"$fuse" doctor --machine --no-boot || true
"$fuse" local down --purge --yes
MACHINE

step 'make run'
kvm=''
[ ! -e /dev/kvm ] || kvm=1
ip netns exec "$net" unshare --mount --pid --uts --ipc --fork --kill-child \
  chroot "$root" /usr/bin/env -i KVM="$kvm" HOME=/root TERM=dumb \
  PATH=/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash /srv/machine
step 'all of it works'
