#!/usr/bin/env bash
# Smoke test of the agent that runs on this host: one VM through everything that an agent does, each answer checked.
# Leaves nothing behind.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=ops/lib/smoke.sh
. "$tree/ops/lib/smoke.sh"
[ $# -eq 0 ] || die "usage: fc-agent-test.sh (it takes no arguments)"
as_root "$@"
token=${FC_AGENT_TOKEN:-$(agent_token)}
[ -n "$token" ] || die "there is no FC_AGENT_TOKEN, neither in the environment nor in $FC_DIR/.env: ./fc-agent.sh install-service makes one"
scratch
api=${FC_AGENT_URL:-$(agent_near "$FC_AGENT_PORT")}
trust_agent
vm=smoke-$$

has "$(ask GET /healthz)" '"ok" *: *true' health
has "$(ask GET /v1/capacity)" '"cpus" *: *[1-9]' capacity
trap 'ask DELETE "/v1/vm/$vm" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
has "$(ask POST /v1/vm "{\"name\":\"$vm\",\"cpus\":1,\"memory_mb\":512}")" "\"vm_id\" *: *\"$vm\"" create
has "$(ask GET "/v1/vm/$vm")" "$vm" get
has "$(ask GET "/v1/vm?prefix=$vm")" "$vm" list
has "$(write before)" '"ok" *: *true' upload
has "$(guest cat /root/hello.txt)" '^before$' 'exec reads what was uploaded'
has "$(guest uname -r)" '^[0-9]' 'exec in a guest kernel'
snapshot=$(ask POST "/v1/vm/$vm/snapshot" '{"comment":"smoke","live":false}')
has "$snapshot" '"snapshot_id"' snapshot
id=$(field snapshot_id <<<"$snapshot")
has "$(ask GET "/v1/vm/$vm/snapshots")" "$id" 'list of snapshots'
write after >/dev/null
has "$(guest cat /root/hello.txt)" '^after$' 'the file changes'
ask POST "/v1/vm/$vm/restore" "{\"snapshot_id\":\"$id\"}" >/dev/null
has "$(guest cat /root/hello.txt)" '^before$' 'restore brings the file back'
ask DELETE "/v1/vm/$vm" >/dev/null
ask DELETE "/v1/snapshots/$id" >/dev/null
trap 'rm -rf "$work"' EXIT
has "$(ask GET "/v1/vm?prefix=$vm")" '"vms" *: *\[ *\]' 'nothing is left'
