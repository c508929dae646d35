#!/usr/bin/env bash
# Requests made from the OpenAPI document against the orchestrator of this build, on the stub
# provider: no status, header, body or content type that the document does not say.
#
#   tests/openapi/run.sh [schemathesis options, e.g. --seed 7 --include-operation-id listHosts]
#
# Needs a built orchestrator (`cargo build --bins`). Schemathesis is installed once, into target/.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { printf 'openapi: %s\n' "$*" >&2; exit 1; }

target=${CARGO_TARGET_DIR:-target}
orchestrator=${FUSE_ORCHESTRATOR:-$target/debug/orchestrator}
[ -x "$orchestrator" ] || die "$orchestrator is missing: run  cargo build --bins  first"
python3 -c 'import ensurepip, venv' 2>/dev/null ||
  die 'python3 cannot make virtual environments: run  ops/dev/deps.sh test  first'

# One environment per set of requirements and interpreter, complete only once its marker exists.
key=$({ python3 -VV; cat tests/openapi/requirements.txt; } | sha256sum | cut -c1-12)
venv=$target/openapi-venv/$key
if [ ! -e "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  if ! log=$("$venv/bin/pip" install --disable-pip-version-check --quiet -r tests/openapi/requirements.txt 2>&1); then
    # A developer may be offline; CI is not allowed to be.
    [ "${CI:-}" != true ] || die "cannot install schemathesis: $log"
    printf 'SKIP tests/openapi: cannot install schemathesis: %s\n' "$(tail -n 1 <<<"$log")"
    exit 0
  fi
  touch "$venv/installed"
fi

dir=$(mktemp -d)
orchestrator_pid=
trap '[ -z "$orchestrator_pid" ] || kill "$orchestrator_pid" 2>/dev/null || true; wait || true; rm -rf "$dir"' EXIT

export FUSE_TOKEN=the-master-token
mkfifo "$dir/log"
# A durable store, so that the routes of API keys are mounted.
env -i "DATABASE_URL=sqlite://$dir/fuse.db" "ORCH_AUTH_TOKEN=$FUSE_TOKEN" ORCH_LISTEN=127.0.0.1:0 \
  TOKEN_ENCRYPTION_KEY="$(printf '07%.0s' {1..32})" "$orchestrator" >"$dir/log" 2>&1 &
orchestrator_pid=$!
exec 3<"$dir/log"
address=
while IFS= read -r line <&3; do
  [[ $line =~ address=([^[:space:]]+) ]] && { address=${BASH_REMATCH[1]}; break; }
  printf '%s\n' "$line" >&2
done
[ -n "$address" ] || die 'the orchestrator did not start'
cat <&3 >"$dir/said" &

# The fleet's stream has no end; the tests of the orchestrator read it. Notes are kept where it runs.
here=$PWD/tests/openapi
venv=$(realpath "$venv")
cd "$dir"
status=0
PYTHONDONTWRITEBYTECODE=1 SCHEMATHESIS_HOOKS=$here/hooks.py \
  timeout 300 "$venv/bin/schemathesis" --config-file "$here/schemathesis.toml" \
  run --exclude-operation-id watchFleet --workers 2 --request-timeout 20 --no-color "$@" "http://$address/openapi.json" || status=$?

kill -0 "$orchestrator_pid" 2>/dev/null || die 'the orchestrator ended during the run'
if grep -a panicked "$dir/said" >&2; then die 'the orchestrator panicked'; fi
exit "$status"
