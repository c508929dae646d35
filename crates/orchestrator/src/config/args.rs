//! Command line flags. Values are texts here; `parse` gives them meaning, so that a
//! flag and its environment variable are read by the same rules.

use clap::{Parser, Subcommand};

/// The control plane of a Fuse fleet.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "orchestrator", version = crate::VERSION, after_help = ENVIRONMENT)]
pub struct Args {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "a doc comment would be its help")]
    pub command: Option<Command>,
    /// Address to bind [env: ORCH_LISTEN] [default: :8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Prefix of VM ids [env: ORCH_VM_PREFIX] [default: fuse-]
    #[arg(long, value_name = "PREFIX")]
    pub vm_prefix: Option<String>,
    /// Bound of receiving a request's headers [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub read_header_timeout: Option<String>,
    /// Bound of sending a response, event streams and exec excepted [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub write_timeout: Option<String>,
    /// How long an idle connection is kept [default: 120s]
    #[arg(long, value_name = "DURATION")]
    pub idle_timeout: Option<String>,
    /// Largest header block [default: 65536]
    #[arg(long, value_name = "BYTES")]
    pub max_header_bytes: Option<String>,
    /// Bound of a startup script that names none [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub startup_script_timeout: Option<String>,
    /// Longest bound that a request may ask for [default: 55s]
    #[arg(long, value_name = "DURATION")]
    pub max_startup_script_timeout: Option<String>,
    /// How long a shutdown waits [env: ORCH_SHUTDOWN_TIMEOUT_SECONDS] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
    /// Agent of the default backend; unset = stub [env: FIRECRACKER_BASE_URL]
    #[arg(long, value_name = "URL")]
    pub firecracker_url: Option<String>,
    /// Token of that agent; prefer the variable, flags are visible to others [env: FIRECRACKER_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub firecracker_token: Option<String>,
    /// postgres://… or sqlite://path; unset = memory [env: DATABASE_URL]
    #[arg(long, value_name = "URL", global = true)]
    pub database_url: Option<String>,
    /// Certificate chain, PEM [env: ORCH_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// Private key, PEM [env: ORCH_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Certificates that host agents may prove themselves by, PEM, beside the system's [env: ORCH_AGENT_CA]
    #[arg(long, value_name = "FILE")]
    pub agent_ca: Option<String>,
    /// Master token; prefer the variable, flags are visible to others [env: ORCH_AUTH_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub auth_token: Option<String>,
    /// Address blocks that are let in, a comma list; unset = all [env: ORCH_ALLOWED_CIDRS]
    #[arg(long, value_name = "BLOCKS")]
    pub allowed_cidrs: Option<String>,
    /// Address blocks of proxies whose X-Forwarded-For counts, a comma list; unset = none [env: ORCH_TRUSTED_PROXIES]
    #[arg(long, value_name = "BLOCKS")]
    pub trusted_proxies: Option<String>,
    /// Mark session cookies Secure: true or false; unset = when TLS is on [env: ORCH_SECURE_COOKIES]
    #[arg(long, value_name = "BOOL")]
    pub secure_cookies: Option<String>,
    /// Make an API key with this label, print it and exit; needs a database URL
    #[arg(long, value_name = "LABEL")]
    pub mint_api_key: Option<String>,
    /// Time between two reconcile cycles [env: ORCH_RECONCILE_INTERVAL_SECONDS] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub reconcile_interval: Option<String>,
    /// Age at which a task is stuck [env: ORCH_TASK_STUCK_TIMEOUT_SECONDS] [default: 2h]
    #[arg(long, value_name = "DURATION")]
    pub task_stuck_timeout: Option<String>,
    /// Idle limit of environments that name none; 0 = off [env: ORCH_DEFAULT_IDLE_TIMEOUT_SECONDS]
    #[arg(long, value_name = "DURATION")]
    pub default_idle_timeout: Option<String>,
    /// Age at which snapshots that name none may be collected; 0 = never
    /// [env: ORCH_SNAPSHOT_RETENTION_SECONDS]
    #[arg(long, value_name = "DURATION")]
    pub snapshot_retention: Option<String>,
    /// Snapshots that a task may have; 0 = any number [env: ORCH_SNAPSHOT_MAX_COUNT]
    #[arg(long, value_name = "N")]
    pub snapshot_max_count: Option<String>,
    /// Bytes of snapshots that a task may have; 0 = any number [env: ORCH_SNAPSHOT_MAX_BYTES]
    #[arg(long, value_name = "BYTES")]
    pub snapshot_max_bytes: Option<String>,
    /// Bound of copying a snapshot to another host; 0 = the agents' own
    /// [env: ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS]
    #[arg(long, value_name = "DURATION")]
    pub artifact_pull_timeout: Option<String>,
    /// Time without use after which layers are collected; 0 = never
    /// [env: ORCH_ARTIFACT_IDLE_TTL_SECONDS]
    #[arg(long, value_name = "DURATION")]
    pub artifact_idle_ttl: Option<String>,
    /// Layers that a tenant may have; 0 = any number [env: ORCH_ARTIFACT_MAX_PER_TENANT]
    #[arg(long, value_name = "N")]
    pub artifact_max_per_tenant: Option<String>,
    /// Attempts on an orphaned VM [env: ORCH_ORPHAN_MAX_RETRIES] [default: 5]
    #[arg(long, value_name = "N")]
    pub orphan_max_retries: Option<String>,
    /// Age at which audit entries are forgotten; 0 = never [env: ORCH_AUDIT_RETENTION_SECONDS] [default: 2160h]
    #[arg(long, value_name = "DURATION")]
    pub audit_retention: Option<String>,
    /// spread or binpack [env: ORCH_PLACEMENT_POLICY] [default: spread]
    #[arg(long, value_name = "POLICY")]
    pub placement_policy: Option<String>,
    /// Let the runtime ceiling end drained environments, too [env: ORCH_MAX_RUNTIME_COVERS_DRAINING]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub max_runtime_covers_draining: Option<String>,
    /// Account for the sizes that an agent gives to those who name none (1 CPU, 512 MiB)
    /// [env: ORCH_ACCOUNT_DEFAULT_SIZE]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub account_default_size: Option<String>,
    /// With a store in memory: destroy the VMs that hosts have when they are first heard; for
    /// hosts that no other orchestrator uses [env: ORCH_DESTROY_UNKNOWN_ON_BOOT]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub destroy_unknown_on_boot: Option<String>,
    /// Let API keys reach only what they made themselves [env: ORCH_SCOPE_KEYS_TO_OWNER]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub scope_keys_to_owner: Option<String>,
    /// Whether hosts whose agent does not answer get no placements
    /// [env: ORCH_EXCLUDE_UNREACHABLE_HOSTS] [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub exclude_unreachable_hosts: Option<String>,
    /// Time between two checks of a host [env: ORCH_HOST_CHECK_INTERVAL_SECONDS] [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub host_check_interval: Option<String>,
    /// Boots that fail in a row until a host gets no placements; 0 = off
    /// [env: ORCH_QUARANTINE_AFTER] [default: 3]
    #[arg(long, value_name = "N")]
    pub quarantine_after: Option<String>,
}

