# shellcheck shell=bash disable=SC2154
# What end-to-end scripts share: an orchestrator of their own. Needs agent.sh; the script that reads this has said: its
# `port` and `api`, the `token` that opens it, and made the scratch directory.

# find_e2e_orchestrator: the program, built here or installed.
find_e2e_orchestrator() {
  local candidate
  program=${ORCH_BIN_SRC:-}
  for candidate in "$tree/target/release/orchestrator" "$tree/target/debug/orchestrator" "$DESTDIR$(default_bin orchestrator)"; do
    [ -n "$program" ] || ! is_program "$candidate" || program=$candidate
  done
  [ -n "$program" ] || die "there is no orchestrator: build it (cargo build -p fuse-orchestrator) or name it with ORCH_BIN_SRC"
}

# start_orchestrator: in memory, with fresh secrets; it ends with the script.
start_orchestrator() {
  local probe
  ! curl --silent --output /dev/null "$api/health" || die "something answers on port $port already; choose another FUSE_E2E_PORT"
  env -u DATABASE_URL ORCH_LISTEN="127.0.0.1:$port" ORCH_AUTH_TOKEN="$token" TOKEN_ENCRYPTION_KEY="$(random_hex)" \
    "$program" >"$work/orchestrator.log" 2>&1 &
  orchestrator=$!
  trap 'kill "$orchestrator" 2>/dev/null; wait "$orchestrator" 2>/dev/null; rm -rf "$work"' EXIT
  curl --silent --retry 20 --retry-delay 1 --retry-connrefused --max-time 10 --output /dev/null "$api/ready" ||
    die "the orchestrator does not get ready: $(tail -n 3 "$work/orchestrator.log")"
  kill -0 "$orchestrator" 2>/dev/null || die "the orchestrator ended: $(tail -n 3 "$work/orchestrator.log")"
  for probe in /health /ready /metrics; do call GET "$probe" 200 >/dev/null; done
}

# call <method> <path> <status> [body]: the answer must have that status (or that pattern of them); its body.
call() {
  local body=() status
  [ $# -lt 4 ] || body=(--header 'Content-Type: application/json' --data-binary "$4")
  status=$(with_token "$token" --max-time 180 --request "$1" "${body[@]}" \
    --output "$work/answer" --write-out '%{http_code}' "$api$2") || die "$1 $2 failed"
  # shellcheck disable=SC2053  # a pattern on purpose
  [[ $status = $3 ]] || die "$1 $2 answered $status instead of $3: $(cat "$work/answer")"
  log "ok: $1 $2 $status"
  cat "$work/answer"
}
is() { [ "$1" = "$2" ] || die "$3 is '$1' instead of '$2'"; }
