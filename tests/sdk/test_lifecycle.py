"""`client.snapshots`, and draining, forking and rotating with `client.environments`."""

import fuse
from support import Case

KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"


class Guests(Case):
    """Environments on a host, with credentials."""

    env = {"TOKEN_ENCRYPTION_KEY": KEY}

    def setUp(self) -> None:
        self.host = self.agent()
        # Nothing answers there, on any network.
        self.host.guest_url = "127.0.0.1:1"
        self.register(self.host)

    def test_drain(self) -> None:
        made = self.create("t-drain")
        drained = self.client.environments.drain(made.id)
        self.assertEqual((drained.id, drained.state, drained.error), (made.id, "draining", ""))
        error = self.refused(409, "conflict", self.client.environments.drain, made.id)
        self.assertEqual(error.message, f"vm not running: vm {made.id} is draining")
        self.refused(404, "not_found", self.client.environments.drain, "x")

    def test_rotate_token(self) -> None:
        made = self.create("t-rotate-token")
        before = self.host.files["/fuse/auth-token"]
        self.client.environments.rotate_token(made.id)
        self.assertNotEqual(self.host.files["/fuse/auth-token"], before)
        self.refused(404, "not_found", self.client.environments.rotate_token, "x")

    def test_fork(self) -> None:
        made = self.create("t-fork", expose=[fuse.ExposeSpec(port=80, as_="web")])
        fork = self.client.environments.fork(made.id, fuse.ForkOptions(comment="branch"))
        self.assertNotEqual(fork.id, made.id)
        self.assertEqual((fork.state, fork.host_id), ("running", "host-1"))
        self.assertEqual([endpoint.as_ for endpoint in fork.endpoints], ["web"])
        seed = self.client.snapshots.list(vm_id=made.id)[0]
        self.assertEqual(seed.comment, "branch")
        again = self.client.environments.fork(made.id, fuse.ForkOptions(reuse_snapshot_id=seed.id))
        self.assertNotIn(again.id, (fork.id, made.id))
        self.client.environments.drain(made.id)
        error = self.refused(409, "conflict", self.client.environments.fork, made.id)
        self.assertTrue(error.message.startswith("fork requires running"))

    def test_migrate(self) -> None:
        migrate = self.client.environments.migrate
        made = self.create("t-migrate", expose=[fuse.ExposeSpec(port=80, as_="web")])
        # There is no other host, and it runs on.
        self.refused(503, "unavailable", migrate, made.id)
        kept = self.client.environments.get(made.id)
        self.assertEqual((kept.state, kept.host_id, kept.error), ("running", "host-1", ""))
        other = self.agent()
        other.guest_url = "127.0.0.1:1"
        self.register(other, "host-2")
        for options, status, code in [
            (fuse.MigrateOptions(target_host_id="host-1"), 400, "invalid_argument"),
            (fuse.MigrateOptions(lazy=True), 400, "invalid_argument"),
            (fuse.MigrateOptions(target_host_id="nowhere"), 404, "not_found"),
            (fuse.MigrateOptions(live=True), 409, "conflict"),
        ]:
            with self.subTest(options=options):
                self.refused(status, code, migrate, made.id, options)
        moved = migrate(made.id, fuse.MigrateOptions(target_host_id="host-2"))
        self.assertRegex(moved.id, r"^fuse-mig-[0-9a-f]{32}$")
        self.assertEqual((moved.state, moved.host_id), ("running", "host-2"))
        self.assertEqual((moved.task_id, moved.spec), ("t-migrate", made.spec))
        self.assertEqual([endpoint.as_ for endpoint in moved.endpoints], ["web"])
        listed = self.client.environments.list(task_id="t-migrate")
        self.assertEqual([environment.id for environment in listed], [moved.id])
        self.assertEqual(list(other.vms), [moved.id])
        self.refused(404, "not_found", migrate, "x")

    def test_snapshots(self) -> None:
        made = self.create("t-snapshots")
        first = self.client.snapshots.create(made.id)
        self.assertEqual((first.vm_id, first.state, first.kind), (made.id, "ready", "disk"))
        request = fuse.SnapshotRequest(comment="c", live=True, layer_key="k", mode="build")
        second = self.client.snapshots.create(made.id, request)
        self.assertEqual((second.kind, second.comment), ("live", "c"))
        self.assertEqual(second.parent_snapshot_id, first.id)
        self.assertEqual(self.client.snapshots.get(second.id), second)
        self.assertEqual(self.client.snapshots.list(vm_id=made.id), [second, first])
        page = self.client.snapshots.list_page(vm_id=made.id, limit=1)
        self.assertEqual(page.snapshots, [second])
        self.assertTrue(page.next_cursor)
        self.assertEqual(self.client.snapshots.resolve("k", "x86_64"), second)
        self.assertIsNone(self.client.snapshots.resolve("k", "arm64"))
        self.client.snapshots.restore(first.id)
        self.refused(409, "conflict", self.client.snapshots.delete, first.id)
        self.client.snapshots.delete(second.id)
        self.client.snapshots.delete(first.id)
        self.refused(404, "not_found", self.client.snapshots.get, first.id)
        self.assertEqual(self.host.snapshots, {})


class Stub(Case):
    """Without hosts there is nothing to copy, and without a key nothing to rotate."""

    def test_what_the_backend_cannot_do(self) -> None:
        made = self.create("t-1")
        self.refused(501, "unimplemented", self.client.snapshots.create, made.id)
        self.refused(501, "unimplemented", self.client.environments.fork, made.id)
        self.refused(501, "unimplemented", self.client.environments.migrate, made.id)
        self.refused(409, "conflict", self.client.environments.rotate_token, made.id)
        self.assertEqual(self.client.environments.drain(made.id).state, "draining")
