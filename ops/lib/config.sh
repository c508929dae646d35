# shellcheck shell=sh
# Configuration files and the secrets in them. Plain sh: maintainer scripts of packages carry this text as well.

random_hex() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# new_file <path>: writes stdin to a file that only root may read, whole or not at all.
new_file() {
  mkdir -p "$(dirname "$1")"
  (umask 077 && cat >"$1.new")
  mv -f "$1.new" "$1"
}

# setting <file> <name>: its value, or nothing.
setting() {
  [ -f "$1" ] || return 0
  sed -n "s/^$2=//p" "$1" | tail -n 1
}

# orchestrator_env: the first configuration of a control plane on a host of its own.
orchestrator_env() {
  cat <<TEXT
# The orchestrator of this host. Change, then: systemctl restart fuse-orchestrator
ORCH_LISTEN=${ORCH_LISTEN:-:8080}
ORCH_AUTH_TOKEN=$(random_hex)
TOKEN_ENCRYPTION_KEY=$(random_hex)

# Empty: everything is kept in memory and gone after a restart. To keep it, name a PostgreSQL database
# (postgres://user:password@host/fuse) and let the orchestrator refuse to start without it:
DATABASE_URL=
#ORCH_REQUIRE_AUTH=true

#ORCH_ALLOWED_CIDRS=10.0.0.0/8
#ORCH_TRUSTED_PROXIES=10.0.0.5/32
TEXT
}
