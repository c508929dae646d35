#!/usr/bin/env bash
# Everything CI runs: lint, unit and property tests, both databases, real guests.
set -euo pipefail
cd "$(dirname "$0")/../.."

log=$(mktemp)
trap 'rm -f "$log" "$log.api"' EXIT
# What runs in the background ends with the rest.
trap 'trap - INT TERM; kill 0' INT TERM

ops/dev/deps.sh test
# A first build is quicker without the notes that later ones would be incremental by.
[ -d "${CARGO_TARGET_DIR:-target}/debug/incremental" ] || export CARGO_INCREMENTAL=0
# All programs and tests in one build: by themselves, programs are built with other features and everything is built twice.
cargo build --locked --workspace --bins --tests
# What guests boot is mostly fetched and unpacked; in between, the processor has time for the linter.
ops/dev/image.sh target/debug/fc-agent services node &
linted=0
nice ops/dev/lint.sh || linted=$?
wait "$!"
[ "$linted" -eq 0 ] || exit "$linted"

# Tests that cannot run here print `SKIP <test>: <reason>`; --show-output keeps those lines.
status=0
cargo test --locked --workspace --no-fail-fast -- --show-output 2>&1 | tee "$log" || status=$?
# The suites of the API need no guests, for which those of the scripts wait.
api_suites() {
  local status=0
  tests/sdk/run.sh || status=$?
  tests/openapi/run.sh || status=$?
  return "$status"
}
api_suites >"$log.api" 2>&1 &
tests/ops/run.sh 2>&1 | tee -a "$log" || status=$?
wait "$!" || status=$?
tee -a "$log" <"$log.api"

printf '\n'
grep -a '^SKIP ' "$log" | sort -u || true
printf 'test: %s skipped\n' "$(grep -ac '^SKIP ' "$log" || true)"
grep -aE '^test .* FAILED$|^(FAIL|ERROR): ' "$log" | sort -u || true
exit "$status"
