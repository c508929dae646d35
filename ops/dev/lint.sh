#!/usr/bin/env bash
# Formatting, clippy and shellcheck: nothing may warn.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
mapfile -t scripts < <(git ls-files | while read -r f; do
  if [[ $f = *.sh ]] || { [ -f "$f" ] && head -c 64 -- "$f" | grep -qaE '^#!.*\b(ba|da)?sh\b'; }; then printf '%s\n' "$f"; fi
done)
shellcheck -x "${scripts[@]}"
