//! What the control plane counts (api 11). Names and types are contract.
//!
//! Figures about the fleet are those of this replica's last reconcile cycle; a replica
//! that does not hold the lease shows none for hosts and 0 in `orchestrator_leader`.

use fuse_model::{AgentCheck, Allocated, Capacity, Host};
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, core::Collector,
};

/// Upper bounds of every histogram (seconds).
pub const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The figures; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    pub(crate) cycle: CycleMetrics,
    pub(crate) passes: PassMetrics,
    pub(crate) list_errors: IntCounterVec,
    pub(crate) coalesced: IntCounter,
    hosts: HostMetrics,
    write_failures: IntCounterVec,
}

/// Of reconcile cycles.
#[derive(Debug, Clone)]
pub(crate) struct CycleMetrics {
    pub(crate) count: IntCounter,
    pub(crate) seconds: Histogram,
    pub(crate) tracked: IntGauge,
    pub(crate) listed: IntGauge,
    pub(crate) last_success: Gauge,
    pub(crate) leader: IntGauge,
}

/// Of what cycles did.
#[derive(Debug, Clone)]
pub(crate) struct PassMetrics {
    pub(crate) orphans_destroyed: IntCounter,
    pub(crate) orphans_failed: IntCounter,
    pub(crate) orphans_dead: IntCounter,
    pub(crate) stuck_suspected: IntCounter,
    pub(crate) stuck_failed: IntCounter,
    pub(crate) idle_suspected: IntCounter,
    pub(crate) idle_failed: IntCounter,
    pub(crate) missing: IntCounter,
    pub(crate) probed: IntGauge,
    pub(crate) failing: IntGauge,
    pub(crate) quarantined: IntGauge,
    pub(crate) foreign: IntGauge,
}

#[derive(Debug, Clone)]
struct HostMetrics {
    reachable: IntGaugeVec,
    quarantined: IntGaugeVec,
    capacity: IntGaugeVec,
    allocated: IntGaugeVec,
}

/// Registers figures under their names.
#[expect(
    clippy::expect_used,
    reason = "names and labels are constants of this file, and each is registered once"
)]
mod make {
    use super::*;

