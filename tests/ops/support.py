"""A staged machine, a systemctl that writes down what it is told, and a release server on the loopback."""

import hashlib
import http.server
import io
import os
import pathlib
import platform
import shutil
import socketserver
import subprocess
import tarfile
import tempfile
import threading
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
INSTALLERS = ("install-fuse.sh", "install-orchestrator.sh")
FIRECRACKER = TREE / "host-agent" / "firecracker"
QEMU = TREE / "host-agent" / "qemu"
TARGET = TREE / os.environ.get("CARGO_TARGET_DIR", "target")
# The programs of this build, and what guests boot.
BINARIES = TARGET / "debug"
IMAGE = pathlib.Path(os.environ.get("FUSE_IMAGE_DIR", pathlib.Path.home() / ".cache" / "fuse" / "image"))
ARCH = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]

# Keeps which units are enabled in a directory, refuses to start those named in `broken`.
SYSTEMCTL = """#!/bin/sh
printf '%s\\n' "$*" >>"$SYSTEMCTL_DIR/calls"
verb=$1; shift
for word in "$@"; do case $word in -*) ;; *) unit=${word%.service} ;; esac; done
case $verb in
  is-enabled) [ -e "$SYSTEMCTL_DIR/enabled-$unit" ] ;;
  enable) : >"$SYSTEMCTL_DIR/enabled-$unit" ;;
  disable) rm -f "$SYSTEMCTL_DIR/enabled-$unit" ;;
  start | restart) [ ! -e "$SYSTEMCTL_DIR/broken-$unit" ] || { rm "$SYSTEMCTL_DIR/broken-$unit"; exit 1; } ;;
esac
"""

# Makes a namespace a host of its own: what is written below `over` directories is gone with it.
HOST = """set -e
mount -t tmpfs none /tmp
ip link set lo up
over() { mkdir -p /tmp/$1/up /tmp/$1/work; mount -t overlay -o lowerdir=$2,upperdir=/tmp/$1/up,workdir=/tmp/$1/work none $2; }
over lib /var/lib; over local /usr/local/bin
"""


def skip(reason):
    """Skips where something is missing, and says so in the form that `make test` counts."""
    print(f"\nSKIP tests/ops: {reason}", flush=True)
    raise unittest.SkipTest(reason)


def need_programs(*programs):
    for each in programs:
        if not (BINARIES / each).exists():
            skip(f"{each} is not built (cargo build --workspace --bins)")


def need_tools(*tools):
    for tool in tools:
        if not shutil.which(tool):
            skip(f"{tool} is not installed")


def need_root():
    if os.geteuid() != 0:
        skip("mount and network namespaces need root")


def need_image():
    if not (IMAGE / "vmlinux.bin").exists():
        skip("there is no guest image (ops/dev/image.sh)")


def program(text="one", version="fake 1"):
    """A program that answers --version; `text` tells two of them apart."""
    return f"#!/bin/sh\n# {text}\n[ \"$1\" != --version ] || echo '{version}'\n".encode()


def archive(**members):
    """A gzipped tar of executable files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name.replace("__", "-"))
            info.size, info.mode = len(body), 0o755
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


class Releases:
    """Serves releases; what is wrong with an asset is set by name."""

    def __init__(self):
        self.assets, self.requests = {}, []
        # asset -> "truncate" | "redirect" | status; applied instead of serving it.
        self.faults, self.latest, self.elsewhere = {}, "v1.2.3", None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def add(self, tag, **assets):
        """Publishes assets (`__` stands for a dot or dash by the asset's own rules) with their checksums."""
        for name, body in assets.items():
            self.assets[f"/{tag}/{name}"] = body
        self.sign(tag)

    def sign(self, tag):
        lines = [
            f"{hashlib.sha256(body).hexdigest()}  {path.split('/')[2]}\n"
            for path, body in self.assets.items()
            if path.startswith(f"/{tag}/") and not path.endswith("/checksums.txt")
        ]
        self.assets[f"/{tag}/checksums.txt"] = "".join(lines).encode()

    def answer(self, request):
        self.requests.append(request.path)
        name = request.path.rsplit("/", 1)[-1]
        fault = self.faults.get(name)
        if request.path == "/latest":
            body = f'{{"tag_name": "{self.latest}", "name": "x"}}'.encode()
        else:
            body = self.assets.get(request.path)
        if fault == "redirect":
            request.send_response(302)
            request.send_header("Location", f"{self.elsewhere}{request.path}")
            request.end_headers()
            return
        if body is None or isinstance(fault, int):
            request.send_error(fault or 404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if fault == "truncate" else body)
        request.close_connection = True


class Stage(unittest.TestCase):
    """One empty machine under a temporary root."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="fuse-stage-"))
        self.addCleanup(shutil.rmtree, self.root)
        self.bin, self.calls_dir, self.cwd = self.root / "bin", self.root / "systemctl", self.root / "cwd"
        self.dest = self.root / "dest"
        for path in (self.bin, self.calls_dir, self.cwd, self.dest):
            path.mkdir()
        self.script(self.bin / "systemctl", SYSTEMCTL)
        self.releases = Releases()
        self.addCleanup(self.releases.close)
        self.env = {
            "PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root),
            "DESTDIR": str(self.dest),
            "SYSTEMCTL_DIR": str(self.calls_dir),
            "FUSE_RELEASE_URL": self.releases.url,
            "FUSE_LATEST_URL": f"{self.releases.url}/latest",
            "PUBLIC_HOST": "10.9.8.7",
        }

    @staticmethod
    def script(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(0o755)
        return path

    def run_script(self, path, *args, fails=False, cwd=None, stdin=None, **env):
        """Runs it; its exit status must be as expected."""
        done = subprocess.run(
            [str(path), *args], cwd=cwd or self.cwd, stdin=stdin, env={**self.env, **env}, capture_output=True, text=True,
            timeout=60,
        )
        shown = f"{path} {args}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.assertEqual(done.returncode != 0, fails, shown)
        return done

    def at(self, path):
        return self.dest / path.lstrip("/")

    def put(self, path, body, mode=0o755):
        self.script(self.at(path), body).chmod(mode)
        return self.at(path)

    def calls(self):
        log = self.calls_dir / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def forget_calls(self):
        (self.calls_dir / "calls").unlink(missing_ok=True)

    def enable(self, unit):
        (self.calls_dir / f"enabled-{unit}").touch()

    def settings(self, path):
        lines = self.at(path).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))

    def assert_secret(self, path):
        self.assertEqual(self.at(path).stat().st_mode & 0o777, 0o600, path)

    def everything(self):
        """The staged tree, to tell whether a run changed it."""
        return {
            str(path): (os.lstat(path).st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in self.dest.rglob("*")
            if not path.is_dir()
        }
