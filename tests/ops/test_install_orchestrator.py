"""ops/install-orchestrator.sh: the control plane on a host of its own."""

import re
import shutil
import unittest

from support import ARCH, TREE, Releases, Stage, archive, program

SCRIPT = TREE / "ops" / "install-orchestrator.sh"
PROGRAM, CONFIG = "/usr/local/bin/orchestrator", "/etc/fuse/orchestrator.env"
UNIT = "/etc/systemd/system/fuse-orchestrator.service"
ASSET = f"fuse_Linux_{ARCH}.tar.gz"


class Installing(Stage):
    def setUp(self):
        super().setUp()
        self.source = self.script(self.root / "given", program("given"))

    def install(self, **kwargs):
        return self.run_script(SCRIPT, **kwargs)

    def test_installs_starts_and_prints_the_line_to_connect_with(self):
        done = self.install(ORCH_BIN_SRC=str(self.source))
        settings = self.settings(CONFIG)
        token = settings["ORCH_AUTH_TOKEN"]
        self.assertEqual(
            done.stdout,
            "orchestrator installed and listening on :8080\n\n"
            f"  fuse connect http://10.9.8.7:8080 --token {token} --master\n",
        )
        for secret in (token, settings["TOKEN_ENCRYPTION_KEY"]):
            self.assertRegex(secret, r"^[0-9a-f]{64}$")
        self.assertNotEqual(token, settings["TOKEN_ENCRYPTION_KEY"])
        self.assertEqual((settings["ORCH_LISTEN"], settings["DATABASE_URL"]), (":8080", ""))
        self.assertIn("\n#ORCH_REQUIRE_AUTH=true\n", self.at(CONFIG).read_text())
        self.assert_secret(CONFIG)
        self.assertEqual(self.at(PROGRAM).read_bytes(), program("given"))
        self.assertEqual(self.at(PROGRAM).stat().st_mode & 0o777, 0o755)
        self.assertEqual(
            self.calls(),
            [
                "is-enabled --quiet orchestrator.service",
                "daemon-reload",
                "enable fuse-orchestrator.service",
                "restart fuse-orchestrator.service",
            ],
        )

    def test_running_it_again_changes_nothing(self):
        first = self.install(ORCH_BIN_SRC=str(self.source))
        before = self.everything()
        self.forget_calls()
        again = self.install(ORCH_BIN_SRC=str(self.source))
        self.assertEqual(again.stdout, first.stdout)
        self.assertEqual(self.everything(), before)
        self.assertEqual(self.calls()[1:], ["enable fuse-orchestrator.service", "start fuse-orchestrator.service"])

    def test_a_configuration_is_never_replaced(self):
        text = "ORCH_LISTEN=0.0.0.0:9000\nORCH_AUTH_TOKEN=mine\nORCH_TLS_CERT=/x\n"
        self.put(CONFIG, text, 0o644)
        done = self.install(ORCH_BIN_SRC=str(self.source))
        self.assertEqual(self.at(CONFIG).read_text(), text)
        self.assert_secret(CONFIG)
        self.assertIn("fuse connect https://10.9.8.7:9000 --token mine --master", done.stdout)

    def test_the_given_program_comes_before_the_local_one_and_that_before_a_release(self):
        self.releases.add("v1.2.3", **{ASSET: archive(orchestrator=program("released"))})
        self.install()
        self.assertEqual(self.at(PROGRAM).read_bytes(), program("released"))
        self.script(self.cwd / "orchestrator", program("local"))
        self.install()
        self.assertEqual(self.at(PROGRAM).read_bytes(), program("local"))
        self.install(ORCH_BIN_SRC=str(self.source))
        self.assertEqual(self.at(PROGRAM).read_bytes(), program("given"))

    def test_a_release_by_tag_takes_program_and_checksums_of_that_tag(self):
        self.releases.add("v1.0.0", **{ASSET: archive(orchestrator=program("old"))})
        self.install(VERSION="v1.0.0")
        self.assertEqual(self.releases.requests, ["/v1.0.0/checksums.txt", f"/v1.0.0/{ASSET}"])
        done = self.install(VERSION="../../x", fails=True)
        self.assertIn("is not a release tag", done.stderr)

    def test_a_given_program_that_cannot_run_is_refused(self):
        done = self.install(ORCH_BIN_SRC=str(self.root / "nothing"), fails=True)
        self.assertIn("is not an executable file", done.stderr)
        self.assertFalse(self.at(PROGRAM).exists())

    def test_refuses_beside_the_other_installation(self):
        self.enable("orchestrator")
        done = self.install(ORCH_BIN_SRC=str(self.source), fails=True)
        self.assertIn("systemctl disable --now orchestrator", done.stderr)
        self.assertEqual(self.everything(), {})

    def test_what_uninstalling_leaves_it_names_and_a_purge_leaves_nothing(self):
        self.install(ORCH_BIN_SRC=str(self.source))
        self.put("/var/lib/private/fuse-orchestrator/fuse.db", b"", 0o600)
        done = self.run_script(SCRIPT, "uninstall")
        self.assertFalse(self.at(UNIT).exists())
        for path in (PROGRAM, CONFIG):
            self.assertIn(f"stays: {path}\n", done.stderr)
            self.assertTrue(self.at(path).exists())
        self.run_script(SCRIPT, "uninstall", "--purge")
        self.assertEqual(self.everything(), {})
        self.assertIn("uninstall [--purge]", self.run_script(SCRIPT, "remove", fails=True).stderr)

    def test_a_start_that_fails_is_not_called_listening(self):
        (self.calls_dir / "broken-fuse-orchestrator").touch()
        done = self.install(ORCH_BIN_SRC=str(self.source), fails=True)
        self.assertNotIn("listening", done.stdout)


