#!/usr/bin/env bash
# What only a host with a GPU can show: an environment that has one, through an orchestrator of the script's own.
# FUSE_GPU_E2E=1 asks for it; QEMU_BASE_URL and QEMU_TOKEN are those that ./qemu-agent.sh env prints, from the environment
# or from .env beside this script. FUSE_GPU_KIND (a100) is a part of the GPU's name; FUSE_E2E_PORT (18081) must be free.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=ops/lib/e2e.sh
. "$tree/ops/lib/e2e.sh"
[ $# -eq 0 ] || die "usage: qemu-e2e.sh (it takes no arguments)"

skip() { printf 'SKIP qemu-e2e: %s\n' "$*"; exit 0; }
[ "${FUSE_GPU_E2E:-}" = 1 ] || skip 'FUSE_GPU_E2E=1 asks for it, on a host with a GPU'
agent=${QEMU_BASE_URL:-$(setting "$here/.env" QEMU_BASE_URL)}
agent_token=${QEMU_TOKEN:-$(setting "$here/.env" QEMU_TOKEN)}
{ [ -n "$agent" ] && [ -n "$agent_token" ]; } || skip 'neither the environment nor .env has QEMU_BASE_URL and QEMU_TOKEN'
# An answer alone proves nothing: one that refuses the token is an agent too.
with_token "$agent_token" --fail --max-time 10 --output /dev/null "$agent/v1/capacity" 2>/dev/null ||
  skip "no agent that takes QEMU_TOKEN answers at $agent"

kind=${FUSE_GPU_KIND:-a100}
port=${FUSE_E2E_PORT:-18081}
find_e2e_orchestrator
scratch
api=http://127.0.0.1:$port
token=$(random_hex)
start_orchestrator

host=gpu-e2e-$$
call POST /v1/hosts 201 "{\"id\":\"$host\",\"url\":\"$agent\",\"token\":\"$agent_token\",\"backend\":\"qemu\",\"capacity\":{\"gpus\":1,\"gpu_kind\":\"$kind\",\"vm_count\":1}}" >/dev/null
id=''
leave() {
  [ -z "$id" ] || call DELETE "/v1/environments/$id" '@(204|404)' >/dev/null || true
  call DELETE "/v1/hosts/$host" '@(204|404)' >/dev/null || true
  kill "$orchestrator" 2>/dev/null
  wait "$orchestrator" 2>/dev/null
  rm -rf "$work"
}
trap leave EXIT
created=$(call POST /v1/environments 201 "{\"task_id\":\"$host\",\"spec\":{\"cpus\":2,\"ram_mb\":4096,\"storage_gb\":10,\"gpus\":1,\"gpu_kind\":\"$kind\"}}")
id=$(field id <<<"$created")
[ -n "$id" ] || die "the answer to a create has no id: $created"
is "$(field state <<<"$created")" running 'the state after create'
is "$(field host_id <<<"$created")" "$host" 'the host'
seen=$(call POST "/v1/environments/$id/exec" 200 '{"cmd":["nvidia-smi","-L"]}')
grep -q 'GPU 0' <<<"$seen" || die "the guest does not see its GPU: $seen"
call POST "/v1/environments/$id/snapshots" 409 '{}' >/dev/null
call DELETE "/v1/environments/$id" 204
status=$(with_token "$agent_token" --output /dev/null --write-out '%{http_code}' "$agent/v1/vm/$id")
is "$status" 404 'what the agent says of the VM afterwards'
id=''
log "all of it works"