/// What to do instead of serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Seal all stored secrets under TOKEN_ENCRYPTION_KEY, then exit
    ///
    /// To change the key: start every orchestrator with the new TOKEN_ENCRYPTION_KEY and the old
    /// one as TOKEN_ENCRYPTION_KEY_PREVIOUS, run this with the same two, then start them without
    /// the old one. On PostgreSQL it runs while orchestrators serve; it may be interrupted and run
    /// again.
    Rekey,
    /// Read hosts, environments, snapshots, keys and secrets of a restored backup, then exit
    ///
    /// Give it a copy of the database as DATABASE_URL and the fleet's TOKEN_ENCRYPTION_KEY: every host, environment,
    /// snapshot and API key is read, and every secret opened. It brings the schema up to date, as a
    /// start does, and changes nothing else.
    BackupCheck,
    /// Show what a reconcile cycle would do, then exit
    ///
    /// Reads the store and asks every host, and changes nothing. Beside serving orchestrators on
    /// PostgreSQL; a SQLite store has one process at a time.
    Reconcile {
        /// Show it only: cycles are done by the orchestrators that serve
        #[arg(long, required = true)]
        dry_run: bool,
    },
}

const ENVIRONMENT: &str = "\
Environment only:
  TOKEN_ENCRYPTION_KEY  key of secrets at rest, 64 hex digits; without it guests get no credentials
  TOKEN_ENCRYPTION_KEY_PREVIOUS
                        the key before that: what is stored under it still opens
  ORCH_REQUIRE_AUTH     exactly `true`: refuse to start without ORCH_AUTH_TOKEN,
                        TOKEN_ENCRYPTION_KEY and DATABASE_URL
  AGENT_DOWNLOAD_URL    handed to host agents that fetch a guest agent; fc-agent brings its own and refuses it
  RUST_LOG              log filter, default info
  FUSE_LOG_FORMAT       text (default) or json: an object a line

A flag wins over its variable; an empty variable counts as unset. Durations: 30s, 5m, 2h.";
