#!/usr/bin/env bash
# `make docs`: the manual as a site in target/manual.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v mdbook >/dev/null; then
    echo "make docs: mdbook is not installed; install it with: cargo install mdbook --locked" >&2
    exit 1
fi
mdbook build docs
echo "the manual: $PWD/target/manual/index.html"
