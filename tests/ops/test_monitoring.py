"""ops/monitoring and the pages about it: rules that hold, figures that exist, an entry for every alert."""

import json
import pathlib
import re
import subprocess
import unittest
import urllib.request

from support import BINARIES, TREE, need_programs, need_tools
from orchestrator import Orchestrator

MONITORING = TREE / "ops" / "monitoring"
# Families with labels show nothing before there is a host, a request or a failure.
LABELLED = {
    "orchestrator_host_reachable",
    "orchestrator_host_capacity",
    "orchestrator_host_allocated",
    "orchestrator_reconcile_host_list_errors_total",
}


def names(text):
    """Names of the orchestrator's figures in a text, histograms by their family."""
    found = set(re.findall(r"\borchestrator_[a-z_]+", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


class Rules(unittest.TestCase):
    def promtool(self, *args):
        need_tools("promtool")
        done = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_configuration_is_one(self):
        self.promtool("check", "config", "--syntax-only", str(MONITORING / "prometheus.yml"))

    def test_alerts_fire_when_they_should_and_not_otherwise(self):
        self.promtool("test", "rules", str(MONITORING / "alerts_test.yml"))

    def test_every_alert_has_its_entry(self):
        rules = (MONITORING / "alerts.yml").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        page = (TREE / "docs" / "operations.md").read_text()
        self.assertEqual(re.findall(r"^### (Fuse\w+)$", page, re.M), alerts)
        self.assertEqual(re.findall(r"runbook: docs/operations.md#(\w+)", rules), [name.lower() for name in alerts])


class Figures(unittest.TestCase):
    def test_what_rules_and_dashboard_show_is_exposed(self):
        need_programs("orchestrator")
        orchestrator = Orchestrator(BINARIES / "orchestrator")
        self.addCleanup(orchestrator.stop)
        for path in ("/v1/hosts", "/metrics"):
            text = urllib.request.urlopen(f"{orchestrator.url}{path}", timeout=30).read().decode()
        exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
        dashboard = (MONITORING / "dashboard.json").read_text()
        json.loads(dashboard)
        used = names(dashboard) | names((MONITORING / "alerts.yml").read_text())
        self.assertEqual(used - exposed - LABELLED, set())
        self.assertGreater(len(used), 15)


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for page in [TREE / "README.md", *(TREE / "docs").glob("*.md")]:
            for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page.name}: {link}")

    def test_commands_of_the_manual_exist(self):
        need_programs("fuse")
        fuse = BINARIES / "fuse"
        seen = set()
        for page in ("self-hosting", "operations", "monitoring", "troubleshooting"):
            text = (TREE / "docs" / f"{page}.md").read_text()
            spans = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:sudo )?fuse .*$", text, re.M)
            for span in spans:
                words = span.removeprefix("sudo ").split()
                if words[0] != "fuse":
                    continue
                path = []
                for word in words[1:]:
                    if not re.fullmatch(r"[a-z][a-z-]*", word):
                        break
                    path.append(word)
                seen.add(tuple(path))
        self.assertGreater(len(seen), 8, seen)
        for path in seen:
            done = subprocess.run([fuse, *path, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, f"fuse {' '.join(path)}: {done.stderr}")
            group = " ".join(path)
            self.assertIn(f"Usage: fuse {group}".rstrip(), done.stdout, f"fuse {group} is not a command")

    def test_scripts_of_the_manual_exist(self):
        for page in (TREE / "docs").glob("*.md"):
            for script in re.findall(r"(?:host-agent/firecracker|ops)/[\w/-]+\.(?:sh|yml|json)", page.read_text()):
                self.assertTrue((TREE / script).exists(), f"{page.name}: {script}")
            for script in re.findall(r"\./(fc-[\w-]+\.sh)", page.read_text()):
                self.assertTrue((TREE / "host-agent/firecracker" / script).exists(), f"{page.name}: {script}")


if __name__ == "__main__":
    unittest.main()
