"""What the scripts of host agents take along when they start themselves again as root."""

import re
import subprocess
import unittest

from support import FIRECRACKER, QEMU, TREE, Stage

# Read where nobody becomes root, or made by the scripts themselves.
NOT_ALONG = {"DESTDIR", "FUSE_GPU_E2E", "FUSE_GPU_KIND", "FUSE_E2E_PORT", "FUSE_E2E_REMOTE", "QEMU_BASE_URL", "QEMU_TOKEN",
             "FIRECRACKER_BASE_URL", "FIRECRACKER_TOKEN", "FIRECRACKER"}


class Root(Stage):
    def setUp(self):
        super().setUp()
        self.script(self.bin / "id", "#!/bin/sh\necho 1000\n")
        self.script(self.bin / "sudo", '#!/bin/sh\necho "$@"\n')
        del self.env["DESTDIR"]

    def along(self, script, *args):
        done = subprocess.run([script, *args], env=self.env, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        names, command = re.fullmatch(r"--preserve-env=(\S+) -- (.*)\n", done.stdout).groups()
        self.assertEqual(command, " ".join([str(script), *args]))
        return set(names.split(","))

    def read(self, *directories):
        """The variables that have a default in the scripts: those are settings."""
        texts = [file.read_text() for directory in directories for file in directory.glob("*.sh")]
        return {name for text in texts for name in re.findall(r"\$\{([A-Z][A-Z0-9_]+):?-", text)} - NOT_ALONG

    def test_every_setting_of_a_script_comes_along(self):
        for directory, script, args in ((FIRECRACKER, "fc-agent.sh", ["env"]), (QEMU, "qemu-agent.sh", ["env"])):
            missing = self.read(directory) - self.along(directory / script, *args)
            self.assertEqual(missing, set(), script)

    def test_so_do_those_that_the_shared_parts_read(self):
        both = self.along(FIRECRACKER / "fc-agent.sh", "env") & self.along(QEMU / "qemu-agent.sh", "env")
        self.assertEqual(self.read(TREE / "ops/lib") - both - {"ORCH_LISTEN"}, set())


if __name__ == "__main__":
    unittest.main()
