#!/usr/bin/env bash
# The services of a host that gives GPUs to its guests. Each command can be run again; none replaces a configuration file.
# shellcheck source=host-agent/qemu/common.sh
. "$(dirname "$0")/common.sh"

usage() {
  cat >&2 <<'TEXT'
usage: qemu-agent.sh <command>

  install-service     the agent as qemu-agent.service, and qemu-gpus.service, which readies the GPUs at boot
  uninstall-service [--purge]
                      what it kept stays; --purge ends its guests and removes them, images and settings, too
  install-certificate TLS for the agent, by a certificate of its own; prints that
  install-updater     verified updates every Monday around 04:00 UTC
  uninstall-updater
  env                 what registering this host needs
TEXT
  exit 1
}

print_env() {
  printf 'QEMU_BASE_URL=%s://%s:%s\n' "$(agent_scheme)" "$(public_host)" "$QEMU_AGENT_PORT"
  printf 'QEMU_TOKEN=%s\n' "$(agent_token)"
}

install_service() {
  find_agent
  mkdir -p "$state"
  ensure_token
  [ -f "$state/vmlinuz.bin" ] || die "$QEMU_DIR holds no guest image: run ./qemu-install.sh first"
  install_unit qemu-gpus.service
  install_unit qemu-agent.service
  systemctl enable qemu-gpus.service qemu-agent.service
  run_unit qemu-agent.service
  log "qemu-agent.service runs on port $QEMU_AGENT_PORT; register it with: fuse host register <id> --backend qemu --url $(agent_scheme)://$(public_host):$QEMU_AGENT_PORT --token \"\$QEMU_AGENT_TOKEN\" --max-vms <n>"
  print_env
}

[ $# -eq 1 ] || [ "$*" = 'uninstall-service --purge' ] || usage
as_root "$@"
case $1 in
  install-certificate) install_certificate qemu-agent.service ;;
  install-service) install_service ;;
  uninstall-service) uninstall_agent "$QEMU_AGENT_BIN" qemu-update qemu-agent.service qemu-gpus.service "${@:2}" ;;
  install-updater) install_updater qemu-update ;;
  uninstall-updater) remove_units qemu-update.timer qemu-update.service ;;
  env) print_env ;;
  *) usage ;;
esac