class Verifying(Stage):
    """Every way in which a release can be wrong: nothing is replaced, nothing is restarted."""

    def setUp(self):
        super().setUp()
        self.put(PROGRAM, program("before"))
        self.releases.add("v1.2.3", **{ASSET: archive(orchestrator=program("new"))})

    def refused(self, text):
        done = self.run_script(SCRIPT, fails=True)
        self.assertIn(text, done.stderr)
        self.assertEqual(self.at(PROGRAM).read_bytes(), program("before"))
        self.assertEqual([call for call in self.calls() if re.match("start|restart|enable", call)], [])
        self.assertFalse(self.at(CONFIG).exists())

    def sums(self, text):
        self.releases.assets["/v1.2.3/checksums.txt"] = text.encode()

    def test_the_sound_release_is_installed(self):
        self.run_script(SCRIPT)
        self.assertEqual(self.at(PROGRAM).read_bytes(), program("new"))

    def test_no_checksums(self):
        self.releases.faults["checksums.txt"] = 404
        self.refused("checksums.txt answered HTTP 404")

    def test_empty_checksums(self):
        self.sums("")
        self.refused("checksums.txt is missing or empty")

    def test_no_entry(self):
        self.sums(f"{'0' * 64}  other.tar.gz\n")
        self.refused(f"no entry for {ASSET}")

    def test_an_entry_of_a_longer_or_shorter_name_does_not_count(self):
        self.sums(f"{'0' * 64}  x{ASSET}\n{'0' * 64}  {ASSET}.sig\n{'0' * 64}  {ASSET[:-1]}\n")
        self.refused(f"no entry for {ASSET}")

    def test_another_digest(self):
        self.sums(f"{'0' * 64}  {ASSET}\n")
        self.refused("does not match checksums.txt")

    def test_changed_archive(self):
        self.releases.assets[f"/v1.2.3/{ASSET}"] = archive(orchestrator=program("evil"))
        self.refused("does not match checksums.txt")

    def test_truncated_archive(self):
        self.releases.faults[ASSET] = "truncate"
        self.refused("did not finish")

    def test_no_archive(self):
        self.releases.faults[ASSET] = 404
        self.refused("answered HTTP 404")

    def test_redirect_to_another_host(self):
        other = Releases()
        self.addCleanup(other.close)
        other.assets = dict(self.releases.assets)
        self.releases.elsewhere = other.url
        for name in (ASSET, "checksums.txt", "latest"):
            self.releases.faults = {name: "redirect"}
            self.refused("redirects to another host")
        self.assertEqual(other.requests, [])

    def test_an_archive_without_the_program(self):
        self.releases.add("v1.2.3", **{ASSET: archive(readme=b"x")})
        self.refused("holds no orchestrator")

    def test_an_entry_in_binary_notation_counts(self):
        text = self.releases.assets["/v1.2.3/checksums.txt"].decode()
        self.sums(text.replace("  ", " *"))
        self.run_script(SCRIPT)

    def test_no_tool_to_verify_with(self):
        for tool in ("bash", "cat", "uname", "mktemp", "curl", "sed", "head", "rm", "awk", "cut", "id", "mkdir", "env",
                     "dirname"):
            (self.bin / tool).symlink_to(shutil.which(tool, path="/usr/bin:/bin"))
        self.env["PATH"] = str(self.bin)
        self.refused("neither sha256sum nor shasum")


if __name__ == "__main__":
    unittest.main()
