"""Programs that the tests talk to: an orchestrator of this build, and a host agent that boots nothing.

`Orchestrator` is the real binary on a free port. `Agent` speaks the host agent's contract from
memory, so that hosts can be registered and environments have a guest that answers.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import fuse
import orchestrator
from orchestrator import PATIENCE

TOKEN = "the-master-token"
AGENT_TOKEN = "the-agent-token"


class Orchestrator(orchestrator.Orchestrator):
    """Authenticated unless told otherwise; `env` adds to (or, with None, takes from) its settings."""

    def __init__(self, **env: str | None) -> None:
        settings = {"ORCH_AUTH_TOKEN": TOKEN, **env}
        given = {name: value for name, value in settings.items() if value is not None}
        super().__init__(os.environ["FUSE_ORCHESTRATOR"], **given)

    def client(self, token: str = TOKEN, **options: object) -> fuse.Client:
        return fuse.Client(self.url, token, timeout=PATIENCE, **options)


class Agent:
    """A host agent without VMMs. Set `on_create` to look at, delay or refuse a create."""

    capacity = {"cpus": 16, "ram_mb": 65536, "storage_gb": 500, "arch": "amd64", "gpus": 0}

    def __init__(self) -> None:
        self.vms: dict[str, dict] = {}
        self.snapshots: dict[str, dict] = {}
        self.commands: list[dict] = []
        self.files: dict[str, bytes] = {}
        self.guest_url = "203.0.113.1:19551"
        self.on_create = lambda request: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        serve = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        serve.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: list[str], request: dict) -> tuple[int, object]:
        match method, path:
            case "GET", ["capacity"]:
                return 200, self.capacity
            case "POST", ["vm"]:
                if refusal := self.on_create(request):
                    return refusal
                vm = {
                    "vm_id": request["name"],
                    "url": self.guest_url,
                    "owner": request.get("owner"),
                    "boot_id": "boot-1",
                }
                self.vms[vm["vm_id"]] = vm
                return 200, vm
            case "GET", ["vm"]:
                return 200, {"vms": list(self.vms.values())}
            case "DELETE", ["snapshots", name]:
                if self.snapshots.pop(name, None) is None:
                    return 404, "snapshot not found"
                return 200, {"ok": True}
            case "POST", ["artifacts", digest, "pull"]:
                # Whatever its holder has, it is here at once.
                pulled = {"snapshot_id": request["snapshot_id"], "digest": digest, "bytes": 4096}
                self.snapshots[pulled["snapshot_id"]] = {**pulled, "origin_vm_id": ""}
                return 200, pulled
            case _, ["vm", name, *_] if name not in self.vms:
                return 404, "vm not found"
            case "GET", ["vm", name]:
                return 200, self.vms[name]
            case "DELETE", ["vm", name]:
                del self.vms[name]
                return 200, {"ok": True}
            case "POST", ["vm", name, "snapshot"]:
                # The orchestrator remembers snapshots of agents that are gone.
                taken = {
                    "snapshot_id": f"snap-{len(self.snapshots)}-{secrets.token_hex(3)}",
                    "digest": secrets.token_hex(32),
                    "kind": "live" if request.get("live") else "disk",
                    "size_bytes": 4096,
                    "origin_vm_id": name,
                }
                self.snapshots[taken["snapshot_id"]] = taken
                return 200, taken
            case "GET", ["vm", name, "snapshots"]:
                of = [taken for taken in self.snapshots.values() if taken["origin_vm_id"] == name]
                return 200, {"snapshots": of}
            case "POST", ["vm", _, "restore"]:
                return 200, {"ok": True, "kind": "disk"}
            case "POST", ["vm", _, "fork"]:
                return self.answer("POST", ["vm"], request)
            case "POST", ["vm", _, "upload"]:
                for file in request.get("files", []):
                    self.files[file["path"]] = base64.b64decode(file["content_b64"])
                return 200, {"ok": True}
            case "POST", ["vm", _, "start-agent"]:
                endpoints = [
                    {**asked, "url": f"203.0.113.1:{21000 + n}", "host_port": 21000 + n}
                    for n, asked in enumerate(request.get("expose", []))
                ]
                return 200, {"ok": True, "endpoints": endpoints}
            case "POST", ["vm", _, "exec"]:
                self.commands.append(request)
                return 200, run(request["cmd"])
        return 404, "no such route"


def run(command: list[str]) -> dict:
    """What a guest would answer: the words of the command, and `exit N` as a status."""
    if command[:2] == ["sh", "-c"]:
        command = ["true"]  # The orchestrator's own.
    status = int(command[-1].removeprefix("exit ")) if command[-1].startswith("exit ") else 0
    out, err = " ".join(command), "warned" if status else ""
    return {
        "exit_code": status,
        "stdout": base64.b64encode(out.encode()).decode(),
        "stderr": base64.b64encode(err.encode()).decode(),
    }


def _handler(agent: Agent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = [unquote(part) for part in urlsplit(self.path).path.split("/")[2:]]
            if self.headers.get("Authorization") != f"Bearer {AGENT_TOKEN}":
                status, answer = 401, "unauthorized"
            else:
                status, answer = agent.answer(self.command, path, json.loads(body or b"{}"))
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class Case(unittest.TestCase):
    """Tests that share an orchestrator; a test leaves no environment and no host behind."""

    env: dict[str, str | None] = {}
    orchestrator: Orchestrator
    client: fuse.Client

    @classmethod
    def setUpClass(cls) -> None:
        cls.orchestrator = Orchestrator(**cls.env)
        cls.addClassCleanup(cls.orchestrator.stop)
        cls.client = cls.orchestrator.client()
        cls.addClassCleanup(cls.client.close)

    def tearDown(self) -> None:
        for environment in self.client.environments.list():
            self.client.environments.destroy(environment.id)
        for host in self.client.hosts.list():
            self.client.hosts.deregister(host.id)

    def create(self, task_id: str, **fields: object) -> fuse.EnvironmentInfo:
        return self.client.environments.create(fuse.CreateRequest(task_id=task_id, **fields))

    def agent(self) -> Agent:
        agent = Agent()
        self.addCleanup(agent.stop)
        return agent

    def register(self, agent: Agent, host_id: str = "host-1", **fields: object) -> fuse.Host:
        capacity = fields.pop("capacity", fuse.HostCapacity(vm_count=4))
        request = fuse.RegisterHostRequest(
            id=host_id, url=agent.url, token=AGENT_TOKEN, capacity=capacity, **fields
        )
        return self.client.hosts.register(request)

    def refused(self, status: int, code: str, call, *args: object, **fields: object) -> fuse.ApiError:
        """The call fails with this status and code, as the SDK's own error."""
        with self.assertRaises(fuse.ApiError) as caught:
            call(*args, **fields)
        error = caught.exception
        self.assertEqual((error.status, error.code), (status, code), error)
        self.assertTrue(error.message)
        self.assertRegex(error.request_id, r"^req_[0-9a-f]{32}$")
        return error