    pub(super) fn register<C: Collector + Clone + 'static>(registry: &Registry, figure: C) -> C {
        registry
            .register(Box::new(figure.clone()))
            .expect("its name is not in use");
        figure
    }

    pub(super) fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
        register(registry, IntCounter::new(name, help).expect("a valid name"))
    }

    pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
        register(registry, IntGauge::new(name, help).expect("a valid name"))
    }

    pub(super) fn seconds(registry: &Registry, name: &str, help: &str) -> Gauge {
        register(registry, Gauge::new(name, help).expect("a valid name"))
    }

    pub(super) fn histogram(registry: &Registry, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
        register(
            registry,
            Histogram::with_opts(options).expect("a valid name"),
        )
    }

    pub(super) fn counters(
        registry: &Registry,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> IntCounterVec {
        let figures = IntCounterVec::new(Opts::new(name, help), labels);
        register(registry, figures.expect("valid names"))
    }

    pub(super) fn gauges(
        registry: &Registry,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> IntGaugeVec {
        let figures = IntGaugeVec::new(Opts::new(name, help), labels);
        register(registry, figures.expect("valid names"))
    }
}

impl CycleMetrics {
    fn new(r: &Registry) -> Self {
        use make::{counter, gauge, histogram, seconds};
        let of = |name: &str| format!("orchestrator_reconcile_{name}");
        Self {
            count: counter(r, &of("cycles_total"), "Reconcile cycles."),
            seconds: histogram(r, &of("duration_seconds"), "Duration of reconcile cycles."),
            tracked: gauge(
                r,
                "orchestrator_fleet_tracked_vms",
                "Environments in the table.",
            ),
            listed: gauge(
                r,
                "orchestrator_fleet_provider_vms",
                "VMs that hosts listed.",
            ),
            last_success: seconds(
                r,
                &of("last_success_timestamp_seconds"),
                "When a cycle completed last, Unix time.",
            ),
            leader: gauge(
                r,
                "orchestrator_leader",
                "1 while this replica holds the reconcile lease.",
            ),
        }
    }
}

impl PassMetrics {
    fn new(r: &Registry) -> Self {
        let counter = |name: &str, help: &str| {
            make::counter(r, &format!("orchestrator_reconcile_{name}_total"), help)
        };
        let gauge = |name: &str, help: &str| {
            make::gauge(r, &format!("orchestrator_reconcile_{name}"), help)
        };
        Self {
            orphans_destroyed: counter("orphans_destroyed", "Orphaned VMs destroyed."),
            orphans_failed: counter("orphans_failed", "Failed attempts on orphaned VMs."),
            orphans_dead: counter("orphans_dead_lettered", "Orphaned VMs given up on."),
            stuck_suspected: counter("stuck_tasks_suspected", "Tasks over their runtime, once."),
            stuck_failed: counter("stuck_tasks_failed", "Tasks ended for their runtime."),
            idle_suspected: counter("idle_vms_suspected", "Idle environments, once."),
            idle_failed: counter("idle_vms_failed", "Environments ended for idleness."),
            missing: counter("vms_missing_provider", "Environments whose VM is gone."),
            probed: gauge("health_checked_vms", "Running environments with a probe."),
            failing: gauge("health_failing_vms", "Those whose probe fails."),
            quarantined: gauge("quarantined_vms", "VMs from before that are left alone."),
            foreign: gauge("foreign_vms", "VMs of others with our prefix, left alone."),
        }
    }
}

impl HostMetrics {
    fn new(r: &Registry) -> Self {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            make::gauges(r, &format!("orchestrator_host_{name}"), help, labels)
        };
        Self {
            reachable: gauges("reachable", "1 while the host's agent answers.", &["host"]),
            quarantined: gauges(
                "quarantined",
                "1 while a host gets no placements because boots fail there.",
                &["host"],
            ),
            capacity: gauges("capacity", "What a host offers.", &["host", "resource"]),
            allocated: gauges("allocated", "What a host gave away.", &["host", "resource"]),
        }
    }

    fn reset(&self) {
        self.reachable.reset();
        self.quarantined.reset();
        self.capacity.reset();
        self.allocated.reset();
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label: &str| {
            make::counters(
                &registry,
                &format!("orchestrator_{name}_total"),
                help,
                &[label],
            )
        };
        let write_failures = counters("state_write_failures", "Failed writes.", "entity");
        for entity in ["vm", "task", "host"] {
            write_failures.with_label_values(&[entity]).reset();
        }
        Self {
            cycle: CycleMetrics::new(&registry),
            passes: PassMetrics::new(&registry),
            hosts: HostMetrics::new(&registry),
            list_errors: counters(
                "reconcile_host_list_errors",
                "Hosts that did not list their VMs.",
                "host",
            ),
            coalesced: make::counter(
                &registry,
                "orchestrator_sse_coalesced_events_total",
                "Events that slow subscribers did not get one by one.",
            ),
            write_failures,
            registry,
        }
    }

    /// Where the HTTP layer adds its own figures, and what is exposed.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Shows the hosts as they are now, and no others.
    pub(crate) fn show_hosts(&self, hosts: &[Host]) {
        self.hosts.reset();
        for host in hosts {
            let id = host.id.as_str();
            let answers = host.agent.as_ref().is_some_and(AgentCheck::is_reachable);
            let quarantined = host.quarantined_at().is_some();
            self.hosts
                .quarantined
                .with_label_values(&[id])
                .set(quarantined.into());
            self.hosts
                .reachable
                .with_label_values(&[id])
                .set(answers.into());
            for (resource, amount) in capacity(&host.capacity) {
                self.hosts
                    .capacity
                    .with_label_values(&[id, resource])
                    .set(amount);
            }
            for (resource, amount) in allocated(&host.allocated) {
                self.hosts
                    .allocated
                    .with_label_values(&[id, resource])
                    .set(amount);
            }
        }
    }

    /// Another replica looks after the fleet: what is known of hosts here grows old.
    pub(crate) fn follow(&self) {
        self.cycle.leader.set(0);
        self.hosts.reset();
    }

    /// Takes over the store's own count.
    pub(crate) fn count_write_failures<'a>(&self, totals: impl Iterator<Item = (&'a str, u64)>) {
        for (entity, total) in totals {
            let counter = self.write_failures.with_label_values(&[entity]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }
}

fn capacity(of: &Capacity) -> [(&'static str, i64); 5] {
    [
        ("cpus", of.cpus.into()),
        ("ram_mb", of.ram_mb.into()),
        ("storage_gb", of.storage_gb.into()),
        ("vm_count", of.vm_count.into()),
        ("gpus", of.gpus.into()),
    ]
}

fn allocated(of: &Allocated) -> [(&'static str, i64); 5] {
    [
        ("cpus", of.cpus.into()),
        ("ram_mb", of.ram_mb.into()),
        ("storage_gb", of.storage_gb.into()),
        ("vm_count", of.vm_count.into()),
        ("gpus", of.gpus.into()),
    ]
}
