#!/usr/bin/env bash
# Everything about the services of a host that runs guests. Each command can be run again; none replaces a
# configuration file.
# shellcheck source=host-agent/firecracker/common.sh
. "$(dirname "$0")/common.sh"

usage() {
  cat >&2 <<'TEXT'
usage: fc-agent.sh [command]

  start | stop | restart       run the agent without systemd (the default is start)
  log                          follow the agent's log
  env                          what an orchestrator needs to reach this agent
  install-service              the agent as fc-agent.service
  uninstall-service [--purge]  what it kept stays; --purge ends its guests and removes them, images and settings, too
  install-certificate          TLS for the agent, by a certificate of its own; prints that
  install-orchestrator         an orchestrator beside it, as orchestrator.service
  uninstall-orchestrator [--purge]
                               its configuration and its store stay; --purge removes them, too
  install-updater              verified updates every Monday around 04:00 UTC
  uninstall-updater
  bootstrap [--no-updater] [--no-register]
                               all of the above, from a bare machine to a host that takes work
TEXT
  exit 1
}

config=$DESTDIR/etc/default/orchestrator
pid_file=$state/.fc-agent.pid
log_file=$state/fc-agent.log

print_env() {
  printf 'FIRECRACKER_BASE_URL=%s://%s:%s\n' "$(agent_scheme)" "$(public_host)" "$FC_AGENT_PORT"
  printf 'FIRECRACKER_TOKEN=%s\n' "$(agent_token)"
}

# agent_pid: of an agent that start left behind.
agent_pid() {
  local pid
  pid=$(cat "$pid_file" 2>/dev/null) || return 1
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = fc-agent ] && printf '%s' "$pid"
}

start() {
  [ ! -f "$units/fc-agent.service" ] || die "the agent is a service here: systemctl start fc-agent"
  [ -x "$DESTDIR$FC_AGENT_BIN" ] || die "$FC_AGENT_BIN is missing: run ./fc-install.sh first"
  ensure_token
  if agent_pid >/dev/null; then log "the agent runs already"; else
    load_settings
    FC_DIR=$FC_DIR FC_AGENT_PORT=$FC_AGENT_PORT FC_BIN=$FC_BIN \
      setsid "$DESTDIR$FC_AGENT_BIN" >>"$log_file" 2>&1 </dev/null &
    printf '%s\n' "$!" >"$pid_file"
    until curl --silent --output /dev/null "http://127.0.0.1:$FC_AGENT_PORT/"; do
      kill -0 "$!" 2>/dev/null || { rm -f "$pid_file"; die "the agent ended: $(tail -n 1 "$log_file")"; }
      sleep 0.2
    done
  fi
  print_env
}

stop() {
  local pid
  pid=$(agent_pid) || { rm -f "$pid_file"; log "no agent runs that start left behind"; return 0; }
  kill "$pid"
  # Guests go on running; the agent only finishes the requests it has.
  timeout 60 tail --pid="$pid" -f /dev/null || die "the agent ($pid) does not end; its log: $log_file"
  rm -f "$pid_file"
  log "stopped; guests go on running"
}

follow_log() {
  if [ -f "$units/fc-agent.service" ]; then exec journalctl -u fc-agent -n 200 -f; fi
  exec tail -n 200 -F "$log_file"
}

install_service() {
  find_agent
  mkdir -p "$state"
  ensure_token
  [ -f "$state/vmlinux.bin" ] || die "$FC_DIR holds no guest image: run ./fc-install.sh first"
  install_unit fc-agent.service
  systemctl enable fc-agent.service
  run_unit fc-agent.service
  log "fc-agent.service runs on port $FC_AGENT_PORT"
  print_env
}

write_config() {
  [ ! -f "$config" ] || { log "keeping /etc/default/orchestrator"; chmod 0600 "$config"; return 0; }
  new_file "$config" <<TEXT
# The orchestrator beside this host's agent. Change, then: systemctl restart orchestrator
ORCH_LISTEN=:8080
FIRECRACKER_BASE_URL=$(agent_near "$FC_AGENT_PORT")
FIRECRACKER_TOKEN=$(agent_token)

# Where everything durable lives; the schema is made at the first start.
DATABASE_URL=${DATABASE_URL:-postgres://USER:PASSWORD@HOST:5432/fuse}

# Refuses to start unless the two secrets and the database are set.
ORCH_REQUIRE_AUTH=true
ORCH_AUTH_TOKEN=$(random_hex)
TOKEN_ENCRYPTION_KEY=$(random_hex)

#ORCH_TLS_CERT=/etc/fuse/tls.crt
#ORCH_TLS_KEY=/etc/fuse/tls.key
#ORCH_ALLOWED_CIDRS=10.0.0.0/8
#ORCH_TRUSTED_PROXIES=10.0.0.5/32
TEXT
  log "wrote /etc/default/orchestrator with fresh secrets"
}

install_orchestrator() {
  ! systemctl is-enabled --quiet fuse-orchestrator.service 2>/dev/null ||
    die "fuse-orchestrator.service (the dedicated installation) is enabled on this host; one per host: systemctl disable --now fuse-orchestrator, then run this again"
  find_orchestrator
  ensure_token
  write_config
  install_unit orchestrator.service
  systemctl enable orchestrator.service
  case $(setting "$config" DATABASE_URL) in
    '' | *USER:PASSWORD@HOST*)
      log "not started: put your PostgreSQL into DATABASE_URL, then start it:"
      printf '\n  sudoedit /etc/default/orchestrator\n  sudo systemctl start orchestrator\n\n' ;;
    *)
      run_unit orchestrator.service
      log "orchestrator.service runs" ;;
  esac
  printf 'FUSE_BASE_URL=http://%s:%s\n' "$(public_host)" "$(listen_port)"
  printf 'FUSE_TOKEN=%s\n' "$(setting "$config" ORCH_AUTH_TOKEN)"
  log "to have it updated with this host: echo FUSE_ORCH_SERVICE=orchestrator.service | sudo tee -a $FC_DIR/.fc-updater.env"
}

