"""What the documents name exists: files, links, crates, dependencies, settings, commands and their flags."""

import functools
import os
import re
import shlex
import subprocess
import tomllib
import unittest

from support import TREE

ARCHITECTURE = (TREE / "ARCHITECTURE.md").read_text()
CRATES = TREE / "crates"
FUSE = TREE / "target" / "debug" / "fuse"
# docs/api and docs/cli.md are generated, and decisions and the changelog tell of what was.
PAGES = sorted(
    page
    for page in [*TREE.glob("*.md"), *TREE.glob("docs/**/*.md"), *TREE.glob("examples/*/README.md")]
    if TREE / "docs" / "api" not in page.parents and page != TREE / "docs" / "cli.md"
)
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]


def named(page):
    return str(page.relative_to(TREE))


def section(title):
    """A section of ARCHITECTURE.md."""
    return re.search(rf"^## {title}.*?$(.*?)(?=^## |\Z)", ARCHITECTURE, re.M | re.S).group(1)


def rows(text):
    """The cells of each row of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rule = [index for index, row in enumerate(cells) if set("".join(row)) <= set("-: ")]
    return [row for index, row in enumerate(cells) if index not in rule and index + 1 not in rule]


def code(text):
    return re.findall(r"`([^`]+)`", text)


def braces(path):
    """`a/{b,c}.rs` as two paths."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    return [found[1] + part + found[3] for part in found[2].split(",")] if found else [path]


def manifest(path):
    return tomllib.loads(path.read_text())


def dependencies(document, *kinds):
    tables = [document, *document.get("target", {}).values()]
    return {name for table in tables for kind in kinds for name in table.get(kind, {})}


