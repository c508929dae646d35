"""`client.environments`: create, read, list, destroy, exec."""

import base64
import json
from datetime import datetime, timezone

import fuse
from support import Case


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Lifecycle(Case):
    def test_create_get_destroy(self) -> None:
        before = datetime.now(timezone.utc)
        made = self.create("t-1", spec=fuse.Spec(cpus=2, ram_mb=2048, storage_gb=10, region="eu"))
        self.assertEqual((made.id, made.task_id), ("fuse-t-1", "t-1"))
        self.assertEqual(made.state, fuse.STATE_RUNNING)
        self.assertEqual(made.spec, fuse.Spec(cpus=2, ram_mb=2048, storage_gb=10, region="eu"))
        self.assertEqual((made.host_id, made.error, made.endpoints, made.health), ("", "", [], None))
        self.assertEqual(made.egress, fuse.EgressStatus(mode="direct"))
        # The two clocks are one, but what is stored has microseconds.
        self.assertLess(abs((made.created_at - before).total_seconds()), 60)
        self.assertGreaterEqual(made.updated_at, made.created_at)

        self.assertEqual(self.client.environments.get(made.id), made)
        self.assertEqual(self.client.environments.list(task_id="t-1"), [made])

        self.client.environments.destroy(made.id)
        for call in (self.client.environments.get, self.client.environments.destroy):
            error = self.refused(404, "not_found", call, made.id)
            self.assertTrue(fuse.is_not_found(error))
            self.assertEqual(error.message, "vm fuse-t-1 not found")
        # The task may be given to a new environment.
        self.assertEqual(self.create("t-1").id, made.id)

    def test_every_field_of_a_create(self) -> None:
        manifest = {"machine": {"env": {"TOKEN": {"secret": "api"}}}}
        made = self.create(
            "t-full",
            spec=fuse.Spec(
                cpus=1,
                ram_mb=512,
                storage_gb=4,
                region="eu",
                arch="x86_64",
                max_runtime_seconds=600,
                idle_timeout_seconds=60,
                image="base",
                huge_pages=True,
            ),
            manifest_inline=encoded(json.dumps(manifest)),
            secrets={"api": "hunter2hunter2"},
            startup_script="echo hello",
            files={"/srv/a.txt": encoded("a")},
            gateway_url="https://gateway.example",
            gateway_token="not-to-be-seen",
            expose=[fuse.ExposeSpec(port=80, as_="web"), fuse.ExposeSpec(port=53, protocol="udp")],
            healthcheck=fuse.HealthcheckSpec(
                http=fuse.HealthcheckHttp(port=80, path="/up"), interval_seconds=10, timeout_seconds=2
            ),
            egress=fuse.EgressSpec(mode="direct"),
            desktop=fuse.DesktopSpec(width=1280, height=800, wm="openbox"),
        )
        self.assertEqual(made.spec.arch, "amd64")
        self.assertEqual((made.spec.image, made.spec.huge_pages), ("base", True))
        self.assertNotIn("hunter2", made.model_dump_json())

    def test_ids_that_are_not_host_names(self) -> None:
        made = self.create("Ünsafe task/../x")
        self.assertRegex(made.id, r"^fuse-[a-z0-9-]+-[0-9a-f]{8}$")
        self.assertEqual(made.task_id, "Ünsafe task/../x")
        self.assertEqual(self.client.environments.list(task_id=made.task_id), [made])
        # The SDK escapes what it puts into a path, once; a slash does not make another route.
        for name in ("a/b", "a%2Fb", "ä", "a?b", "a b"):
            self.refused(404, "not_found", self.client.environments.get, name)

    def test_a_task_has_one_environment(self) -> None:
        made = self.create("t-1")
        error = self.refused(409, "conflict", self.create, "t-1")
        self.assertTrue(fuse.is_conflict(error))
        self.assertIn("task already assigned", error.message)
        self.assertEqual(error.details["vm_id"], made.id)


