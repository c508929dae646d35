#!/usr/bin/env bash
# Smoke test of the agent that runs on this host: one VM through everything that an agent does, each answer checked.
# Leaves nothing behind.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "usage: fc-agent-test.sh (it takes no arguments)"
as_root "$@"
token=${FC_AGENT_TOKEN:-$(agent_token)}
[ -n "$token" ] || die "there is no FC_AGENT_TOKEN, neither in the environment nor in $FC_DIR/.env: ./fc-agent.sh install-service makes one"
scratch
api=${FC_AGENT_URL:-http://127.0.0.1:$FC_AGENT_PORT}
vm=smoke-$$

# call <method> <path> [body]: the body of the answer; an error status ends the test.
call() {
  local method=$1 path=$2 body=()
  [ $# -lt 3 ] || body=(--header 'Content-Type: application/json' --data-binary "$3")
  with_token "$token" --fail-with-body --max-time 180 --request "$method" "${body[@]}" "$api$path" ||
    die "$method $path failed"
}
# has <answer> <pattern> <what>
has() { grep -Eq -- "$2" <<<"$1" || die "$3: unexpected answer: $1"; log "ok: $3"; }
# guest <word>...: standard output of a command in the VM.
guest() {
  local words
  words=$(printf ',"%s"' "$@")
  call POST "/v1/vm/$vm/exec" "{\"cmd\":[${words#,}]}" | field stdout | base64 -d
}
write() { call POST "/v1/vm/$vm/upload" "{\"path\":\"/root/hello.txt\",\"content_b64\":\"$(printf %s "$1" | base64)\"}"; }

has "$(call GET /healthz)" '"ok" *: *true' health
has "$(call GET /v1/capacity)" '"cpus" *: *[1-9]' capacity
trap 'call DELETE "/v1/vm/$vm" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
has "$(call POST /v1/vm "{\"name\":\"$vm\",\"cpus\":1,\"memory_mb\":512}")" "\"vm_id\" *: *\"$vm\"" create
has "$(call GET "/v1/vm/$vm")" "$vm" get
has "$(call GET "/v1/vm?prefix=$vm")" "$vm" list
has "$(write before)" '"ok" *: *true' upload
has "$(guest cat /root/hello.txt)" '^before$' 'exec reads what was uploaded'
has "$(guest uname -r)" '^[0-9]' 'exec in a guest kernel'
snapshot=$(call POST "/v1/vm/$vm/snapshot" '{"comment":"smoke","live":false}')
has "$snapshot" '"snapshot_id"' snapshot
id=$(field snapshot_id <<<"$snapshot")
has "$(call GET "/v1/vm/$vm/snapshots")" "$id" 'list of snapshots'
write after >/dev/null
has "$(guest cat /root/hello.txt)" '^after$' 'the file changes'
call POST "/v1/vm/$vm/restore" "{\"snapshot_id\":\"$id\"}" >/dev/null
has "$(guest cat /root/hello.txt)" '^before$' 'restore brings the file back'
call DELETE "/v1/vm/$vm" >/dev/null
call DELETE "/v1/snapshots/$id" >/dev/null
trap 'rm -rf "$work"' EXIT
has "$(call GET "/v1/vm?prefix=$vm")" '"vms" *: *\[ *\]' 'nothing is left'
