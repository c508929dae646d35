"""Prints the bill of materials (CycloneDX) of the programs that a release ships: every crate that is linked in or runs
while they are built. The same Cargo.lock gives the same text."""

import json
import subprocess
import sys

SHIPPED = ("fuse-cli", "fuse-orchestrator", "fuse-host-agent", "fuse-guest-agent", "fuse-fc-emulator")


def linked(metadata):
    """Ids of the packages that the shipped ones need, development dependencies left out."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [p["id"] for p in metadata["packages"] if p["name"] in SHIPPED]
    seen = set()
    while todo:
        package = todo.pop()
        if package in seen:
            continue
        seen.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return seen, nodes


def main():
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    used, nodes = linked(metadata)
    packages = {p["id"]: p for p in metadata["packages"] if p["id"] in used}
    refs = {id: f"pkg:cargo/{p['name']}@{p['version']}" for id, p in packages.items()}
    components = [
        {
            "type": "library",
            "bom-ref": refs[id],
            "name": p["name"],
            "version": p["version"],
            "purl": refs[id],
            **({"licenses": [{"expression": p["license"].replace("/", " OR ")}]} if p["license"] else {}),
        }
        for id, p in packages.items()
    ]
    dependencies = [
        {"ref": refs[id], "dependsOn": sorted({refs[d] for d in nodes[id]["dependencies"] if d in refs})}
        for id in packages
    ]
    json.dump(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": {"type": "application", "name": "fuse", "version": sys.argv[1]}},
            "components": sorted(components, key=lambda c: c["bom-ref"]),
            "dependencies": sorted(dependencies, key=lambda d: d["ref"]),
        },
        sys.stdout,
        indent=1,
    )
    print()


main()
