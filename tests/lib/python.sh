# shellcheck shell=bash
# For runners of tests that use published Python packages, in the root of the tree:
#   . tests/lib/python.sh <suite> <what its packages are called>
# Sets `python`, an interpreter with tests/<suite>/requirements.txt, and exports FUSE_ORCHESTRATOR, the program under
# test. Needs a built orchestrator (`cargo build --bins`). The packages are installed once, into target/.
suite=$1 packages=$2

die() { printf '%s: %s\n' "$suite" "$*" >&2; exit 1; }

target=${CARGO_TARGET_DIR:-target}
orchestrator=${FUSE_ORCHESTRATOR:-$target/debug/orchestrator}
[ -x "$orchestrator" ] || die "$orchestrator is missing: run  cargo build --bins  first"
python3 -c 'import ensurepip, venv' 2>/dev/null ||
  die 'python3 cannot make virtual environments: run  ops/dev/deps.sh test  first'

# One environment per set of requirements and interpreter, complete only once its marker exists.
key=$({ python3 -VV; cat "tests/$suite/requirements.txt"; } | sha256sum | cut -c1-12)
venv=$target/$suite-venv/$key
if [ ! -e "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  if ! log=$("$venv/bin/pip" install --disable-pip-version-check --quiet -r "tests/$suite/requirements.txt" 2>&1); then
    # A developer may be offline; CI is not allowed to be.
    [ "${CI:-}" != true ] || die "cannot install $packages: $log"
    printf 'SKIP tests/%s: cannot install %s: %s\n' "$suite" "$packages" "$(tail -n 1 <<<"$log")"
    exit 0
  fi
  touch "$venv/installed"
fi

# shellcheck disable=SC2034  # read by the runners
python=$venv/bin/python
FUSE_ORCHESTRATOR=$(realpath "$orchestrator")
export FUSE_ORCHESTRATOR PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/tests/lib
