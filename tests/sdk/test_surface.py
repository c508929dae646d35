"""Which calls the SDK has: each is either tested here or known to be missing from the orchestrator.

A new release of the SDK that brings a call fails this until the call is tested, and so does an
orchestrator that begins to answer one of `MISSING`.
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
    *(f"environments.{call}" for call in "get list list_page rotate_token".split()),
    *(f"hosts.{call}" for call in "cordon deregister get list list_page register uncordon".split()),
    *(f"snapshots.{call}" for call in "create delete get list list_page resolve restore".split()),
}

Call = Callable[[fuse.Client], object]
MISSING: dict[str, Call] = {
    "environments.computer": lambda client: client.environments.computer(
        "x", fuse.ComputerAction(action="screenshot")
    ),
    "environments.computer_display": lambda client: client.environments.computer_display("x"),
    "environments.computer_tool_result": lambda client: client.environments.computer_tool_result(
        "x", {"action": "screenshot"}
    ),
    "environments.migrate": lambda client: client.environments.migrate("x"),
}


def calls(client: fuse.Client) -> set[str]:
    return {
        f"{service}.{name}"
        for service, held in vars(client).items()
        if not service.startswith("_")
        for name, _ in inspect.getmembers(held, inspect.ismethod)
        if not name.startswith("_")
    }


def is_missing(error: fuse.ApiError) -> bool:
    return error.code == "route_not_found" or "unknown action" in error.message


class Surface(unittest.TestCase):
    def test_every_call_is_known(self) -> None:
        with fuse.Client("http://localhost") as client:
            self.assertEqual(calls(client), TESTED | MISSING.keys())

    def test_what_is_missing_still_is(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            orchestrator = Orchestrator(DATABASE_URL=f"sqlite://{directory}/fuse.db")
            self.addCleanup(orchestrator.stop)
            with orchestrator.client() as client:
                for name, call in MISSING.items():
                    with self.subTest(call=name), self.assertRaises(fuse.ApiError) as caught:
                        call(client)
                    self.assertTrue(is_missing(caught.exception), f"{name} answers now: test it")
            orchestrator.stop()
