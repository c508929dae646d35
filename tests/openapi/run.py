"""Runs schemathesis, with the arguments given, on an orchestrator that must outlive it without a panic."""

import os
import pathlib
import subprocess
import sys
import tempfile

from orchestrator import Orchestrator

HERE = pathlib.Path(__file__).resolve().parent
TOKEN = "the-master-token"
# The fleet's stream has no end; the tests of the orchestrator read it.
OPTIONS = ["--exclude-operation-id", "watchFleet", "--workers", "2", "--request-timeout", "20", "--no-color"]


def main() -> int:
    # Schemathesis keeps notes where it runs.
    with tempfile.TemporaryDirectory() as kept:
        # A durable store, so that the routes of API keys are mounted.
        orchestrator = Orchestrator(
            os.environ["FUSE_ORCHESTRATOR"],
            DATABASE_URL=f"sqlite://{kept}/fuse.db",
            ORCH_AUTH_TOKEN=TOKEN,
            TOKEN_ENCRYPTION_KEY="07" * 32,
        )
        schemathesis = pathlib.Path(sys.executable).with_name("schemathesis")
        done = subprocess.run(
            [schemathesis, "--config-file", HERE / "schemathesis.toml", "run", *OPTIONS, *sys.argv[1:],
             f"{orchestrator.url}/openapi.json"],
            cwd=kept, env={**os.environ, "FUSE_TOKEN": TOKEN, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")}, timeout=300,
        )
        if not orchestrator.running():
            sys.exit(f"the orchestrator ended during the run:\n{orchestrator.log()}")
        orchestrator.stop()
    panics = [line for line in orchestrator.log().splitlines() if "panicked" in line]
    if panics:
        sys.exit("the orchestrator panicked:\n" + "\n".join(panics))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
