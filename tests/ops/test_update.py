"""fc-update.sh: one tag, everything verified first, the old programs back when the new ones do not start."""

import unittest

from support import ARCH, FIRECRACKER, Stage, archive, program

AGENT, ORCHESTRATOR, FUSED = "/usr/local/bin/fc-agent", "/usr/local/bin/orchestrator", "/var/lib/fuse/fused"
VERSION = "/var/lib/fuse/.fc-version"


def agent(text, bakes=True):
    return f"#!/bin/sh\n# {text}\necho \"{text} $1\" >>\"$SYSTEMCTL_DIR/agent\"\n{'' if bakes else '[ $1 != image ]'}\n".encode()


class Updating(Stage):
    def setUp(self):
        super().setUp()
        self.put(AGENT, agent("old"))
        self.put(FUSED, program("old fused"))
        self.put(ORCHESTRATOR, program("old orchestrator"))
        self.enable("fc-agent")
        self.enable("orchestrator")
        self.publish("v1.2.3", "new")

    def publish(self, tag, text, bakes=True):
        assets = {
            f"fuse-agent_Linux_{ARCH}.tar.gz": archive(**{"fc-agent": agent(text, bakes)}),
            f"fused_Linux_{ARCH}": program(f"{text} fused"),
            f"fuse_Linux_{ARCH}.tar.gz": archive(orchestrator=program(f"{text} orchestrator")),
        }
        self.releases.add(tag, **assets)

    def update(self, *args, **kwargs):
        return self.run_script(FIRECRACKER / "fc-update.sh", *args, **kwargs)

    def with_orchestrator(self, *args, **kwargs):
        return self.update(*args, FUSE_ORCH_SERVICE="orchestrator.service", **kwargs)

    def programs(self):
        return [self.at(path).read_bytes() for path in (AGENT, FUSED, ORCHESTRATOR)]

    def expect(self, agent_is, orchestrator_is):
        self.assertEqual(
            self.programs(),
            [agent(agent_is), program(f"{agent_is} fused"), program(f"{orchestrator_is} orchestrator")],
        )

    def restarts(self):
        return [call for call in self.calls() if call.startswith("restart")]

    def test_updates_the_host_and_bakes_before_the_restart(self):
        self.update()
        self.expect("new", "old")
        self.assertEqual(self.restarts(), ["restart fc-agent.service"])
        self.assertIn("new image\n", (self.calls_dir / "agent").read_text())
        self.assertEqual(self.at(VERSION).read_text(), "v1.2.3\n")

    def test_the_same_tag_again_does_nothing(self):
        self.update()
        self.forget_calls()
        self.assertIn("v1.2.3 is installed", self.update().stderr)
        self.assertEqual(self.calls(), [])
        self.update(FC_FORCE="1", FC_SKIP_REBAKE="1")
        self.assertEqual(self.restarts(), ["restart fc-agent.service"])

    def test_the_orchestrator_comes_along_when_its_unit_is_named(self):
        self.with_orchestrator()
        self.expect("new", "new")
        self.assertEqual(self.restarts(), ["restart fc-agent.service", "restart orchestrator.service"])

    def test_one_bad_asset_leaves_all_programs_as_they_are(self):
        for name in (f"fuse-agent_Linux_{ARCH}.tar.gz", f"fused_Linux_{ARCH}", f"fuse_Linux_{ARCH}.tar.gz"):
            for fault in ("truncate", 404, "change"):
                with self.subTest(asset=name, fault=fault):
                    self.publish("v1.2.3", "new")
                    self.releases.faults = {} if fault == "change" else {name: fault}
                    if fault == "change":
                        self.releases.assets[f"/v1.2.3/{name}"] += b"x"
                    self.with_orchestrator(fails=True)
                    self.expect("old", "old")
                    self.assertEqual(self.calls(), [])

    def test_missing_checksums_leave_all_programs_as_they_are(self):
        del self.releases.assets["/v1.2.3/checksums.txt"]
        self.with_orchestrator(fails=True)
        self.expect("old", "old")
        self.assertEqual(self.calls(), [])

    def test_a_program_that_does_not_run_here_is_not_installed(self):
        self.releases.add("v1.2.3", **{f"fuse-agent_Linux_{ARCH}.tar.gz": archive(**{"fc-agent": b"#!/bin/false\n"})})
        self.assertIn("does not run here", self.update(fails=True).stderr)
        self.expect("old", "old")

    def test_an_agent_that_does_not_start_is_undone(self):
        (self.calls_dir / "broken-fc-agent").touch()
        done = self.update(fails=True)
        self.assertIn("the update was undone", done.stderr)
        self.assertEqual(self.at(AGENT).read_bytes(), agent("old"))
        self.assertEqual(self.restarts(), ["restart fc-agent.service"] * 2)
        self.assertFalse(self.at(VERSION).exists())

    def test_an_orchestrator_that_does_not_start_is_undone(self):
        (self.calls_dir / "broken-orchestrator").touch()
        self.with_orchestrator(fails=True)
        self.assertEqual(self.at(ORCHESTRATOR).read_bytes(), program("old orchestrator"))
        self.assertEqual(self.restarts()[-2:], ["restart orchestrator.service"] * 2)

    def test_an_image_that_cannot_be_built_leaves_the_old_programs(self):
        self.publish("v1.2.3", "new", bakes=False)
        self.assertIn("could not be built", self.update(fails=True).stderr)
        self.expect("old", "old")
        self.assertEqual(self.restarts(), [])

    def test_back_and_forth_by_tag(self):
        self.publish("v1.3.0", "newer")
        self.with_orchestrator("--to", "v1.3.0")
        self.expect("newer", "newer")
        self.with_orchestrator("--rollback")
        self.expect("old", "old")
        self.with_orchestrator("--rollback", fails=True)
        self.expect("old", "old")
        self.with_orchestrator("--to", "v1.2.3")
        self.expect("new", "new")
        self.update("--to", "main", fails=True)


if __name__ == "__main__":
    unittest.main()
