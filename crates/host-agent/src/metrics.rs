//! The agent's figures for Prometheus: what it did, counted when it is done, and how the host stands,
//! read when it is asked.
//!
//! Labels are from closed sets, so the number of series does not grow with the VMs.

use std::time::Duration;

use fuse_wire_host::{CreateTimings, VmState};
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// Bounds in seconds: a host's work takes milliseconds, an emulated boot many seconds.
const BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];
const STATES: [VmState; 6] = [
    VmState::Creating,
    VmState::Running,
    VmState::Booting,
    VmState::Stopped,
    VmState::Deleting,
    VmState::Unknown,
];

/// The figures of one agent.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    creates: IntCounterVec,
    create_seconds: HistogramVec,
    restores: IntCounterVec,
    restore_seconds: Histogram,
    snapshots: IntCounterVec,
    pause_seconds: Histogram,
    rule_checks: IntCounterVec,
    vms: IntGaugeVec,
    slots: IntGauge,
    free_bytes: IntGauge,
    snapshot_bytes: IntGauge,
}

/// How the host stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    /// A state for each VM.
    pub(crate) states: Vec<VmState>,
    /// VMs that the host has numbers for.
    pub(crate) slots: u64,
    /// Free where disks live; unknown while it cannot be read.
    pub(crate) free_bytes: Option<u64>,
    /// What the snapshots take up.
    pub(crate) snapshot_bytes: u64,
}

impl Metrics {
    /// # Errors
    /// A name is not valid or used twice; both are defects.
    pub(crate) fn new(app: &str) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let info = Opts::new("fuse_agent_info", "The agent; always 1.")
            .const_label("agent", app)
            .const_label("version", crate::VERSION);
        add(&registry, IntGauge::with_opts(info)?)?.set(1);
        let counter = |name: &str, help: &str| {
            add(
                &registry,
                IntCounterVec::new(Opts::new(name, help), &["outcome"])?,
            )
        };
        let gauge = |name: &str, help: &str| add(&registry, IntGauge::new(name, help)?);
        let seconds =
            |name: &str, help: &str| HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
        let create = seconds(
            "fuse_agent_create_seconds",
            "Parts of a create: the host's work, waiting for a turn, the boot, all of it.",
        );
        let restore = seconds("fuse_agent_restore_seconds", "A restore that succeeded.");
        let pause = seconds(
            "fuse_agent_snapshot_pause_seconds",
            "How long a guest stood still for a snapshot.",
        );
        let states = Opts::new("fuse_agent_vms", "VMs by state.");
        Ok(Self {
            creates: counter("fuse_agent_creates_total", "Creates that ended.")?,
            create_seconds: add(&registry, HistogramVec::new(create, &["part"])?)?,
            restores: counter("fuse_agent_restores_total", "Restores that ended.")?,
            restore_seconds: add(&registry, Histogram::with_opts(restore)?)?,
            snapshots: counter("fuse_agent_snapshots_total", "Snapshots that ended.")?,
            pause_seconds: add(&registry, Histogram::with_opts(pause)?)?,
            rule_checks: counter(
                "fuse_agent_rule_checks_total",
                "Looks at the packet rules: intact, repaired, failed.",
            )?,
            vms: add(&registry, IntGaugeVec::new(states, &["state"])?)?,
            slots: gauge("fuse_agent_vm_slots", "VMs that this host has numbers for.")?,
            free_bytes: gauge("fuse_agent_disk_free_bytes", "Free where disks live.")?,
            snapshot_bytes: gauge("fuse_agent_snapshot_bytes", "What snapshots take up.")?,
            registry,
        })
    }

    /// A create that succeeded.
    pub(crate) fn created(&self, timings: &CreateTimings) {
        self.creates.with_label_values(&["ok"]).inc();
        let parts = [
            ("host", timings.host),
            ("queued", timings.queued),
            ("boot", timings.boot),
            ("total", timings.total),
        ];
        for (part, millis) in parts {
            let part = self.create_seconds.with_label_values(&[part]);
            part.observe(millis / 1e3);
        }
    }

    /// A create that failed.
    pub(crate) fn create_failed(&self) {
        self.creates.with_label_values(&["failed"]).inc();
    }

    /// A restore that ended after `took`.
    pub(crate) fn restored(&self, ok: bool, took: Duration) {
        self.restores.with_label_values(&[outcome(ok)]).inc();
        if ok {
            self.restore_seconds.observe(took.as_secs_f64());
        }
    }

    /// A snapshot that ended, and for how long the guest was paused, if it was.
    pub(crate) fn snapshot(&self, ok: bool, pause_ms: Option<f64>) {
        self.snapshots.with_label_values(&[outcome(ok)]).inc();
        if let Some(millis) = pause_ms {
            self.pause_seconds.observe(millis / 1e3);
        }
    }

    /// A look at the packet rules.
    pub(crate) fn rules(&self, outcome: &str) {
        self.rule_checks.with_label_values(&[outcome]).inc();
    }

    /// All figures in the text format.
    ///
    /// # Errors
    /// They cannot be written, which is a defect.
    pub(crate) fn text(&self, now: &Standing) -> Result<String, prometheus::Error> {
        for state in STATES {
            let count = now.states.iter().filter(|is| **is == state).count();
            let gauge = self.vms.with_label_values(&[label(state)]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let set =
            |gauge: &IntGauge, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        set(&self.slots, now.slots);
        set(&self.snapshot_bytes, now.snapshot_bytes);
        if let Some(free) = now.free_bytes {
            set(&self.free_bytes, free);
        }
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

fn add<C: Collector + Clone + 'static>(
    registry: &Registry,
    figure: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(figure.clone()))?;
    Ok(figure)
}

fn outcome(ok: bool) -> &'static str {
    if ok { "ok" } else { "failed" }
}

