#!/usr/bin/env bash
# Smoke test of the agent that runs on this host: one VM with a GPU through everything that an agent does, each answer
# checked. Leaves nothing behind. Does nothing where no agent answers.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=ops/lib/smoke.sh
. "$tree/ops/lib/smoke.sh"
[ $# -eq 0 ] || die "usage: qemu-agent-test.sh (it takes no arguments)"
as_root "$@"
need_agent
vm=smoke-$$
scratch

# refused <method> <path> <status> [body]
refused() {
  local body=() status
  [ $# -lt 4 ] || body=(--header 'Content-Type: application/json' --data-binary "$4")
  status=$(with_token "$token" --max-time 60 --request "$1" "${body[@]}" --output "$work/answer" --write-out '%{http_code}' "$api$2") ||
    die "$1 $2 failed"
  [ "$status" = "$3" ] || die "$1 $2 answered $status instead of $3: $(cat "$work/answer")"
  log "ok: $1 $2 $3"
}

has "$(ask GET /healthz)" '"app_name" *: *"qemu-agent"' health
has "$(ask GET /v1/capacity)" '"gpus" *: *[1-9]' 'capacity, with a GPU'
trap 'ask DELETE "/v1/vm/$vm" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
has "$(ask POST /v1/vm "{\"name\":\"$vm\",\"cpus\":1,\"memory_mb\":1024,\"gpus\":1}")" "\"vm_id\" *: *\"$vm\"" create
has "$(ask GET "/v1/vm/$vm")" "$vm" get
has "$(ask GET "/v1/vm?prefix=$vm")" "$vm" list
has "$(write before)" '"ok" *: *true' upload
has "$(guest cat /root/hello.txt)" '^before$' 'exec reads what was uploaded'
has "$(guest uname -r)" '^[0-9]' 'exec in a guest kernel'
refused POST "/v1/vm/$vm/snapshot" 501 '{}'
refused GET "/v1/vm/$vm/snapshots" 501
refused POST "/v1/vm/$vm/restore" 400 '{}'
ask DELETE "/v1/vm/$vm" >/dev/null
trap 'rm -rf "$work"' EXIT
has "$(ask GET "/v1/vm?prefix=$vm")" '"vms" *: *\[ *\]' 'nothing is left'