class Listing(Case):
    def test_pages(self) -> None:
        ids = [self.create(f"t-{n}").id for n in range(5)]
        page = self.client.environments.list_page(limit=2)
        self.assertEqual([e.id for e in page.environments], ids[:2])
        # The row that a cursor names may be gone.
        self.client.environments.destroy(ids[1])
        page = self.client.environments.list_page(limit=2, cursor=page.next_cursor)
        self.assertEqual([e.id for e in page.environments], ids[2:4])
        page = self.client.environments.list_page(limit=2, cursor=page.next_cursor)
        self.assertEqual([e.id for e in page.environments], ids[4:])
        self.assertIsNone(page.next_cursor)

    def test_a_list_walks_all_pages(self) -> None:
        ids = sorted(self.create(f"t-{n}").id for n in range(205))
        self.assertEqual([e.id for e in self.client.environments.list()], ids)
        # 200 is the most that a page holds, and 50 what it holds unless told.
        self.assertEqual(len(self.client.environments.list_page(limit=1000).environments), 200)
        self.assertEqual(len(self.client.environments.list_page().environments), 50)

    def test_filters(self) -> None:
        self.create("t-1")
        listed = self.client.environments.list
        self.assertEqual([e.task_id for e in listed(state=fuse.STATE_RUNNING)], ["t-1"])
        self.assertEqual(listed(state=fuse.STATE_DRAINING), [])
        self.assertEqual(listed(state="no-such-state"), [])
        self.assertEqual(listed(host_id="h"), [])
        self.assertEqual(listed(task_id="t-1", state=fuse.STATE_DRAINING), [])

    def test_a_cursor_that_is_none(self) -> None:
        error = self.refused(
            400, "invalid_argument", self.client.environments.list_page, cursor="not-a-cursor"
        )
        self.assertEqual(error.message, "invalid pagination cursor")


class Refusals(Case):
    def test_what_is_not_valid(self) -> None:
        http = fuse.HealthcheckHttp(port=80)
        for fields, message in [
            ({"spec": fuse.Spec(cpus=-1)}, "cpus"),
            ({"spec": fuse.Spec(gpus=-1)}, "spec.gpus must not be negative"),
            ({"spec": fuse.Spec(arch="sparc")}, "arch"),
            ({"spec": fuse.Spec(labels={"-x": "y"})}, 'spec.labels: invalid label key "-x"'),
            ({"spec": fuse.Spec(idle_timeout_seconds=59)}, "idle_timeout"),
            ({"spec": fuse.Spec(gpu_profile="1g.10gb")}, "spec.gpu_profile requires spec.gpus >= 1"),
            ({"healthcheck": fuse.HealthcheckSpec()}, "healthcheck"),
            ({"healthcheck": fuse.HealthcheckSpec(http=http, exec=["true"])}, "healthcheck"),
            ({"desktop": fuse.DesktopSpec(width=100, height=800)}, "desktop"),
            ({"expose": [fuse.ExposeSpec(port=0)]}, "expose"),
            ({"expose": [fuse.ExposeSpec(port=80), fuse.ExposeSpec(port=80)]}, "expose"),
            ({"egress": fuse.EgressSpec(mode="proxy")}, "egress"),
            ({"files": {"/fuse/token": encoded("x")}}, "/fuse"),
            ({"files": {"/srv/x": "not base64"}}, "/srv/x"),
            ({"manifest_inline": "not base64"}, "manifest"),
        ]:
            with self.subTest(fields=fields):
                error = self.refused(400, "invalid_argument", self.create, "t-1", **fields)
                self.assertTrue(fuse.is_invalid_argument(error))
                self.assertIn(message, error.message)
        self.refused(400, "invalid_argument", self.create, "")

    def test_secrets_that_the_manifest_wants(self) -> None:
        manifest = {"machine": {"env": {n: {"secret": n.lower()} for n in ("B", "A", "C")}}}
        error = self.refused(
            400,
            "invalid_argument",
            self.create,
            "t-1",
            manifest_inline=encoded(json.dumps(manifest)),
            secrets={"c": "value-that-stays-unsaid"},
        )
        self.assertTrue(error.message.startswith("secrets validation failed: "), error)
        self.assertLess(error.message.index('"a"'), error.message.index('"b"'))
        self.assertNotIn("stays-unsaid", error.message)

    def test_too_large(self) -> None:
        files = {"/srv/big": encoded("x" * (512 * 1024 + 1))}
        self.refused(413, "payload_too_large", self.create, "t-1", files=files)
        error = self.refused(413, "payload_too_large", self.create, "t-1", startup_script="x" * (1 << 20))
        self.assertEqual(
            error.message, "request body exceeds the 1048576 byte limit for this endpoint"
        )

    def test_what_no_host_can_take(self) -> None:
        pinned = fuse.Spec(host_id="nowhere")
        error = self.refused(404, "not_found", self.create, "t-1", spec=pinned)
        self.assertEqual(error.message, 'spec.host_id: host "nowhere" is not registered')
        for spec in (fuse.Spec(gpus=1), fuse.Spec(labels={"disk": "nvme"})):
            error = self.refused(503, "unavailable", self.create, "t-1", spec=spec)
            self.assertTrue(fuse.is_unavailable(error))
        self.assertEqual(self.client.environments.list(), [])

    def test_what_the_backend_cannot_do(self) -> None:
        made = self.create("t-1")
        command = fuse.ExecRequest(cmd=["true"])
        error = self.refused(501, "unimplemented", self.client.environments.exec, made.id, command)
        self.assertEqual(error.message, "exec not supported by provider")
        proxied = fuse.EgressSpec(mode="proxy", provider="mock")
        self.refused(501, "unimplemented", self.create, "t-2", egress=proxied)


