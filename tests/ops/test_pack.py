"""ops/dev/pack.sh: the same programs make the same release, and what it makes can be installed."""

import hashlib
import json
import os
import shutil
import subprocess
import unittest

from support import ARCH, TREE, Stage, program

PACK = TREE / "ops" / "dev" / "pack.sh"
NAMES = ("orchestrator", "fuse", "fc-agent", "fc-emulator", "fused")


class Packing(Stage):
    def setUp(self):
        super().setUp()
        for tool in ("cargo", "dpkg-deb"):
            if not shutil.which(tool):
                print(f"\nSKIP tests/ops pack: {tool} is not installed", flush=True)
                self.skipTest(f"{tool} is not installed")

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

        self.bill(json.loads((first / "fuse_sbom.cdx.json").read_text()))
        self.packages(first)
        self.installable(first)

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


if __name__ == "__main__":
    unittest.main()
