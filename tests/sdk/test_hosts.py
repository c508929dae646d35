"""`client.hosts`: registration and its probe, reads, cordon, removal."""

import fuse
from support import AGENT_TOKEN, Case


class Hosts(Case):
    def test_registered_read_and_removed(self) -> None:
        agent = self.agent()
        host = self.register(agent, region="eu", labels={"disk": "nvme"})
        self.assertEqual((host.id, host.url, host.region), ("host-1", agent.url, "eu"))
        self.assertEqual((host.backend, host.state, host.labels), ("firecracker", "active", {"disk": "nvme"}))
        # Sizes were left to the probe; the number of VMs is policy and never probed.
        probed = fuse.HostCapacity(cpus=16, ram_mb=65536, storage_gb=500, vm_count=4, arch="amd64")
        self.assertEqual(host.capacity, probed)
        self.assertEqual(host.allocated, fuse.HostCapacity())
        self.assertEqual(host.warnings, [])
        self.assertIsNotNone(host.last_seen)

        self.assertEqual(self.client.hosts.get("host-1"), host)
        self.assertEqual(self.client.hosts.list(), [host])
        self.assertNotIn(AGENT_TOKEN, str(self.client.hosts._t.request("GET", "/v1/hosts").text))

        self.client.hosts.deregister("host-1")
        self.assertEqual(self.client.hosts.list(), [])
        for call in ("get", "cordon", "uncordon", "deregister"):
            error = self.refused(404, "not_found", getattr(self.client.hosts, call), "host-1")
            self.assertTrue(fuse.is_not_found(error))
            self.assertEqual(error.message, "host host-1 not found")

    def test_pages(self) -> None:
        agent = self.agent()
        for name in ("c", "a", "b"):
            self.register(agent, name)
        page = self.client.hosts.list_page(limit=2)
        self.assertEqual([h.id for h in page.hosts], ["a", "b"])
        page = self.client.hosts.list_page(limit=2, cursor=page.next_cursor)
        self.assertEqual(([h.id for h in page.hosts], page.next_cursor), (["c"], None))
        self.refused(400, "invalid_argument", self.client.hosts.list_page, cursor="%")

    def test_declared_over_probed(self) -> None:
        capacity = fuse.HostCapacity(cpus=32, ram_mb=1024, storage_gb=10, vm_count=2)
        host = self.register(self.agent(), capacity=capacity)
        self.assertEqual((host.capacity.cpus, host.capacity.ram_mb), (32, 1024))
        self.assertEqual(host.warnings, ["declared cpus (32) exceeds probed host capacity (16)"])
        # Warnings are an answer to the registration, not a property of the host.
        self.assertEqual(self.client.hosts.get("host-1").warnings, [])

    def test_an_agent_that_refuses_the_token(self) -> None:
        agent = self.agent()
        request = fuse.RegisterHostRequest(
            id="host-1", url=agent.url, token="wrong", capacity=fuse.HostCapacity(vm_count=1)
        )
        error = self.refused(502, "unauthorized", self.client.hosts.register, request)
        self.assertTrue(fuse.is_unauthorized(error))
        self.assertEqual(
            error.message,
            f"host agent at {agent.url} rejected the token. "
            "this must be its FC_AGENT_TOKEN, not the orchestrator token",
        )

    def test_an_agent_that_is_away(self) -> None:
        agent = self.agent()
        agent.stop()
        error = self.refused(502, "internal", self.register, agent)
        self.assertTrue(
            error.message.startswith(
                "could not probe host capacity and cpus/ram_mb/storage_gb were not all declared explicitly: "
            )
        )
        capacity = fuse.HostCapacity(cpus=4, ram_mb=4096, storage_gb=40, vm_count=4)
        host = self.register(agent, capacity=capacity)
        self.assertEqual(len(host.warnings), 1)
        self.assertTrue(host.warnings[0].startswith(f"could not verify host agent at {agent.url} ("))
        self.assertTrue(host.warnings[0].endswith("; registering with declared capacity"))

    def test_what_is_not_valid(self) -> None:
        agent = self.agent()
        capacity = fuse.HostCapacity(vm_count=1)
        for fields, message in [
            ({"host_id": ""}, "id and url are required"),
            ({"backend": "xen"}, 'backend must be "firecracker" or "qemu"'),
            ({"labels": {"a b": "c"}}, 'labels: invalid label key "a b"'),
            ({"capacity": fuse.HostCapacity()}, "vm_count must be positive"),
            ({"capacity": capacity.model_copy(update={"gpus": 1})}, 'gpus > 0 requires backend "qemu"'),
            ({"capacity": capacity.model_copy(update={"arch": "arm64"})}, 'declared arch "arm64" contradicts'),
        ]:
            with self.subTest(fields=fields):
                error = self.refused(400, "invalid_argument", self.register, agent, **fields)
                self.assertTrue(fuse.is_invalid_argument(error))
                self.assertIn(message, error.message)
        self.assertEqual(self.client.hosts.list(), [])

    def test_allocation_and_removal(self) -> None:
        self.register(self.agent())
        for task in ("t-2", "t-1"):
            self.create(task, spec=fuse.Spec(cpus=2, ram_mb=1024, storage_gb=5))
        allocated = fuse.HostCapacity(cpus=4, ram_mb=2048, storage_gb=10, vm_count=2)
        self.assertEqual(self.client.hosts.get("host-1").allocated, allocated)
        error = self.refused(409, "conflict", self.client.hosts.deregister, "host-1")
        self.assertTrue(fuse.is_conflict(error))
        self.assertEqual(
            error.message,
            "host still has vms assigned: host host-1 still has vm fuse-t-1 assigned",
        )
        self.assertEqual(error.details["vm_count"], "2")
        self.client.environments.destroy("fuse-t-1")
        self.client.environments.destroy("fuse-t-2")
        self.assertEqual(self.client.hosts.get("host-1").allocated, fuse.HostCapacity())

    def test_cordoned_hosts_take_nothing_new(self) -> None:
        self.register(self.agent())
        made = self.create("t-1")
        self.client.hosts.cordon("host-1")
        self.assertEqual(self.client.hosts.get("host-1").state, "cordoned")
        self.refused(503, "unavailable", self.create, "t-2")
        self.assertEqual(self.client.environments.get(made.id).state, fuse.STATE_RUNNING)
        self.client.hosts.uncordon("host-1")
        self.assertEqual(self.create("t-2").host_id, "host-1")

    def test_placement(self) -> None:
        self.register(self.agent(), "a", region="eu")
        self.register(self.agent(), "b", region="us", labels={"disk": "nvme"})
        self.assertEqual(self.create("t-1", spec=fuse.Spec(region="eu")).host_id, "a")
        self.assertEqual(self.create("t-2", spec=fuse.Spec(labels={"disk": "nvme"})).host_id, "b")
        self.assertEqual(self.create("t-3", spec=fuse.Spec(host_id="a")).host_id, "a")
        self.assertEqual([e.task_id for e in self.client.environments.list(host_id="b")], ["t-2"])
