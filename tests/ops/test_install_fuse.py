"""ops/install-fuse.sh: the command line."""

import unittest

from support import ARCH, TREE, Stage, archive, program

SCRIPT = TREE / "ops" / "install-fuse.sh"
ASSET = f"fuse-cli_Linux_{ARCH}.tar.gz"


class Installing(Stage):
    def setUp(self):
        super().setUp()
        self.releases.add("v1.2.3", **{ASSET: archive(fuse=program("cli"))})
        self.target = self.root / "programs"

    def install(self, **kwargs):
        return self.run_script(SCRIPT, FUSE_INSTALL_DIR=str(self.target), **kwargs)

    def test_installs_the_verified_program(self):
        done = self.install()
        self.assertEqual((self.target / "fuse").read_bytes(), program("cli"))
        self.assertEqual((self.target / "fuse").stat().st_mode & 0o777, 0o755)
        self.assertIn("fuse connect http://", done.stdout)
        self.assertIn("is not on your PATH", done.stderr)
        self.assertEqual(self.releases.requests, ["/latest", "/v1.2.3/checksums.txt", f"/v1.2.3/{ASSET}"])

    def test_nothing_is_installed_that_cannot_be_proved(self):
        sound = dict(self.releases.assets)
        for change in (
            lambda assets: assets.pop("/v1.2.3/checksums.txt"),
            lambda assets: assets.update({"/v1.2.3/checksums.txt": b"0  other\n"}),
            lambda assets: assets.update({f"/v1.2.3/{ASSET}": archive(fuse=program("evil"))}),
        ):
            self.releases.assets = dict(sound)
            change(self.releases.assets)
            self.install(fails=True)
            self.assertFalse((self.target / "fuse").exists())

    def test_systems_without_a_release_are_told_how_to_build(self):
        self.script(self.bin / "uname", "#!/bin/sh\necho SunOS\n")
        self.assertIn("cargo build", self.install(fails=True).stderr)

    def test_cpus_without_a_release_are_refused_before_anything_is_fetched(self):
        self.script(self.bin / "uname", '#!/bin/sh\n[ "$1" = -m ] && echo i686 || echo Linux\n')
        self.assertIn("no release for i686", self.install(fails=True).stderr)
        self.assertEqual(self.releases.requests, [])


if __name__ == "__main__":
    unittest.main()
