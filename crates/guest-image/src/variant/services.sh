# shellcheck shell=sh
# Run once, in the root file system that is being made.
#
# There is no systemd in a guest: podman must ask it for nothing, neither for groups nor for timers. Containers stay in
# the group that they are started from, whose bounds are those of everything that runs for users.
mkdir -p /etc/containers /usr/local/bin
cat >/etc/containers/containers.conf <<'CONF'
[containers]
cgroups = "disabled"
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
env = ["DISABLE_HC_SYSTEMD=true"]
[network]
network_backend = "netavark"
CONF
ln -s /usr/bin/docker-compose /usr/local/bin/docker-compose
for tool in podman crun conmon docker-compose iptables /usr/lib/podman/netavark /usr/lib/podman/aardvark-dns; do
  command -v "$tool" >/dev/null || { echo "it has no $tool" >&2; exit 1; }
done
