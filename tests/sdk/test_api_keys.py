"""`client.api_keys`: making, using, listing, revoking; what keys may not do."""

import shutil
import tempfile
import unittest

import fuse
from support import Case, Orchestrator


class ApiKeys(Case):
    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, directory)
        cls.env = {"DATABASE_URL": f"sqlite://{directory}/fuse.db"}
        super().setUpClass()

    def test_a_key_from_its_creation_to_its_end(self) -> None:
        made = self.client.api_keys.create("ci")
        self.assertRegex(made.id, r"^ak_[0-9a-f]{16}$")
        self.assertRegex(made.key, r"^fuse_sk_[A-Za-z0-9_-]{43}$")
        self.assertEqual((made.label, made.last_used_at, made.revoked_at), ("ci", None, None))
        unlabelled = self.client.api_keys.create()
        listed = self.client.api_keys.list()
        self.assertEqual([key.id for key in listed[:2]], [unlabelled.id, made.id])
        self.assertEqual(listed[1], fuse.APIKey(**made.model_dump(exclude={"key"})))

        with self.orchestrator.client(made.key) as client:
            environment = client.environments.create(fuse.CreateRequest(task_id="t-1"))
            self.assertEqual(client.environments.list(), [environment])
            self.assertEqual(next(client.environments.events(environment.id)).state, "running")
            self.client.api_keys.revoke(made.id)
            error = self.refused(401, "unauthorized", client.environments.list)
            self.assertTrue(fuse.is_unauthorized(error))
        # Revoked keys stay on the list, and a repeat changes nothing.
        self.client.api_keys.revoke(made.id)
        revoked = {key.id: key for key in self.client.api_keys.list()}[made.id]
        self.assertIsNotNone(revoked.revoked_at)
        error = self.refused(404, "not_found", self.client.api_keys.revoke, "ak_0")
        self.assertTrue(fuse.is_not_found(error))

    def test_what_needs_the_master_token(self) -> None:
        key = self.client.api_keys.create("app").key
        host = fuse.RegisterHostRequest(id="h", url="http://127.0.0.1:9")
        with self.orchestrator.client(key) as client:
            for call, message in [
                (client.api_keys.create, "API key management requires the master token"),
                (client.api_keys.list, "API key management requires the master token"),
                (lambda: client.api_keys.revoke("ak_0"), "API key management requires the master token"),
                (lambda: client.hosts.register(host), "host registration requires the master token"),
                (lambda: client.hosts.cordon("h"), "host mutations require the master token"),
                (lambda: client.hosts.deregister("h"), "host removal requires the master token"),
                (
                    lambda: client.environments.exec("x", fuse.ExecRequest(cmd=["true"])),
                    "exec requires the master token",
                ),
            ]:
                error = self.refused(403, "unauthorized", call)
                self.assertTrue(fuse.is_unauthorized(error))
                self.assertEqual(error.message, message)
            self.assertEqual(client.hosts.list(), [])


class Volatile(unittest.TestCase):
    def test_keys_need_a_store_that_keeps_them(self) -> None:
        orchestrator = Orchestrator()
        self.addCleanup(orchestrator.stop)
        with orchestrator.client() as client:
            for call in (client.api_keys.create, client.api_keys.list):
                with self.assertRaises(fuse.ApiError) as caught:
                    call()
                error = caught.exception
                self.assertEqual((error.status, error.code), (404, "route_not_found"))
                self.assertEqual(error.details, {"reason": "api_keys_disabled"})
                self.assertIn("DATABASE_URL", error.message)
