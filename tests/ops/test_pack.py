"""ops/dev/pack.sh: the same programs make the same release, and what it makes can be installed."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from support import ARCH, HOST, INSTALLERS, TREE, Stage, need_root, need_tools, program

PACK = TREE / "ops" / "dev" / "pack.sh"
NAMES = ("orchestrator", "fuse", "fc-agent", "qemu-agent", "fc-emulator", "fused")


class Packing(Stage):
    def setUp(self):
        super().setUp()
        need_tools("cargo", "dpkg-deb")

    def pack(self, name, umask, **env):
        programs, out = self.root / f"{name}-programs", self.root / f"{name}-out"
        programs.mkdir()
        for index, each in enumerate(NAMES):
            file = self.script(programs / each, program(each, f"{each} 1.2.3"))
            os.utime(file, (index * 1000, umask * 1000))
        environment = {**os.environ, "FUSE_VERSION": "1.2.3", "SOURCE_DATE_EPOCH": "1700000000", **env}
        subprocess.run(
            [PACK, programs, out], check=True, env=environment, capture_output=True, timeout=60,
            preexec_fn=lambda: os.umask(umask),
        )
        return out

    @staticmethod
    def digests(out):
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in out.iterdir()}

    def test_two_packings_are_the_same_bytes(self):
        first = self.pack("first", 0o022, TZ="UTC")
        second = self.pack("second", 0o077, TZ="Asia/Tokyo", LANG="de_DE.UTF-8")
        self.assertEqual(self.digests(first), self.digests(second))

        listed = dict(reversed(line.split()) for line in (first / "checksums.txt").read_text().splitlines())
        digests = self.digests(first)
        del digests["checksums.txt"]
        self.assertEqual(listed, digests, "checksums.txt names every asset")
        for asset in ("fuse", "fuse-cli", "fuse-agent"):
            self.assertIn(f"{asset}_Linux_{ARCH}.tar.gz", digests)
        self.assertIn(f"fused_Linux_{ARCH}", digests)
        for name in INSTALLERS:
            self.assertIn(name, digests)
            self.assertEqual((first / name).stat().st_mode & 0o777, 0o755)

        self.bill(json.loads((first / "fuse_sbom.cdx.json").read_text()))
        self.packages(first)
        self.installable(first)
        self.alone(first)

    def test_the_package_writes_the_first_configuration_and_keeps_it(self):
        need_root()
        [package] = self.pack("only", 0o022).glob("fuse-orchestrator_1.2.3_*.deb")
        subprocess.run(["dpkg-deb", "-e", package, self.root / "control"], check=True)
        configure = (self.root / "control/postinst").read_text()
        config = "/etc/fuse/orchestrator.env"
        # The script comes from a variable, because /tmp is another one there.
        steps = f'over etc /etc; rm -f {config}; sh -c "$0" postinst configure; cat {config}; sh -c "$0" postinst configure; cat {config}'
        done = subprocess.run(
            ["unshare", "--mount", "--net", "bash", "-c", f"{HOST}{steps}; stat -c %a {config}", configure],
            capture_output=True, text=True, timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        texts, mode = done.stdout[: -len("600\n")], done.stdout[-len("600\n") :]
        self.assertEqual((texts[: len(texts) // 2], mode), (texts[len(texts) // 2 :], "600\n"))
        self.assertRegex(
            texts, r"(?m)^ORCH_LISTEN=:8080\nORCH_AUTH_TOKEN=[0-9a-f]{64}\nTOKEN_ENCRYPTION_KEY=[0-9a-f]{64}$"
        )

    def test_the_package_restarts_the_agents_that_run(self):
        need_root()
        self.script(self.bin / "systemctl", """#!/bin/sh
            printf '%s\\n' "$*" >>"$SYSTEMCTL_DIR/calls"
            [ "$1" != is-active ] || [ -e "$SYSTEMCTL_DIR/active-$3" ]
            """)
        postinst = TREE / "ops/packages/fuse-host.postinst"
        steps = 'mount -t tmpfs none /run; mkdir -p /run/systemd/system; exec sh "$0" configure'
        for running in (["qemu-agent"], ["fc-agent", "qemu-agent"], []):
            for agent in ("fc-agent", "qemu-agent"):
                (self.calls_dir / f"active-{agent}").unlink(missing_ok=True)
            for agent in running:
                (self.calls_dir / f"active-{agent}").touch()
            self.forget_calls()
            subprocess.run(["unshare", "--mount", "bash", "-c", steps, postinst], env=self.env, check=True, timeout=60)
            restarts = [call for call in self.calls() if call.startswith("restart")]
            self.assertEqual(restarts, [f"restart {agent}" for agent in running])

    def bill(self, bill):
        names = {component["name"] for component in bill["components"]}
        self.assertLessEqual({"fuse-orchestrator", "fuse-host-agent", "tokio", "rustls"}, names)
        self.assertTrue({"proptest", "insta", "fuse-testkit"}.isdisjoint(names), "tests are not shipped")

    def packages(self, out):
        [package] = out.glob("fuse-orchestrator_1.2.3_*.deb")
        root = self.root / "unpacked"
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        self.assertEqual((root / "usr/bin/orchestrator").read_bytes(), program("orchestrator", "orchestrator 1.2.3"))
        unit = (root / "usr/lib/systemd/system/fuse-orchestrator.service").read_text()
        self.assertIn("\nExecStart=/usr/bin/orchestrator\n", unit)
        # A host that has the package takes its programs from there.
        [package] = out.glob("fuse-host_1.2.3_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, self.dest], check=True)
        self.put("/var/lib/fuse/vmlinux.bin", b"", 0o644)
        scripts = self.at("/usr/share/fuse/host-agent/firecracker")
        self.run_script(scripts / "fc-agent.sh", "install-service")
        self.assertIn("\nExecStart=/usr/bin/fc-agent\n", self.at("/etc/systemd/system/fc-agent.service").read_text())
        self.assertIn("package manager", self.run_script(scripts / "fc-update.sh", fails=True).stderr)
        self.assertEqual(self.releases.requests, [])

    def installable(self, out):
        for file in out.iterdir():
            self.releases.assets[f"/v1.2.3/{file.name}"] = file.read_bytes()
        target = self.root / "programs"
        self.run_script(TREE / "ops" / "install-fuse.sh", FUSE_INSTALL_DIR=str(target))
        self.assertEqual((target / "fuse").read_bytes(), program("fuse", "fuse 1.2.3"))
        self.run_script(TREE / "ops" / "install-orchestrator.sh")
        self.assertEqual(self.at("/usr/local/bin/orchestrator").read_bytes(), program("orchestrator", "orchestrator 1.2.3"))

    def alone(self, out):
        """Each installer of a release in a directory of its own, from a file and through a pipe."""
        for number, piped in enumerate((False, True)):
            self.env["DESTDIR"] = str(self.root / f"alone-{number}")
            self.dest, target = self.root / f"alone-{number}", self.root / f"programs-{number}"
            self.install_alone(out / "install-fuse.sh", piped, FUSE_INSTALL_DIR=str(target))
            self.assertEqual((target / "fuse").read_bytes(), program("fuse", "fuse 1.2.3"))
            self.install_alone(out / "install-orchestrator.sh", piped)
            self.assertEqual(
                self.at("/usr/local/bin/orchestrator").read_bytes(), program("orchestrator", "orchestrator 1.2.3")
            )
            self.assertEqual(
                self.at("/etc/systemd/system/fuse-orchestrator.service").read_text(),
                (TREE / "ops/systemd/fuse-orchestrator.service").read_text(),
            )
            self.assertEqual(self.settings("/etc/fuse/orchestrator.env")["ORCH_LISTEN"], ":8080")
            self.assert_secret("/etc/fuse/orchestrator.env")

    def install_alone(self, installer, piped, **env):
        with tempfile.TemporaryDirectory(dir=self.root) as empty:
            if not piped:
                return self.run_script(shutil.copy(installer, empty), cwd=empty, **env)
            with installer.open() as script:
                return self.run_script("bash", cwd=empty, stdin=script, **env)


class Checkout(Stage):
    def test_an_installer_without_its_library_says_what_to_do(self):
        for name in INSTALLERS:
            done = self.run_script(shutil.copy(TREE / "ops" / name, self.cwd), fails=True)
            self.assertEqual(
                done.stderr,
                f"error: ops/lib/release.sh is missing: run ops/{name} from a checkout, or take the {name} of a release\n",
            )
            with (TREE / "ops" / name).open() as script:
                self.assertEqual(self.run_script("bash", stdin=script, fails=True).stderr, done.stderr)
        self.assertEqual((self.everything(), self.calls(), self.releases.requests), ({}, [], []))


if __name__ == "__main__":
    unittest.main()
