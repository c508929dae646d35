"""Runs one piece of Python for an agent and answers with JSON: status, stdout, stderr.

The microVM is the wall between agents. This only keeps one run from spoiling the next: another user, a directory
that goes away, a bound on time and memory.
"""

import json
import os
import pwd
import resource
import subprocess
import sys
import tempfile

SECONDS = 10
MEMORY = 256 * 1024 * 1024


def main() -> int:
    agent = pwd.getpwnam("agent")
    code = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()
    with tempfile.TemporaryDirectory(prefix="run-") as directory:
        os.chown(directory, agent.pw_uid, agent.pw_gid)
        try:
            done = subprocess.run(
                ["python3", "-I", "-c", code],
                cwd=directory,
                user=agent.pw_uid,
                group=agent.pw_gid,
                extra_groups=[],
                env={"HOME": directory, "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            )
            answer = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        except subprocess.TimeoutExpired:
            answer = {"status": None, "stdout": "", "stderr": f"did not end within {SECONDS} s"}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