uninstall_service() {
  # Its own directory goes in a purge, and with it the log of an agent that still writes there.
  if [ "${1:-}" = --purge ] && agent_pid >/dev/null; then stop; fi
  uninstall_agent "$FC_AGENT_BIN" fc-update fc-agent.service "$@"
  # Not made by Fuse.
  stays "$FC_BIN"
}

uninstall_orchestrator() {
  remove_units orchestrator.service
  if is_purge "$@"; then purge_orchestrator /etc/default/orchestrator "$ORCH_BIN"; else
    stays /etc/default/orchestrator "$ORCH_BIN" /var/lib/fuse-orchestrator
  fi
}

listen_port() {
  local listen
  listen=$(setting "$config" ORCH_LISTEN)
  printf '%s' "${listen##*:}" | grep . || printf 8080
}

# register: this host with its own orchestrator, which asks the agent for what is left open.
register() {
  local url token
  url=http://127.0.0.1:$(listen_port) token=$(setting "$config" ORCH_AUTH_TOKEN)
  curl --silent --show-error --fail --retry 30 --retry-delay 1 --retry-all-errors --output /dev/null "$url/ready" ||
    die "the orchestrator does not get ready: systemctl status orchestrator"
  printf '{"id":"local-fc","url":"%s","token":"%s","region":"local","backend":"firecracker","capacity":{"vm_count":%d}}' \
    "$(agent_near "$FC_AGENT_PORT")" "$(agent_token)" "$((4 * $(nproc)))" >"$work/host.json"
  with_token "$token" --fail-with-body --header 'Content-Type: application/json' \
    --data-binary "@$work/host.json" --output "$work/answer.json" "$url/v1/hosts" ||
    die "the orchestrator did not register this host: $(cat "$work/answer.json" 2>/dev/null)"
  log "registered as host local-fc"
}

bootstrap() {
  local updater=1 registers=1 flag
  for flag in "$@"; do
    case $flag in
      --no-updater) updater='' ;;
      --no-register) registers='' ;;
      *) die "bootstrap does not know '$flag' (--no-updater, --no-register)" ;;
    esac
  done
  # One machine needs no database server; give DATABASE_URL to have one.
  DATABASE_URL=${DATABASE_URL:-sqlite:///var/lib/fuse-orchestrator/fuse.db}
  scratch
  "$here/fc-deps.sh"
  "$here/fc-install.sh"
  install_service
  if grep -q '^DATABASE_URL=.*USER:PASSWORD@HOST' "$config" 2>/dev/null; then
    awk -v line="DATABASE_URL=$DATABASE_URL" '/^DATABASE_URL=/ { print line; next } { print }' "$config" >"$work/config"
    new_file "$config" <"$work/config"
    log "filled the DATABASE_URL that an earlier run left open"
  fi
  changed=''
  install_orchestrator
  [ -z "$registers" ] || register
  if [ -n "$updater" ]; then
    [ -n "$(setting "$state/.fc-updater.env" FUSE_ORCH_SERVICE)" ] ||
      printf 'FUSE_ORCH_SERVICE=orchestrator.service\nFUSE_ORCH_BIN=%s\n' "$ORCH_BIN" | new_file "$state/.fc-updater.env"
    install_updater fc-update
  fi
  printf '\n  fuse connect http://%s:%s --token %s --master\n' \
    "$(public_host)" "$(listen_port)" "$(setting "$config" ORCH_AUTH_TOKEN)"
}

command=${1:-start}
[ $# -eq 0 ] || shift
case $command in
  bootstrap) ;;
  uninstall-service | uninstall-orchestrator) [ $# -eq 0 ] || { [ $# -eq 1 ] && [ "$1" = --purge ]; } || usage ;;
  *) [ $# -eq 0 ] || usage ;;
esac
case $command in
  start | stop | restart | log | env | install-certificate | install-service | uninstall-service | install-orchestrator | \
    uninstall-orchestrator | install-updater | uninstall-updater | bootstrap) as_root "$command" "$@" ;;
  *) usage ;;
esac
case $command in
  start) start ;;
  stop) stop ;;
  restart) stop; start ;;
  log) follow_log ;;
  env) ensure_token; print_env ;;
  install-certificate) install_certificate fc-agent.service ;;
  install-service) install_service ;;
  uninstall-service) uninstall_service "$@" ;;
  install-orchestrator) install_orchestrator ;;
  uninstall-orchestrator) uninstall_orchestrator "$@" ;;
  install-updater) install_updater fc-update ;;
  uninstall-updater) remove_units fc-update.timer fc-update.service ;;
  bootstrap) bootstrap "$@" ;;
esac
