"""What all calls share: credentials, request ids, errors."""

import tempfile
import unittest

import fuse
from support import PATIENCE, TOKEN, Case, Orchestrator


class Credentials(Case):
    def test_who_is_let_in(self) -> None:
        for token, message in [
            ("", "missing or malformed credentials"),
            ("wrong", "invalid token"),
            (TOKEN + "x", "invalid token"),
        ]:
            with self.subTest(token=token), self.orchestrator.client(token) as client:
                calls = (
                    client.environments.list,
                    client.hosts.list,
                    lambda: next(client.environments.events("fuse-t-1")),
                    lambda: client.environments.create(fuse.CreateRequest(task_id="t-1")),
                )
                for call in calls:
                    error = self.refused(401, "unauthorized", call)
                    self.assertTrue(fuse.is_unauthorized(error))
                    self.assertEqual(error.message, message)

    def test_request_ids_come_back(self) -> None:
        with self.orchestrator.client(request_id=lambda: "mine-1") as client:
            with self.assertRaises(fuse.ApiError) as caught:
                client.environments.get("fuse-nope")
            self.assertEqual(caught.exception.request_id, "mine-1")
            self.assertIn("request_id=mine-1", str(caught.exception))
        with self.orchestrator.client(request_id=lambda: "not one of ours") as client:
            self.refused(404, "not_found", client.environments.get, "fuse-nope")

    def test_errors_are_found_in_a_chain(self) -> None:
        try:
            try:
                self.client.environments.get("fuse-nope")
            except fuse.ApiError as error:
                raise RuntimeError("the caller's own") from error
        except RuntimeError as error:
            self.assertTrue(fuse.is_not_found(error))


class Insecure(unittest.TestCase):
    def test_without_a_token_and_a_durable_store_everybody_is_trusted(self) -> None:
        orchestrator = Orchestrator(ORCH_AUTH_TOKEN=None)
        self.addCleanup(orchestrator.stop)
        with fuse.Client(orchestrator.url, timeout=PATIENCE) as client:
            made = client.environments.create(fuse.CreateRequest(task_id="t-1"))
            self.assertEqual(client.environments.list(), [made])


class Shutdown(unittest.TestCase):
    def test_streams_end_and_the_exit_is_clean(self) -> None:
        orchestrator = Orchestrator()
        self.addCleanup(orchestrator.stop)
        with orchestrator.client() as client:
            made = client.environments.create(fuse.CreateRequest(task_id="t-1"))
            stream = client.environments.events(made.id)
            next(stream)
            self.assertEqual(orchestrator.stop(), 0, orchestrator.log())
            self.assertEqual([e.state for e in stream if e.err is None], [])
        self.assertNotIn(TOKEN, orchestrator.log())


class Durable(unittest.TestCase):
    def test_a_restart_loses_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            settings = {
                "DATABASE_URL": f"sqlite://{directory}/fuse.db",
                "TOKEN_ENCRYPTION_KEY": "00" * 32,
            }
            first = Orchestrator(**settings)
            self.addCleanup(first.stop)
            with first.client() as client:
                made = client.environments.create(fuse.CreateRequest(task_id="t-1"))
            first.stop()
            second = Orchestrator(**settings)
            self.addCleanup(second.stop)
            with second.client() as client:
                self.assertEqual(client.environments.get(made.id), made)
                client.environments.destroy(made.id)
