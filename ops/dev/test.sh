#!/usr/bin/env bash
# Everything CI runs: lint, unit and property tests, both databases, real guests.
set -euo pipefail
cd "$(dirname "$0")/../.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

ops/dev/deps.sh test
ops/dev/lint.sh
cargo build --locked --workspace --bins
ops/dev/image.sh target/debug/fc-agent services node

# Tests that cannot run here print `SKIP <test>: <reason>`; --show-output keeps those lines.
status=0
cargo test --locked --workspace --no-fail-fast -- --show-output 2>&1 | tee "$log" || status=$?
tests/ops/run.sh 2>&1 | tee -a "$log" || status=$?
tests/sdk/run.sh 2>&1 | tee -a "$log" || status=$?
tests/openapi/run.sh 2>&1 | tee -a "$log" || status=$?

printf '\n'
grep -a '^SKIP ' "$log" | sort -u || true
printf 'test: %s skipped\n' "$(grep -ac '^SKIP ' "$log" || true)"
grep -aE '^test .* FAILED$|^(FAIL|ERROR): ' "$log" | sort -u || true
exit "$status"
