"""The scripts that operators type against real programs: an orchestrator, an agent, real guests, in namespaces."""

import os
import pathlib
import subprocess
import unittest

from support import FIRECRACKER, TREE

BINARIES = TREE / "target" / "debug"
IMAGE = pathlib.Path(os.environ.get("FUSE_IMAGE_DIR", pathlib.Path.home() / ".cache" / "fuse" / "image"))

# A host of its own: what is written below these directories is gone with the namespace.
HOST = f"""set -e
mount -t tmpfs none /tmp
ip link set lo up
over() {{ mkdir -p /tmp/$1/up /tmp/$1/work; mount -t overlay -o lowerdir=$2,upperdir=/tmp/$1/up,workdir=/tmp/$1/work none $2; }}
over lib /var/lib; over local /usr/local/bin
ln -s {BINARIES}/fc-agent /usr/local/bin/fc-agent
ln -s {BINARIES}/fc-emulator /usr/local/bin/firecracker
mkdir -p /var/lib/fuse
ln -s {IMAGE}/* /var/lib/fuse/
cd {FIRECRACKER}
"""


class Live(unittest.TestCase):
    def setUp(self):
        reason = ""
        if os.geteuid() != 0:
            reason = "needs root (mount and network namespaces)"
        elif not all((BINARIES / name).exists() for name in ("orchestrator", "fc-agent", "fc-emulator")):
            reason = "the programs are not built (cargo build --workspace --bins)"
        elif not (IMAGE / "vmlinux.bin").exists():
            reason = "there is no guest image (ops/dev/image.sh)"
        if reason:
            print(f"\nSKIP tests/ops live: {reason}", flush=True)
            self.skipTest(reason)

    def on_a_host(self, script):
        """Runs it as root of a host without network; processes that it leaves end with it."""
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "bash", "-c", HOST + script],
            env={"PATH": os.environ["PATH"], "PUBLIC_HOST": "127.0.0.1"}, capture_output=True, text=True, timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        return done

    def test_the_life_of_an_environment_on_hosts_in_memory(self):
        done = self.on_a_host(f"ORCH_BIN_SRC={BINARIES}/orchestrator ./fc-e2e.sh")
        self.assertIn("all of it works", done.stderr)

    def test_a_real_guest_and_the_agents_commands(self):
        """The smoke test, which creates, uploads, runs, snapshots, restores and deletes; then the agent is restarted with
        a guest on it, and the host is taken down."""
        done = self.on_a_host(
            f"""
            ./fc-agent.sh start
            ./fc-agent-test.sh
            token=$(sed -n 's/^FC_AGENT_TOKEN=//p' /var/lib/fuse/.env)
            ask() {{ curl -sS --fail -H "Authorization: Bearer $token" "$@"; }}
            ask -H 'Content-Type: application/json' -d '{{"name":"stays","memory_mb":256}}' http://127.0.0.1:8090/v1/vm
            ./fc-agent.sh restart
            ask -H 'Content-Type: application/json' -d '{{"cmd":["echo","still here"]}}' http://127.0.0.1:8090/v1/vm/stays/exec
            ./fc-down.sh
            """
        )
        self.assertIn("ok: restore brings the file back", done.stderr)
        self.assertIn("c3RpbGwgaGVyZQo=", done.stdout, "the guest outlives the agent")
        self.assertIn("1 VMs stopped", done.stdout)


if __name__ == "__main__":
    unittest.main()
