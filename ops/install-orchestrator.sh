#!/usr/bin/env bash
# Installs the control plane on a host of its own: /usr/local/bin/orchestrator, /etc/fuse/orchestrator.env and
# fuse-orchestrator.service. Runs as root; running it again keeps the configuration and its secrets.
#
#   uninstall [--purge]   takes the service away; its configuration and store stay, or go with --purge
#   ORCH_BIN_SRC=/path    install this program; else ./orchestrator, else the release VERSION (default: the latest)
#   ORCH_LISTEN=:8080     address to listen on, for a configuration that is written now
#   DESTDIR=/stage        put everything under another root
set -euo pipefail

# >>> in a checkout
# What is read from "$ops" below, packing (ops/dev/pack.sh) puts in place; through a pipe there is no "$ops".
ops=$(dirname "${BASH_SOURCE[0]:-/dev/stdin}")
[ -f "$ops/lib/release.sh" ] ||
  { echo 'error: ops/lib/release.sh is missing: run ops/install-orchestrator.sh from a checkout, or take the install-orchestrator.sh of a release' >&2; exit 1; }
# <<< in a checkout
# shellcheck source=ops/lib/release.sh
. "$ops/lib/release.sh"
# shellcheck source=ops/lib/config.sh
. "$ops/lib/config.sh"
# shellcheck disable=SC2034  # of host.sh
me=install-orchestrator
# shellcheck source=ops/lib/host.sh
. "$ops/lib/host.sh"

DESTDIR=${DESTDIR:-}
config=$DESTDIR/etc/fuse/orchestrator.env
units=$DESTDIR/etc/systemd/system

unit_text() {
  cat "$ops/systemd/fuse-orchestrator.service"
}

install_program() {
  chosen_program orchestrator "${ORCH_BIN_SRC:-}"
  [ -n "$source" ] || released_program "fuse_Linux_$(release_arch).tar.gz" orchestrator
  put_program /usr/local/bin/orchestrator
}

write_config() {
  if [ -f "$config" ]; then chmod 0600 "$config"; log "keeping /etc/fuse/orchestrator.env"; return 0; fi
  orchestrator_env | new_file "$config"
  log "wrote /etc/fuse/orchestrator.env with fresh secrets"
}

uninstall() {
  remove_units fuse-orchestrator.service
  if is_purge "$@"; then purge_orchestrator /etc/fuse/orchestrator.env /usr/local/bin/orchestrator; else
    stays /etc/fuse/orchestrator.env /usr/local/bin/orchestrator /var/lib/fuse-orchestrator
  fi
}

case $* in
  '' | uninstall | 'uninstall --purge') ;;
  *) die "it takes uninstall [--purge] or no arguments; its settings are environment variables" ;;
esac
[ "$(id -u)" -eq 0 ] || [ -n "$DESTDIR" ] || die "needs root: sudo ./ops/install-orchestrator.sh"
command -v systemctl >/dev/null 2>&1 || die "needs systemd (there is no systemctl)"
if [ $# -gt 0 ]; then uninstall "${@:2}"; exit; fi
release_arch >/dev/null
! systemctl is-enabled --quiet orchestrator.service 2>/dev/null ||
  die "orchestrator.service (the installation beside a host agent) is enabled on this host; one per host: systemctl disable --now orchestrator, then run this again"

install_program
write_config
write_unit "$units/fuse-orchestrator.service" "$(unit_text)"
systemctl enable fuse-orchestrator.service
# Returns when the orchestrator has said that it is ready.
run_unit fuse-orchestrator.service

listen=$(setting "$config" ORCH_LISTEN)
listen=${listen:-:8080}
scheme=http
[ -z "$(setting "$config" ORCH_TLS_CERT)" ] || scheme=https
printf 'orchestrator installed and listening on %s\n\n' "$listen"
printf '  fuse connect %s://%s:%s --token %s --master\n' "$scheme" "$(public_host)" "${listen##*:}" "$(setting "$config" ORCH_AUTH_TOKEN)"
