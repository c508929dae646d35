"""The scripts that operators type against real programs: an orchestrator, an agent, real guests, in namespaces."""

import os
import subprocess
import unittest

from support import BINARIES, FIRECRACKER, HOST, IMAGE, need_image, need_programs, need_root

PROGRAMS = f"""ln -s {BINARIES}/fc-agent /usr/local/bin/fc-agent
ln -s {BINARIES}/fc-emulator /usr/local/bin/firecracker
mkdir -p /var/lib/fuse
ln -s {IMAGE}/* /var/lib/fuse/
cd {FIRECRACKER}
"""


class Live(unittest.TestCase):
    def setUp(self):
        need_root()
        need_programs("orchestrator", "fc-agent", "fc-emulator")
        need_image()

    def on_a_host(self, script):
        """Runs it as root of a host without network; processes that it leaves end with it."""
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "bash", "-c", HOST + PROGRAMS + script],
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
            systemctl() {{ :; }} && export -f systemctl
            ./fc-agent.sh uninstall-service --purge
            [ ! -e /var/lib/fuse ] && [ ! -e /usr/local/bin/fc-agent ]
            """
        )
        self.assertIn("ok: restore brings the file back", done.stderr)
        self.assertIn("c3RpbGwgaGVyZQo=", done.stdout, "the guest outlives the agent")
        self.assertIn("1 VMs stopped", done.stdout)


if __name__ == "__main__":
    unittest.main()
