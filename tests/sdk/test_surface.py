"""Which calls the SDK has: each is either tested here or known to be refused by the orchestrator.

A new release of the SDK that brings a call fails this until the call is tested, and so does an
orchestrator that begins to carry out one of `REFUSED`.
"""

import inspect
import tempfile
import unittest
from collections.abc import Callable

import fuse
from support import Orchestrator

TESTED = {
    *(f"api_keys.{call}" for call in "create list revoke".split()),
    *(f"environments.{call}" for call in "create destroy drain events exec fork".split()),
    *(f"environments.{call}" for call in "get list list_page migrate rotate_token".split()),
    *(f"hosts.{call}" for call in "cordon deregister get list list_page register uncordon".split()),
    *(f"snapshots.{call}" for call in "create delete get list list_page resolve restore".split()),
}

Call = Callable[[fuse.Client, str], object]
REFUSED: dict[str, Call] = {
    "environments.computer": lambda client, vm: client.environments.computer(
        vm, fuse.ComputerAction(action="screenshot")
    ),
    "environments.computer_display": lambda client, vm: client.environments.computer_display(vm),
    "environments.computer_tool_result": lambda client, vm: client.environments.computer_tool_result(
        vm, {"action": "screenshot"}
    ),
}


def calls(client: fuse.Client) -> set[str]:
    return {
        f"{service}.{name}"
        for service, held in vars(client).items()
        if not service.startswith("_")
        for name, _ in inspect.getmembers(held, inspect.ismethod)
        if not name.startswith("_")
    }


class Surface(unittest.TestCase):
    def test_every_call_is_known(self) -> None:
        with fuse.Client("http://localhost") as client:
            self.assertEqual(calls(client), TESTED | REFUSED.keys())

    def test_what_is_refused_is_known_and_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            orchestrator = Orchestrator(DATABASE_URL=f"sqlite://{directory}/fuse.db")
            self.addCleanup(orchestrator.stop)
            with orchestrator.client() as client:
                made = client.environments.create(fuse.CreateRequest(task_id="t"))
                for name, call in REFUSED.items():
                    with self.subTest(call=name), self.assertRaises(fuse.ApiError) as caught:
                        call(client, made.id)
                    error = caught.exception
                    self.assertEqual(error.status, 501, f"{name} is carried out now: test it ({error})")
            orchestrator.stop()
