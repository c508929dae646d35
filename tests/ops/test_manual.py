"""The command blocks of the manual are run, in order, page by page.

A block of shell is one of three things. Most are typed on one machine with a local stack and real guests, as the page
leads to it. What installs or updates a host is typed on a staged one (`support.Stage`). And a block that only hardware or
somebody else's network can run begins with a comment that says so: `# needs ...`. A YAML block that begins with
`# Fusefile` is the Fusefile of what follows. Nothing else of a page is known here but what its text asks its reader to
have: see PAGES.
"""

import dataclasses
import fcntl
import os
import pathlib
import platform
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

import test_fc_agent
import test_update
from support import ARCH, BINARIES, HOST, IMAGE, TREE, Stage, archive, need_image, need_programs, need_root, need_tools, program
from test_documents import CURRENT, named

# The guest agent as images have it; beside the other programs is one that needs the libraries of this machine.
FUSED = TREE / "target" / "guest" / f"{platform.machine()}-unknown-linux-gnu" / "guest" / "fused"
# Longest that a page may take.
DEADLINE = 600
MARK = "# needs "
# What a block may say that it needs.
NEEDS = ("a GPU host", "the network")
# What a page asks its reader to have before its first command; typed there, too.
HELLO = "fuse local up\nfuse up -f examples/hello/Fusefile\n"
SECRETS = """export TOKEN=abc123
printf key >key.pem
printf 'signing_key=key\\n' >others.txt
pass() { printf abc123; }
cat >Fusefile <<'END'
version: 1
name: secrets
resources: { cpus: 1, memory: 256MB }
env:
  API_TOKEN: { secret: api_token }
secrets: [signing_key]
run: 'true'
END
"""
LAYERS = """cat >Fusefile <<'END'
version: 1
name: layers
resources: { cpus: 1, memory: 256MB }
cache: { enabled: true }
build: ["echo built > built.txt"]
run: 'true'
END
"""


@dataclasses.dataclass(frozen=True)
class Block:
    page: pathlib.Path
    line: int
    language: str
    text: str

    @property
    def place(self):
        return f"{named(self.page)}:{self.line}"

    @property
    def needs(self):
        return self.text[len(MARK) :].splitlines()[0] if self.text.startswith(MARK) else None


def blocks(page):
    text = page.read_text()
    return [
        Block(page, text[: found.start()].count("\n") + 1, found[1], found[2])
        for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    ]


def commands(page):
    return [block for block in blocks(page) if block.language == "sh" and not block.needs]


# Throws every environment away.
CLEAN = 'for id in $(fuse environment list -o json | grep -o \'"fuse-[^"]*"\' | sort -u | tr -d \'"\'); do fuse environment destroy "$id" --yes --ignore-missing || true; done\n'

# Pages that are typed beside a local stack, in this order: what comes before the n-th block that is run there.
# The quickstart is last, because it ends with the stack.
LIVE = {
    "README.md": {1: "true"},
    "docs/editor.md": {0: "cp examples/hello/Fusefile ."},
    "docs/fusefile.md": {0: SECRETS, 1: CLEAN + LAYERS},
    "docs/hosts.md": {0: 'export FC_AGENT_TOKEN=$(cat "$HOME/.fuse/local/fc-agent.token")', 1: "fuse host remove prod-east-1 --yes"},
    "docs/self-hosting.md": {0: 'export FC_AGENT_TOKEN=$(cat "$HOME/.fuse/local/fc-agent.token")'},
    "docs/monitoring.md": {},
    "docs/guest-images.md": {},
    "examples/hello/README.md": {},
    "examples/agent-sandbox/README.md": {},
    "examples/ci-runner/README.md": {},
    "examples/secrets/README.md": {},
    "docs/quickstart.md": {0: HELLO},
}
# Takes minutes and a machine of its own (`make fresh-root`).
FROM_NOTHING = "git clone https://github.com/folsomintel/fuse && cd fuse"
FRESH_ROOT = TREE / "tests" / "ops" / "fresh-root.sh"
STAGED = {"docs/self-hosting.md", "docs/operations.md"}
# What is asked on a terminal, and the answer.
ANSWERS = ((rb"\? \(y/N\)", b"y\r"), (rb"root@fuse-hello:[^\r\n]*# ?", b"exit\r"))


