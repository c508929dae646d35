#!/usr/bin/env bash
# From nothing to a running microVM: what `make run` does.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ -t 1 ]; then bold=$(printf '\033[1m'); plain=$(printf '\033[0m'); else bold='' plain=''; fi
step() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

step 'System packages'
ops/dev/deps.sh run

step 'Building Fuse (release; the first time takes a few minutes)'
cargo build --release --locked

step 'Guest image: kernel, initramfs, base root file system'
ops/dev/image.sh target/release/fc-agent

fuse=$PWD/target/release/fuse
step 'fuse local up'
"$fuse" local up

step 'fuse up -f examples/hello/Fusefile'
# A second `make run` starts from a fresh guest instead of refusing the name.
"$fuse" environment destroy fuse-hello --yes --ignore-missing >/dev/null 2>&1
"$fuse" up -f examples/hello/Fusefile

step 'What the guest says'
"$fuse" environment exec fuse-hello -- cat /workspace/hello.txt

cat <<NEXT

${bold}The environment is running.${plain} Try next (fuse is target/release/fuse):

  fuse environment list                               what runs where
  fuse environment exec fuse-hello -- uname -a        run a command in the guest
  fuse environment exec fuse-hello --shell 'df -h /'  or one line of shell
  fuse up -f examples/hello/Fusefile --dry-run        what a Fusefile compiles to
  fuse environment destroy fuse-hello                 throw it away
  fuse local down                                     stop everything; environments come back with fuse local up
NEXT
