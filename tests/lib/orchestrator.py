"""The orchestrator of this build as a process on a free port."""

from __future__ import annotations

import atexit
import os
import pathlib
import re
import subprocess
import threading

# How long anything here may take before it counts as hung, in seconds.
PATIENCE = 30

LISTENING = re.compile(r"\blistening\b.*?\baddress=(\S+)")


class Orchestrator:
    """The program, with what it logged; `settings` is all of its environment beside the address."""

    def __init__(self, program: str | pathlib.Path, **settings: str) -> None:
        self._lines: list[str] = []
        self._address: str | None = None
        self._started = threading.Event()
        self._process = subprocess.Popen(
            [program],
            env={"PATH": os.environ.get("PATH", ""), "ORCH_LISTEN": "127.0.0.1:0", **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.stop)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._started.wait(PATIENCE) or self._address is None:
            self.stop()
            raise AssertionError(f"the orchestrator did not start:\n{self.log()}")

    def _read(self) -> None:
        with self._process.stderr as lines:
            for line in lines:
                self._lines.append(line)
                if found := LISTENING.search(line):
                    self._address = found[1]
                    self._started.set()
        self._started.set()

    @property
    def url(self) -> str:
        return f"http://{self._address}"

    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """Everything it said, once it has ended."""
        self._reader.join(PATIENCE)
        return "".join(self._lines)

    def stop(self) -> int:
        """Ends it the way a service manager does; answers with its exit status."""
        atexit.unregister(self.stop)
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