class Files(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                path, _, anchor = target.partition("#")
                if "://" in path:
                    continue
                found = page.parent / path if path else page
                self.assertTrue(found.exists(), f"{named(page)}: {target}")
                if anchor:
                    heads = re.findall(r"^#+ (.*)$", found.read_text(), re.M)
                    anchors = [re.sub(r"[^\w -]", "", head.strip()).lower().replace(" ", "-") for head in heads]
                    self.assertIn(anchor, anchors, f"{named(page)}: {target}")

    def test_every_page_is_in_the_manual(self):
        summary = (TREE / "docs" / "SUMMARY.md").read_text()
        listed = re.findall(r"\]\(([^)]+)\)", summary)
        self.assertEqual(len(listed), len(set(listed)))
        there = {str(page.relative_to(TREE / "docs")) for page in (TREE / "docs").rglob("*.md")} - {"SUMMARY.md"}
        self.assertEqual(sorted(listed), sorted(there))

    def test_files_of_the_tree_exist(self):
        for page in CURRENT:
            text = page.read_text()
            for path in re.findall(r"(?<![\w./-])(?:crates|docs|examples|host-agent|ops|schema|tests/(?:ops|sdk|openapi))/[\w./-]+\w", text):
                if page.name == "ARCHITECTURE.md" and path.startswith("host-agent/"):
                    continue  # the crate, below
                homes = [TREE, page.parent]
                self.assertTrue(any((home / path).exists() for home in homes), f"{named(page)}: {path}")

    def test_the_map_names_files_that_exist(self):
        crate, checked = None, 0
        for path in (path for text in code(ARCHITECTURE) for path in braces(text)):
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", path) or "/" not in path or path.startswith("fuse-attach/"):
                continue
            first, _, rest = path.partition("/")
            if (CRATES / first).is_dir():
                crate = CRATES / first
                homes = [crate / "src" / rest, crate / rest]
                # A module by its directory or by its file.
                homes += [crate / "src" / f"{rest}.rs"]
            else:
                homes = [TREE / path] + ([crate / "src" / path] if crate else [])
            self.assertTrue(any(home.exists() for home in homes), f"ARCHITECTURE.md: {path}")
            checked += 1
        self.assertGreater(checked, 50)


class Crates(unittest.TestCase):
    def test_the_table_says_who_uses_whom(self):
        lines = {name: code(row[2]) for row in rows(section("Crates")) for name in code(row[0])}
        crates = {path.parent.name: manifest(path) for path in CRATES.glob("*/Cargo.toml")}
        self.assertEqual(set(lines), set(crates))
        above = set()
        for name, uses in lines.items():
            ours = {crate.removeprefix("fuse-") for crate in dependencies(crates[name], "dependencies", "build-dependencies")
                    if crate.startswith("fuse-")}
            # Suites have no library: what their tests use is all they use.
            tests = {crate.removeprefix("fuse-") for crate in dependencies(crates[name], "dev-dependencies")
                     if crate.startswith("fuse-")}
            self.assertEqual(set(uses), ours or tests & set(uses), name)
            self.assertEqual(set(uses) - above, set(), f"{name} uses what stands below it")
            self.assertEqual(tests - {"testkit"} - ours, set(), f"tests of {name}")
            above.add(name)

    def test_each_dependency_has_its_line(self):
        listed = [name for row in rows(section("Dependencies")) for name in code(row[0])]
        self.assertEqual(len(listed), len(set(listed)))
        kinds = ("dependencies", "dev-dependencies", "build-dependencies")
        used = {name for path in [*CRATES.glob("*/Cargo.toml"), *CRATES.glob("*/fuzz/Cargo.toml")]
                for name in dependencies(manifest(path), *kinds) if not name.startswith("fuse-")}
        self.assertEqual(sorted(used), sorted(listed))


class Settings(unittest.TestCase):
    def test_variables_are_read_by_something(self):
        suffixes = {".rs", ".sh", ".service", ".py"}
        files = [path for part in ("crates", "host-agent", "ops") for path in (TREE / part).rglob("*")
                 if path.suffix in suffixes and path.is_file()]
        text = "\n".join(path.read_text() for path in files)
        # A variable of an agent is put together from a prefix and this.
        own = {f"{prefix}_{name}" for prefix in ("FC", "QEMU") for name in agent_variables("own")}
        known = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", text)) | own
        for page in CURRENT:
            body = page.read_text()
            for name in set(re.findall(r"\b(?:FC|FUSE|FUSED|FIRECRACKER|ORCH|QEMU|TOKEN)_[A-Z0-9_]+\b", body)):
                self.assertTrue(name in known, f"{named(page)}: nothing reads {name}")

    def test_the_page_lists_what_the_agent_reads(self):
        page = (TREE / "docs" / "settings.md").read_text()
        agents = page[page.index("## Host agent"):page.index("## Command line")]
        agent, gpu_agent = agents.split("## Host agent of GPU hosts")
        listed = {name for row in rows(agent) for name in code(row[0])} - {"RUST_LOG", "FUSE_LOG_FORMAT"}
        read = {f"FC_{name}" for name in agent_variables("own", "mod.rs")} | agent_variables("shared", "mod.rs")
        self.assertEqual(sorted(listed), sorted(read))
        # What is the same need not be repeated there; what only that agent reads must be.
        listed = {name for row in rows(gpu_agent) for name in code(row[0])}
        read = {f"QEMU_{name}" for name in agent_variables("own")} | agent_variables("shared")
        self.assertEqual(listed - read, set())
        only = {f"QEMU_{name}" for name in agent_variables("own", "qemu.rs")} | agent_variables("shared", "qemu.rs")
        self.assertEqual(only - listed, set())


def agent_variables(kind, *files):
    config = CRATES / "host-agent" / "src" / "config"
    source = "\n".join((config / name).read_text() for name in files or ("mod.rs", "qemu.rs"))
    return set(re.findall(rf"\.(?:\w+_)?{kind}(?:::<\w+>)?\(\s*\"([A-Z_]+)\"", source))


class Commands(unittest.TestCase):
    """Every `fuse …` of the documents is a command, with flags that it has."""

    def setUp(self):
        if not FUSE.exists():
            print("\nSKIP tests/ops documents: fuse is not built", flush=True)
            self.skipTest("fuse is not built")

    @staticmethod
    @functools.cache
    def help(*words):
        done = subprocess.run([FUSE, *words, "--help"], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
        return done.stdout if done.returncode == 0 else None

    def test_commands_and_flags_exist(self):
        checked = 0
        for page in CURRENT:
            text = page.read_text()
            blocks = re.findall(r"^```(?:sh|text)\n(.*?)^```", text, re.M | re.S)
            lines = [line for block in blocks for line in block.splitlines()]
            prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
            for line in [*lines, *(span.replace("\n", " ") for span in code(prose))]:
                for words in commands(line):
                    self.check(named(page), words)
                    checked += 1
        self.assertGreater(checked, 80)

    def check(self, page, words):
        said = " ".join(["fuse", *words])
        if words and words[0].startswith("-"):
            return self.assertIn(words[0], self.help(), f"{page}: {said}")
        plain = []
        for word in words:
            if not re.fullmatch(r"[a-z][a-z-]*", word) or len(plain) == 3:
                break
            plain.append(word)
        depth = next((n for n in range(len(plain), 0, -1) if self.is_command(plain[:n])), 0)
        self.assertGreater(depth, 0, f"{page}: {said}")
        text = self.help(*plain[:depth])
        self.assertFalse("\nCommands:" in text and depth < len(plain), f"{page}: {said}")
        for word in words[depth:]:
            if word == "--":
                break
            if word.startswith("--"):
                flag = re.escape(word.split("=")[0])
                self.assertTrue(re.search(rf"{flag}\b", text), f"{page}: {said}: no {word}")

    def is_command(self, words):
        text = self.help(*words)
        return bool(text) and re.search(rf"Usage: fuse {' '.join(words)}( |$)", text, re.M) is not None


def commands(line):
    """The words of each `fuse …` in a line of shell or a span of code."""
    for found in re.finditer(r"(?:^|\||\$\(|sudo |&& )\s*(?:id=\$\()?fuse( [^|)&]*)?", line):
        # `up|down` are alternatives; what is meant to be filled in stays a word.
        rest = (found[1] or "").split(" #")[0].replace("<", "").replace(">", "").replace("…", "")
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:
            words = rest.split()
        if words:
            yield words


if __name__ == "__main__":
    unittest.main()
