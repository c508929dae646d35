#!/usr/bin/env bash
# Conformance: the published Python SDK, unmodified, against the orchestrator of this build.
#
#   tests/sdk/run.sh [unittest options, e.g. -k events -v]
#
# Needs a built orchestrator (`cargo build --bins`). The SDK is installed once, into target/.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { printf 'sdk: %s\n' "$*" >&2; exit 1; }

target=${CARGO_TARGET_DIR:-target}
orchestrator=${FUSE_ORCHESTRATOR:-$target/debug/orchestrator}
[ -x "$orchestrator" ] || die "$orchestrator is missing: run  cargo build --bins  first"
python3 -c 'import ensurepip, venv' 2>/dev/null ||
  die 'python3 cannot make virtual environments: run  ops/dev/deps.sh test  first'

# One environment per set of requirements and interpreter, complete only once its marker exists.
key=$({ python3 -VV; cat tests/sdk/requirements.txt; } | sha256sum | cut -c1-12)
venv=$target/sdk-venv/$key
if [ ! -e "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  if ! log=$("$venv/bin/pip" install --disable-pip-version-check --quiet -r tests/sdk/requirements.txt 2>&1); then
    # A developer may be offline; CI is not allowed to be.
    [ "${CI:-}" != true ] || die "cannot install the SDK: $log"
    printf 'SKIP tests/sdk: cannot install the SDK: %s\n' "$(tail -n 1 <<<"$log")"
    exit 0
  fi
  touch "$venv/installed"
fi

FUSE_ORCHESTRATOR=$(realpath "$orchestrator")
export FUSE_ORCHESTRATOR PYTHONDONTWRITEBYTECODE=1
exec "$venv/bin/python" -m unittest discover --start-directory tests/sdk --top-level-directory tests/sdk "$@"