class OnAHost(Case):
    def test_a_guest_that_answers(self) -> None:
        agent = self.agent()
        self.register(agent)
        expose = [fuse.ExposeSpec(port=80, as_="web"), fuse.ExposeSpec(port=53, protocol="udp")]
        made = self.create("t-1", expose=expose, files={"/srv/a.txt": encoded("a")})
        self.assertEqual((made.host_id, made.url), ("host-1", "203.0.113.1:19551"))
        web, dns = made.endpoints
        self.assertEqual((web.as_, web.port, web.url), ("web", 80, "203.0.113.1:21000"))
        self.assertIn(web.protocol, ("", "tcp"))
        self.assertEqual((dns.as_, dns.port, dns.protocol), (None, 53, "udp"))
        self.assertEqual(agent.files["/srv/a.txt"], b"a")

        command = self.client.environments.exec
        argv = fuse.ExecRequest(cmd=["echo", "a b"], timeout_ms=1500)
        self.assertEqual(command(made.id, argv), fuse.ExecResult(stdout="echo a b"))
        self.assertEqual(agent.commands[-1]["timeout_ms"], 1500)
        shell = command(made.id, fuse.ExecRequest(shell="exit 3"))
        self.assertEqual(shell, fuse.ExecResult(exit_code=3, stdout="sh -lc exit 3", stderr="warned"))

        self.client.environments.destroy(made.id)
        self.assertEqual(agent.vms, {})

    def test_exec_without_a_guest_to_run_in(self) -> None:
        command = fuse.ExecRequest(cmd=["true"])
        self.refused(404, "not_found", self.client.environments.exec, "fuse-nope", command)

    def test_a_script_that_fails(self) -> None:
        self.register(self.agent())
        for status, phase in ((3, "run"), (90, "build")):
            script = f"exit {status}"
            error = self.refused(400, "invalid_argument", self.create, "t-1", startup_script=script)
            self.assertEqual(error.details, {"exit_code": str(status), "phase": phase})
            self.assertIn("warned", error.message)
        self.assertEqual(self.client.environments.list(), [])

    def test_a_host_that_cannot_boot(self) -> None:
        agent = self.agent()
        self.register(agent)
        agent.on_create = lambda _: (500, "no such kernel, said hunter2hunter2")
        error = self.refused(
            500, "internal", self.create, "t-1", secrets={"api": "hunter2hunter2"}
        )
        self.assertIn("no such kernel, said [REDACTED]", error.message)
        self.assertEqual(self.client.environments.list(), [])

    def test_no_room(self) -> None:
        self.register(self.agent(), capacity=fuse.HostCapacity(vm_count=1))
        self.create("t-1")
        error = self.refused(503, "unavailable", self.create, "t-2")
        self.assertTrue(error.message.startswith("no host has sufficient capacity"), error)