def is_live(block):
    """On a page with both kinds, `fuse` is what a laptop runs."""
    page = named(block.page)
    return page in LIVE and (page not in STAGED or re.match(r"(fuse|openssl) ", block.text))


def is_elsewhere(block):
    return block.text.startswith(f"{FROM_NOTHING}\n")


class Rules(unittest.TestCase):
    def test_every_block_is_run_or_says_what_it_needs(self):
        run = 0
        for page in CURRENT:
            for block in blocks(page):
                if block.language != "sh":
                    continue
                if block.needs:
                    self.assertTrue(block.needs.startswith(NEEDS), f"{block.place}: {block.needs}")
                    continue
                self.assertTrue(
                    named(page) in LIVE or named(page) in STAGED, f"{block.place} is not run: name its page in {__file__}"
                )
                run += 1
        self.assertGreater(run, 20)

    def test_what_is_run_elsewhere_is(self):
        typed = FRESH_ROOT.read_text().splitlines()
        for block in (block for page in CURRENT for block in commands(page) if is_elsewhere(block)):
            for line in block.text.splitlines():
                self.assertIn(line.split("  ")[0], typed, block.place)


class Machine:
    """A host of its own: nothing but a loopback, a HOME, and a directory that looks like a checkout after `make build`."""

    ROOT = "/tmp/home"
    PREPARE = f"""
mkdir -p {ROOT}/checkout/target /var/lib/fuse
ln -s {TREE}/* {ROOT}/checkout/ 2>/dev/null || true
ln -s {BINARIES} {ROOT}/checkout/target/release
cp -a {IMAGE}/. /var/lib/fuse/
mount --bind {FUSED} {BINARIES}/fused
ip addr add 10.0.0.5/32 dev lo
echo ready
# The first process has to take in whatever others leave, as any init does.
while :; do sleep 1000 & wait; done
"""

    def __init__(self):
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", HOST + self.PREPARE],
            stdout=subprocess.PIPE, text=True,
        )
        if self.holder.stdout.readline() != "ready\n":
            raise RuntimeError("the machine of the manual did not come up")
        children = pathlib.Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")
        self.pid = children.read_text().split()[0]

    def close(self):
        # The first process of its namespace takes all others along.
        os.kill(int(self.pid), signal.SIGKILL)
        self.holder.wait()
        self.holder.stdout.close()

    def type(self, script):
        """Types a script at a terminal; answers with its status and everything that was shown."""
        enter = ["nsenter", "--target", self.pid, "--mount", "--net", "--pid", "--wd=/"]
        environment = {
            "PATH": f"{BINARIES}:{os.environ['PATH']}", "HOME": self.ROOT, "TERM": "dumb", "NO_COLOR": "1",
            "FUSE_IMAGE_DIR": "/var/lib/fuse",
        }
        variables = [f"{name}={value}" for name, value in environment.items()]
        ours, theirs = pty.openpty()
        # Wide enough that no question is wrapped.
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        process = subprocess.Popen(
            [*enter, "env", "-i", *variables, "bash", "-c", f"cd {self.ROOT}/checkout\nset -euo pipefail\n{script}"],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        try:
            return self.follow(process, ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    @staticmethod
    def follow(process, terminal):
        shown, answered, given_up = b"", 0, time.monotonic() + DEADLINE
        while True:
            if time.monotonic() > given_up:
                return "no end", shown
            if not select.select([terminal], [], [], 1)[0]:
                if process.poll() is not None:
                    return process.returncode, shown
                continue
            try:
                more = os.read(terminal, 65536)
            except OSError:  # the last process at the terminal has left
                return process.wait(), shown
            shown += more
            for question, answer in ANSWERS:
                if found := re.search(question, shown[answered:]):
                    answered += found.end()
                    os.write(terminal, answer)


FORWARD = """setsid python3 -c '
import socket, threading
def pump(a, b):
    while data := a.recv(65536): b.sendall(data)
    b.shutdown(socket.SHUT_WR)
door = socket.create_server(("10.0.0.5", 8090))
while True:
    one, _ = door.accept()
    two = socket.create_connection(("127.0.0.1", 8090))
    for pair in ((one, two), (two, one)): threading.Thread(target=pump, args=pair, daemon=True).start()
' >/dev/null 2>&1 </dev/null &
until (exec 3<>/dev/tcp/10.0.0.5/8090) 2>/dev/null; do sleep 0.1; done
"""


class Live(unittest.TestCase):
    """Everything that is typed beside a local stack."""

    def test_pages(self):
        need_root()
        need_programs("fuse", "orchestrator", "fc-agent", "fc-emulator", "fused")
        need_tools("promtool", "unshare", "nsenter")
        need_image()
        machine = Machine()
        self.addCleanup(machine.close)
        status, shown = machine.type(f"fuse local up\n{FORWARD}")
        self.assertEqual(status, 0, shown.decode(errors="replace"))
        for page, before in LIVE.items():
            with self.subTest(page):
                self.page(machine, TREE / page, before)

    def page(self, machine, page, before):
        script, number = "", 0
        for block in blocks(page):
            if block.language == "yaml" and block.text.startswith("# Fusefile"):
                script += f"cat >Fusefile <<'END_OF_FILE'\n{block.text}END_OF_FILE\n"
            if block.language != "sh" or block.needs or is_elsewhere(block) or not is_live(block):
                continue
            script += f"{before.get(number, '')}\necho '--- {block.place}'\n{block.text}\n"
            number += 1
        status, shown = machine.type(script)
        if page.name != "quickstart.md":
            machine.type("rm -f Fusefile\n" + CLEAN)
        self.assertEqual(status, 0, f"{named(page)}:\n{shown.decode(errors='replace')[-6000:]}")
        self.assertGreater(number, 0, named(page))


class Staged(test_fc_agent.Host):
    """What is typed as root of a host."""

    def setUp(self):
        super().setUp()
        self.script(self.bin / "sudo", '#!/bin/sh\ncase $1 in *=*) exec env "$@" ;; *) exec "$@" ;; esac\n')
        self.script(self.bin / "sudoedit", '#!/bin/sh\nsed -i "s|^DATABASE_URL=.*|DATABASE_URL=postgres://a:b@c/d|" "$DESTDIR$1"\n')
        # The address of the project's releases is that of a server of this test.
        self.script(
            self.bin / "curl",
            f"""#!/bin/bash
args=("${{@//https:\\/\\/github.com\\/folsomintel\\/fuse\\/releases\\/latest\\/download/{self.releases.url}/v1.2.3}}")
exec {shutil.which("curl")} "${{args[@]}}"
""",
        )
        self.checkout = self.root / "checkout"
        self.checkout.mkdir()
        for entry in TREE.iterdir():
            if entry.name not in ("target", ".git"):
                (self.checkout / entry.name).symlink_to(entry)

    def page(self, page, prepare):
        """Types each staged block on a machine of its own, which `prepare` (by the block's first line) has made ready."""
        for block in commands(TREE / page):
            if is_live(block) or is_elsewhere(block):
                continue
            with self.subTest(block.place):
                self.dest = pathlib.Path(tempfile.mkdtemp(dir=self.root))
                self.env["DESTDIR"] = str(self.dest)
                for left in self.calls_dir.glob("enabled-*"):
                    left.unlink()
                self.forget_calls()
                first = block.text.splitlines()[0]
                ready = [make for begin, make in prepare.items() if first.startswith(begin)]
                self.assertEqual(len(ready), 1, f"{block.place}: what does {first} need?")
                expect = ready[0]() or (lambda: None)
                script = f"set -euo pipefail\n{block.text}"
                self.run_script("bash", "-c", script, cwd=self.checkout)
                expect()

    def test_self_hosting(self):
        def by_hand():
            self.tools()
            self.give_agent()
            self.put("/var/lib/fuse/fused", program("fused"))
            self.put("/usr/local/bin/firecracker", program("vmm"))
            self.put("/usr/local/bin/orchestrator", program("there"))
            return lambda: self.assertEqual(self.calls()[-1], "start orchestrator")

        def secured():
            self.give_agent()
            return lambda: self.assertIn("FC_AGENT_TLS_CERT=", self.at("/var/lib/fuse/.env").read_text())

        def dedicated():
            self.release()
            return lambda: self.assertEqual(self.calls()[-1], "restart fuse-orchestrator.service")

        def alone():
            self.release()
            for name in ("install-fuse.sh", "install-orchestrator.sh"):
                installer = self.root / name
                subprocess.run(["bash", "-c", ALONE, "pack", name, installer], cwd=TREE, check=True)
                self.releases.assets[f"/v1.2.3/{name}"] = installer.read_bytes()
            self.releases.sign("v1.2.3")

        def taken_away():
            self.give_agent()
            self.fc("install-service")
            self.fc("install-orchestrator", ORCH_BIN_SRC=str(BINARIES / "orchestrator"))
            return lambda: self.assertEqual(self.everything(), {})

        def restored():
            need_programs("orchestrator")
            copy = self.checkout / "copy.db"
            program = BINARIES / "orchestrator"
            subprocess.run([program, "--mint-api-key", "x", "--database-url", f"sqlite://{copy}"], check=True, capture_output=True)
            (self.checkout / "fuse.key").write_text("ab" * 32)
            (self.bin / "orchestrator").symlink_to(program)

        self.page("docs/self-hosting.md", {
            "cd host-agent/firecracker": self.in_turn(self.prepare_bootstrap, by_hand, secured, taken_away),
            "TOKEN_ENCRYPTION_KEY=": restored,
            "sudo ./ops/install-orchestrator.sh": dedicated,
            "./ops/install-fuse.sh": self.release,
            "release=": alone,
        })

    @staticmethod
    def in_turn(*makers):
        """Blocks that begin alike; the page has them in this order."""
        makers = iter(makers)
        return lambda: next(makers)()

    def test_operations(self):
        def update():
            agent = "/usr/local/bin/fc-agent"
            self.put(agent, test_update.agent("old"))
            self.put("/var/lib/fuse/fused", program("old fused"))
            self.enable("fc-agent")
            self.release()
            return lambda: self.assertEqual(self.at(agent).read_bytes(), test_update.agent("old"))

        def move():
            self.enable("orchestrator")
            self.release()
            return lambda: self.assertIn("disable --now orchestrator", self.calls())

        self.page("docs/operations.md", {
            "host-agent/firecracker/fc-update.sh": update,
            "sudo systemctl disable --now orchestrator": move,
            "openssl rand": lambda: None,
        })

    def release(self):
        self.releases.add("v1.2.3", **{
            f"fuse-agent_Linux_{ARCH}.tar.gz": archive(**{"fc-agent": test_update.agent("new")}),
            f"fused_Linux_{ARCH}": program("new fused"),
            f"fuse_Linux_{ARCH}.tar.gz": archive(orchestrator=program("orchestrator")),
            f"fuse-cli_Linux_{ARCH}.tar.gz": archive(fuse=program("fuse")),
        })


# One installer as a release has it.
ALONE = 'eval "$(sed -n "/^alone() {/,/^}/p" ops/dev/pack.sh)"; alone "ops/$1" "$2"'


if __name__ == "__main__":
    unittest.main()
