#!/usr/bin/env bash
# Requests made from the OpenAPI document against the orchestrator of this build, on the stub
# provider: no status, header, body or content type that the document does not say.
#
#   tests/openapi/run.sh [schemathesis options, e.g. --seed 7 --include-operation-id listHosts]
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/python.sh
. tests/lib/python.sh openapi schemathesis
exec "$python" tests/openapi/run.py "$@"
