//! Settings of the control plane, as resolved by the orchestrator's configuration.

use std::time::Duration;

use fuse_model::Redacted;
use fuse_planner::Policy;
use fuse_wire_host::{AgentRoots, AgentUrl};

/// Everything that the use cases may be told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Prefix of VM ids.
    pub vm_prefix: String,
    /// The default backend: an agent and its token; `None` = the stub.
    pub default_backend: Option<(AgentUrl, Redacted<String>)>,
    /// Certificates that agents may prove themselves by, beside the system's.
    pub agent_roots: AgentRoots,
    /// Bound of a startup script that names none.
    pub script_timeout: Duration,
    /// Longest bound that a request may ask for.
    pub max_script_timeout: Duration,
    /// Where guests fetch a guest agent that is not in their image.
    pub agent_download_url: Option<String>,
    /// Which of the eligible hosts is preferred.
    pub placement_policy: Policy,
    /// Whether hosts whose agent does not answer get no placements.
    pub exclude_unreachable_hosts: bool,
    /// Time between two checks of a host.
    pub host_check_interval: Duration,
    /// Boots that fail in a row until a host gets no placements; 0 = it always does.
    pub quarantine_after: u32,
    /// Time between two reconcile cycles.
    pub reconcile_interval: Duration,
    /// Age at which a task counts as stuck, unless its environment says otherwise.
    pub task_stuck_timeout: Duration,
    /// Idle time after which an environment is destroyed, unless it says otherwise;
    /// zero = never.
    pub default_idle_timeout: Duration,
    /// Age at which snapshots may be collected, unless their request says otherwise;
    /// zero = never.
    pub snapshot_retention: Duration,
    /// Snapshots that a tenant may have; zero = any number.
    pub snapshot_max_count: u64,
    /// Bytes of snapshots that a tenant may have; zero = any number.
    pub snapshot_max_bytes: u64,
    /// Bound of copying a snapshot's disk to another host; zero = the agents' own.
    pub artifact_pull_timeout: Duration,
    /// Time without use after which layers are collected; zero = never.
    pub artifact_idle_ttl: Duration,
    /// Layers that a tenant may have; zero = any number.
    pub artifact_max_per_tenant: u64,
    /// Failed attempts on one orphan after which it is left alone.
    pub orphan_max_retries: u32,
    /// Age at which audit entries are forgotten; zero = never.
    pub audit_retention: Duration,
    /// Whether the runtime ceiling ends environments that were drained and left alone.
    pub max_runtime_covers_draining: bool,
    /// Whether the sizes that an agent gives to those who name none are accounted for.
    pub account_default_size: bool,
    /// Whether VMs that were on the hosts before a store in memory began are destroyed.
    pub destroy_unknown_on_boot: bool,
    /// Whether API keys see, use and end what they made themselves and nothing else.
    pub scope_keys_to_owner: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            vm_prefix: "fuse-".to_owned(),
            default_backend: None,
            agent_roots: AgentRoots::default(),
            script_timeout: Duration::from_secs(30),
            max_script_timeout: Duration::from_secs(55),
            agent_download_url: None,
            placement_policy: Policy::default(),
            exclude_unreachable_hosts: true,
            host_check_interval: Duration::from_secs(10),
            quarantine_after: 3,
            reconcile_interval: Duration::from_secs(30),
            task_stuck_timeout: Duration::from_secs(2 * 3600),
            default_idle_timeout: Duration::ZERO,
            snapshot_retention: Duration::ZERO,
            snapshot_max_count: 0,
            snapshot_max_bytes: 0,
            artifact_pull_timeout: Duration::ZERO,
            artifact_idle_ttl: Duration::ZERO,
            artifact_max_per_tenant: 0,
            orphan_max_retries: 5,
            audit_retention: Duration::from_secs(90 * 24 * 3600),
            max_runtime_covers_draining: false,
            account_default_size: false,
            destroy_unknown_on_boot: false,
            scope_keys_to_owner: false,
        }
    }
}
