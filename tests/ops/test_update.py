"""The updaters of both agents: one tag, everything verified first, the old programs back when the new ones do not start."""

import unittest

from support import ARCH, FIRECRACKER, QEMU, Stage, archive, program

ORCHESTRATOR = "/usr/local/bin/orchestrator"


def agent(text, bakes=True):
    return f"#!/bin/sh\n# {text}\necho \"{text} $1\" >>\"$SYSTEMCTL_DIR/agent\"\n{'' if bakes else '[ $1 != image ]'}\n".encode()


class Updating:
    """What is true of each; a class for each says what it is called there."""

    def setUp(self):
        super().setUp()
        self.agent = f"/usr/local/bin/{self.name}-agent"
        self.fused, self.version = f"{self.home}/fused", f"{self.home}/.{self.name}-version"
        self.put(self.agent, agent("old"))
        self.put(self.fused, program("old fused"))
        self.put(ORCHESTRATOR, program("old orchestrator"))
        self.enable(f"{self.name}-agent")
        self.enable("orchestrator")
        self.publish("v1.2.3", "new")

    def publish(self, tag, text, bakes=True):
        assets = {
            f"fuse-agent_Linux_{ARCH}.tar.gz": archive(**{f"{self.name}-agent": agent(text, bakes)}),
            f"fused_Linux_{ARCH}": program(f"{text} fused"),
            f"fuse_Linux_{ARCH}.tar.gz": archive(orchestrator=program(f"{text} orchestrator")),
        }
        self.releases.add(tag, **assets)

    def update(self, *args, **kwargs):
        return self.run_script(self.scripts / f"{self.name}-update.sh", *args, **kwargs)

    def with_orchestrator(self, *args, **kwargs):
        return self.update(*args, FUSE_ORCH_SERVICE="orchestrator.service", **kwargs)

    def programs(self):
        return [self.at(path).read_bytes() for path in (self.agent, self.fused, ORCHESTRATOR)]

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
        self.assertEqual(self.restarts(), [f"restart {self.name}-agent.service"])
        self.assertIn("new image\n", (self.calls_dir / "agent").read_text())
        self.assertEqual(self.at(self.version).read_text(), "v1.2.3\n")

    def test_the_same_tag_again_does_nothing(self):
        self.update()
        self.forget_calls()
        self.assertIn("v1.2.3 is installed", self.update().stderr)
        self.assertEqual(self.calls(), [])
        self.update(**{f"{self.name.upper()}_FORCE": "1", f"{self.name.upper()}_SKIP_REBAKE": "1"})
        self.assertEqual(self.restarts(), [f"restart {self.name}-agent.service"])

    def test_the_orchestrator_comes_along_when_its_unit_is_named(self):
        self.with_orchestrator()
        self.expect("new", "new")
        self.assertEqual(self.restarts(), [f"restart {self.name}-agent.service", "restart orchestrator.service"])

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
        self.releases.add("v1.2.3", **{f"fuse-agent_Linux_{ARCH}.tar.gz": archive(**{f"{self.name}-agent": b"#!/bin/false\n"})})
        self.assertIn("does not run here", self.update(fails=True).stderr)
        self.expect("old", "old")

    def test_an_agent_that_does_not_start_is_undone(self):
        (self.calls_dir / f"broken-{self.name}-agent").touch()
        done = self.update(fails=True)
        self.assertIn("the update was undone", done.stderr)
        self.assertEqual(self.at(self.agent).read_bytes(), agent("old"))
        self.assertEqual(self.restarts(), [f"restart {self.name}-agent.service"] * 2)
        self.assertFalse(self.at(self.version).exists())

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

    def test_programs_of_packages_are_left_to_the_package_manager(self):
        self.put(f"/usr/bin/{self.name}-agent", agent("packaged"))
        self.assertIn("comes from a package", self.update(fails=True).stderr)
        self.expect("old", "old")

    def test_its_timer_gets_this_hosts_paths(self):
        directory = {f"{self.name.upper()}_DIR": "/srv/here"}
        self.run_script(self.scripts / f"{self.name}-agent.sh", "install-updater", **directory)
        units = self.at("/etc/systemd/system")
        service = (units / f"{self.name}-update.service").read_text()
        self.assertIn(f"\nExecStart={self.scripts}/{self.name}-update.sh\n", service)
        self.assertIn(f"\nEnvironmentFile=-/srv/here/.{self.name}-updater.env\n", service)
        self.assertNotIn("/var/lib/fuse", service)
        self.assertEqual(self.calls()[-1], f"enable --now {self.name}-update.timer")
        self.run_script(self.scripts / f"{self.name}-agent.sh", "uninstall-updater")
        self.assertEqual([path.name for path in units.iterdir()], [])


class Firecracker(Updating, Stage):
    name, home, scripts = "fc", "/var/lib/fuse", FIRECRACKER


class Gpus(Updating, Stage):
    name, home, scripts = "qemu", "/var/lib/fuse-gpu", QEMU

    def test_an_image_with_cuda_is_not_left_with_the_driver_of_another_kernel(self):
        """It has to be made again, which only a host with NVIDIA's repository can: here it is refused, and undone."""
        cuda = f"{self.home}/rootfs-cuda.qcow2"
        self.put(cuda, b"image", 0o644)
        self.put(f"{self.home}/image.json", '{"kernel_version": "6.1.0-2"}', 0o644)
        self.assertIn("nothing says which driver", self.update().stderr)
        self.put(f"{cuda}.driver", b"550 6.1.0-2\n", 0o644)
        self.publish("v1.3.0", "newer")
        self.update("--to", "v1.3.0")
        self.put(f"{cuda}.driver", b"550 6.1.0-1\n", 0o644)
        self.publish("v1.4.0", "newest")
        done = self.update("--to", "v1.4.0", fails=True)
        self.assertIn("qemu-bake-cuda-rootfs: error: there is no", done.stderr)
        self.expect("newer", "old")


if __name__ == "__main__":
    unittest.main()
