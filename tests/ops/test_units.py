"""ops/systemd: what systemd itself says of the units, and their command lines run as they stand."""

import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from support import BINARIES, FIRECRACKER, HOST, IMAGE, QEMU, TREE, need_image, need_programs, need_root, need_tools

UNITS = TREE / "ops" / "systemd"
HOST_UNITS = ("fc-agent.service", "fc-update.service", "fc-update.timer", "orchestrator.service")
GPU_UNITS = ("qemu-agent.service", "qemu-gpus.service", "qemu-update.service", "qemu-update.timer")
ANALYZE = shutil.which("systemd-analyze")


def unit(name):
    """The unit as key -> values; sections do not matter here."""
    values = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            values.setdefault(key, []).append(value)
    return values


class Analysed(unittest.TestCase):
    def setUp(self):
        need_tools("systemd-analyze")

    def verify(self, names, source=UNITS):
        with tempfile.TemporaryDirectory() as root:
            # Programs and files that the units name must exist in the root that is looked at.
            for path in ("usr/local/bin/orchestrator", "usr/local/bin/fc-agent", "usr/local/bin/qemu-agent",
                         "usr/share/fuse/host-agent/firecracker/fc-update.sh", "usr/share/fuse/host-agent/qemu/qemu-gpus.sh",
                         "usr/share/fuse/host-agent/qemu/qemu-update.sh"):
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch(mode=0o755)
            target = pathlib.Path(root, "etc/systemd/system")
            target.mkdir(parents=True)
            for name in names:
                shutil.copy(source / name, target)
            for base in ("network-online.target", "multi-user.target", "timers.target", "sysinit.target", "basic.target",
                         "shutdown.target", "time-set.target", "time-sync.target", "system.slice", "-.slice"):
                found = pathlib.Path("/usr/lib/systemd/system", base)
                if found.exists():
                    shutil.copy(found, target)
                else:
                    (target / base).write_text("[Unit]\n")
            done = subprocess.run(
                [ANALYZE, "verify", "--man=no", f"--root={root}", *names], capture_output=True, text=True, timeout=60
            )
            complaints = [
                line for line in (done.stdout + done.stderr).splitlines() if any(name in line for name in names)
            ]
            self.assertEqual((complaints, done.returncode), ([], 0), done.stderr)

    def test_a_host_that_runs_guests(self):
        self.verify(HOST_UNITS)

    def test_a_host_with_gpus(self):
        self.verify(GPU_UNITS)

    def test_a_host_of_its_own(self):
        self.verify(("fuse-orchestrator.service",))

    def test_verify_would_complain(self):
        with tempfile.TemporaryDirectory() as other:
            text = (UNITS / "fc-agent.service").read_text().replace("KillMode=process", "KillMode=frob")
            pathlib.Path(other, "fc-agent.service").write_text(text)
            with self.assertRaises(AssertionError):
                self.verify(("fc-agent.service",), pathlib.Path(other))

    def test_the_orchestrator_is_exposed_to_little(self):
        for name in ("orchestrator.service", "fuse-orchestrator.service"):
            done = subprocess.run(
                [ANALYZE, "security", "--offline=yes", "--threshold=40", str(UNITS / name)],
                capture_output=True, text=True, timeout=60,
            )
            level = re.search(r"exposure level.*?: ([0-9.]+)", done.stdout)
            self.assertIsNotNone(level, done.stdout + done.stderr)
            self.assertLessEqual(float(level[1]), 4.0, done.stdout)
            self.assertEqual(done.returncode, 0)

    def test_updates_come_around_four_on_mondays(self):
        timer = unit("fc-update.timer")
        other = unit("qemu-update.timer")
        self.assertEqual({key for key in timer if timer[key] != other[key]}, {"Description"})
        done = subprocess.run(
            [ANALYZE, "calendar", "--iterations=2", "--base-time=2026-01-01 00:00:00 UTC", timer["OnCalendar"][0]],
            capture_output=True, text=True, env={**os.environ, "TZ": "UTC"}, timeout=60,
        )
        self.assertIn("Mon 2026-01-05 03:30:00 UTC", done.stdout)
        self.assertIn("Mon 2026-01-12 03:30:00 UTC", done.stdout)
        self.assertEqual(timer["RandomizedDelaySec"], ["1h"])
        self.assertEqual(timer["Persistent"], ["true"])


