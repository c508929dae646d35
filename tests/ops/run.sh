#!/usr/bin/env bash
# Tests of installers, units and packing: staged roots, a systemctl that only writes down, releases on the loopback.
# The programs are those of target/debug; arguments go to unittest.
set -euo pipefail
cd "$(dirname "$0")"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=../lib exec python3 -m unittest "${@:-discover}"