fn label(state: VmState) -> &'static str {
    match state {
        VmState::Creating => "creating",
        VmState::Running => "running",
        VmState::Booting => "booting",
        VmState::Stopped => "stopped",
        VmState::Deleting => "deleting",
        VmState::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_and_how_it_stands() {
        let metrics = Metrics::new("fc-agent").unwrap();
        metrics.created(&CreateTimings {
            host: 4.0,
            boot: 3000.0,
            total: 3004.0,
            ..CreateTimings::default()
        });
        metrics.create_failed();
        metrics.restored(true, Duration::from_millis(800));
        metrics.restored(false, Duration::from_secs(30));
        metrics.snapshot(true, Some(140.0));
        metrics.rules("repaired");
        let now = Standing {
            states: vec![VmState::Running, VmState::Running, VmState::Stopped],
            slots: 249,
            free_bytes: Some(1 << 30),
            snapshot_bytes: 4096,
        };
        let text = metrics.text(&now).unwrap();
        for line in [
            "fuse_agent_creates_total{outcome=\"ok\"} 1",
            "fuse_agent_creates_total{outcome=\"failed\"} 1",
            "fuse_agent_create_seconds_bucket{part=\"host\",le=\"0.005\"} 1",
            "fuse_agent_create_seconds_bucket{part=\"boot\",le=\"2.5\"} 0",
            "fuse_agent_create_seconds_bucket{part=\"boot\",le=\"5\"} 1",
            "fuse_agent_restores_total{outcome=\"failed\"} 1",
            "fuse_agent_restore_seconds_count 1",
            "fuse_agent_snapshot_pause_seconds_bucket{le=\"0.25\"} 1",
            "fuse_agent_rule_checks_total{outcome=\"repaired\"} 1",
            "fuse_agent_vms{state=\"running\"} 2",
            "fuse_agent_vms{state=\"creating\"} 0",
            "fuse_agent_vm_slots 249",
            "fuse_agent_disk_free_bytes 1073741824",
            "fuse_agent_snapshot_bytes 4096",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}\n{text}");
        }
        // What is gone is counted no more.
        let text = metrics.text(&Standing::default()).unwrap();
        assert!(
            text.contains("fuse_agent_vms{state=\"running\"} 0\n"),
            "{text}"
        );
    }
}
