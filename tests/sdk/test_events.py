"""`client.environments.events`: the stream of one environment."""

import threading
from concurrent.futures import ThreadPoolExecutor

import fuse
from support import PATIENCE, Case


class Events(Case):
    def test_from_running_to_destroyed(self) -> None:
        made = self.create("t-1")
        stream = self.client.environments.events(made.id)
        first = next(stream)
        self.assertEqual((first.kind, first.vm_id, first.state), ("state", made.id, "running"))
        self.assertRegex(first.id, r"^[0-9a-f]{32}$")
        self.assertEqual(first.updated_at, made.updated_at)
        self.client.environments.destroy(made.id)
        rest = list(stream)
        self.assertEqual([e.err for e in rest], [None] * len(rest))
        # Intermediate states may be coalesced, the last one never.
        self.assertEqual(rest[-1].state, fuse.STATE_DESTROYED)
        self.assertTrue(fuse.is_terminal_state(rest[-1].state))
        self.assertLessEqual({e.state for e in rest[:-1]}, {fuse.STATE_DESTROYING})

    def test_a_create_that_fails_is_told(self) -> None:
        agent = self.agent()
        self.register(agent)
        booting, watched = threading.Event(), threading.Event()

        def refuse(_: dict) -> tuple[int, str]:
            booting.set()
            watched.wait(PATIENCE)
            return 500, "no such kernel"

        agent.on_create = refuse
        with ThreadPoolExecutor(1) as pool:
            created = pool.submit(self.create, "t-1")
            self.assertTrue(booting.wait(PATIENCE))
            stream = self.client.environments.events("fuse-t-1")
            self.assertEqual(next(stream).state, fuse.STATE_PROVISIONING)
            watched.set()
            last = list(stream)[-1]
            self.assertIsInstance(created.exception(PATIENCE), fuse.ApiError)
        self.assertEqual(last.state, fuse.STATE_FAILED)
        self.assertIn("no such kernel", last.error)
        # The state is only ever seen on the stream.
        self.refused(404, "not_found", self.client.environments.get, "fuse-t-1")

    def test_many_watchers_see_the_end(self) -> None:
        made = self.create("t-1")
        streams = [self.client.environments.events(made.id) for _ in range(20)]
        for stream in streams:
            next(stream)
        self.client.environments.destroy(made.id)
        for stream in streams:
            self.assertEqual(list(stream)[-1].state, fuse.STATE_DESTROYED)

    def test_nothing_to_watch(self) -> None:
        error = self.refused(404, "not_found", next, self.client.environments.events("fuse-nope"))
        self.assertEqual(error.message, "vm fuse-nope not found")