class Said(unittest.TestCase):
    """What the other parts rely on."""

    def test_a_restart_of_the_agent_kills_no_guest(self):
        for agent in ("fc-agent.service", "qemu-agent.service"):
            self.assertEqual(unit(agent)["KillMode"], ["process"])
            # Limits of each guest are control groups below the unit's.
            self.assertEqual(unit(agent)["Delegate"], ["yes"])

    def test_the_orchestrator_beside_an_agent_starts_after_it(self):
        self.assertIn("fc-agent.service", unit("orchestrator.service")["After"][0].split())
        self.assertEqual(unit("orchestrator.service")["Conflicts"], ["fuse-orchestrator.service"])
        self.assertEqual(unit("fuse-orchestrator.service")["Conflicts"], ["orchestrator.service"])

    def test_the_two_orchestrator_units_are_confined_alike(self):
        first, second = (unit(name) for name in ("orchestrator.service", "fuse-orchestrator.service"))
        differ = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
        self.assertEqual(differ, {"Description", "After", "Conflicts", "EnvironmentFile", "RestartSec"})

    def test_a_helper_is_written_once(self):
        """What ops/lib defines, no script and no other part of it defines again."""
        libraries = [*(TREE / "ops/lib").iterdir()]
        others = [*FIRECRACKER.iterdir(), *QEMU.iterdir(), *(TREE / "ops").glob("*.sh"), *(TREE / "ops/packages").iterdir()]
        places = {}
        for script in libraries + others:
            for name in re.findall(r"^(\w+)\(\)", script.read_text(), re.M):
                places.setdefault(name, []).append(script)
        for name, scripts in places.items():
            if not set(libraries).isdisjoint(scripts):
                self.assertEqual(len(scripts), 1, f"{name}: {scripts}")
        for name in ("sha256_of", "put_program", "orchestrator_env"):
            self.assertIn(name, places)


class Executed(unittest.TestCase):
    """ExecStart in a mount and network namespace of its own, with a service manager that listens."""

    def setUp(self):
        need_root()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="fuse-unit-", dir="/var/tmp"))
        self.addCleanup(shutil.rmtree, self.work)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.notify.close)
        self.notify.bind(str(self.work / "notify"))

    def start(self, name, settings, programs, prepare=""):
        """Runs the unit's command line with what its environment file says, given as `settings`."""
        values = unit(name)
        need_programs(*programs.values())
        [file] = values["EnvironmentFile"]
        links = "\n".join(f"ln -s {BINARIES / program} /usr/local/bin/{name}" for name, program in programs.items())
        script = f"""{HOST}
        over etc /etc
        mkdir -p $(dirname {file})
        {links}
        {prepare}
        exec {values["ExecStart"][0]}"""
        assignments = values.get("Environment", []) + settings
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            "NOTIFY_SOCKET": str(self.work / "notify"),
            "WATCHDOG_USEC": "200000",
            **dict(assignment.split("=", 1) for assignment in assignments),
        }
        log = open(self.work / "log", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            ["unshare", "--mount", "--net", "bash", "-c", script], env=environment, stdout=log, stderr=log, cwd="/"
        )
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.wait()

    def heard(self, word):
        """Waits until the program says this to the service manager."""
        said = []
        while not any(word in text for text in said):
            readable, _, _ = select.select([self.notify], [], [], 30)
            self.assertTrue(readable, f"{word} was not said, only {said}; log: {(self.work / 'log').read_text()[-2000:]}")
            said.append(self.notify.recv(4096).decode())

    def lives(self, process):
        self.heard("READY=1")
        self.heard("WATCHDOG=1")
        self.heard("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        self.heard("STOPPING=1")
        self.assertEqual(process.wait(timeout=30), 0, (self.work / "log").read_text()[-2000:])

    def test_orchestrator(self):
        settings = ["ORCH_LISTEN=:8080", "ORCH_AUTH_TOKEN=t", "DATABASE_URL=sqlite:///tmp/fuse.db"]
        self.lives(self.start("orchestrator.service", settings, {"orchestrator": "orchestrator"}))

    def test_fuse_orchestrator(self):
        settings = ["ORCH_LISTEN=:8080", "ORCH_AUTH_TOKEN=t", "DATABASE_URL="]
        self.lives(self.start("fuse-orchestrator.service", settings, {"orchestrator": "orchestrator"}))

    def test_fc_agent(self):
        need_image()
        programs = {"fc-agent": "fc-agent", "firecracker": "fc-emulator"}
        settings = ["FC_AGENT_TOKEN=t", "PUBLIC_HOST=127.0.0.1"]
        self.lives(self.start("fc-agent.service", settings, programs, f"ln -s {IMAGE}/* /var/lib/fuse/"))


if __name__ == "__main__":
    unittest.main()
