#!/usr/bin/env bash
# Conformance: the published Python SDK, unmodified, against the orchestrator of this build.
#
#   tests/sdk/run.sh [unittest options, e.g. -k events -v]
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/python.sh
. tests/lib/python.sh sdk 'the SDK'
exec "$python" -m unittest discover --start-directory tests/sdk --top-level-directory tests/sdk "$@"
