//! Values with a grammar or a range: sizes, durations, counts, GPU profile, restart policies, the probe.

use super::request::{HttpGet, Probe};
use crate::diagnostic::{Report, path_segment, quoted};
use crate::grammar::duration::Duration;
use crate::grammar::names::{self, RESTART_POLICIES};
use crate::grammar::size;
use crate::model::{Field, Fusefile};

/// The figures of `resources` and `startup_timeout`, 0 when absent.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) memory_mib: i64,
    pub(super) disk_mib: i64,
    pub(super) max_runtime_seconds: i64,
    pub(super) idle_timeout_seconds: i64,
    pub(super) startup_timeout_seconds: i64,
}

pub(super) fn check(file: &Fusefile, report: &mut Report<'_>) -> Figures {
    let resources = &file.resources;
    let memory = size("resources.memory", &resources.memory, report);
    let storage = size("resources.storage", &resources.storage, report);
    let disk = size("resources.disk", &resources.disk, report);
    if let (Some(storage), Some(disk)) = (storage, disk)
        && storage != disk
    {
        let message = format!(
            "disk and storage name one thing but differ: {}, {}",
            quoted(&resources.disk),
            quoted(&resources.storage)
        );
        report.error(resources.disk.at, "resources.disk", message);
    }
    let max_runtime = duration("resources.max_runtime", &resources.max_runtime, report);
    if max_runtime.is_some_and(|d| d < Duration::ZERO) {
        report.error(
            resources.max_runtime.at,
            "resources.max_runtime",
            "negative",
        );
    }
    let idle = duration("resources.idle_timeout", &resources.idle_timeout, report);
    if let Some(problem) = idle.and_then(idle_problem) {
        report.error(resources.idle_timeout.at, "resources.idle_timeout", problem);
    }
    let startup = positive("startup_timeout", &file.startup_timeout, report);
    if *resources.cpus < 0 {
        report.error(resources.cpus.at, "resources.cpus", "negative");
    }
    if *resources.gpu < 0 {
        report.error(resources.gpu.at, "resources.gpu", "negative");
    }
    Figures {
        memory_mib: memory.unwrap_or(0),
        disk_mib: disk.or(storage).unwrap_or(0),
        max_runtime_seconds: max_runtime.map_or(0, Duration::seconds_floor),
        idle_timeout_seconds: idle.map_or(0, Duration::seconds_floor),
        startup_timeout_seconds: startup.map_or(0, Duration::seconds_ceil),
    }
}

fn idle_problem(idle: Duration) -> Option<&'static str> {
    if idle < Duration::ZERO {
        Some("negative")
    } else if idle > Duration::ZERO && idle < Duration::MINUTE {
        Some("at least 1m0s")
    } else {
        None
    }
}

/// A size in MiB; `None` when absent or bad.
fn size(path: &str, field: &Field<String>, report: &mut Report<'_>) -> Option<i64> {
    if field.is_empty() {
        return None;
    }
    match size::parse(field) {
        Ok(mib) => Some(mib),
        Err(reason) => {
            let message = format!("invalid size {}: {reason}", quoted(field));
            report.error(field.at, path, message);
            None
        }
    }
}

/// A duration; `None` when absent or bad.
fn duration(path: &str, field: &Field<String>, report: &mut Report<'_>) -> Option<Duration> {
    if field.is_empty() {
        return None;
    }
    match Duration::parse(field) {
        Ok(duration) => Some(duration),
        Err(reason) => {
            let message = format!("bad duration {}", quoted(field));
            report.hinted(field.at, path, message, Some(reason.to_string()));
            None
        }
    }
}

/// A duration above zero; `None` when absent or bad.
fn positive(path: &str, field: &Field<String>, report: &mut Report<'_>) -> Option<Duration> {
    let duration = duration(path, field, report)?;
    if duration <= Duration::ZERO {
        report.error(field.at, path, format!("must be positive, got {duration}"));
        return None;
    }
    Some(duration)
}

pub(super) fn gpu_profile(file: &Fusefile, report: &mut Report<'_>) {
    let resources = &file.resources;
    let profile = &resources.gpu_profile;
    if profile.is_empty() {
        return;
    }
    let path = "resources.gpu_profile";
    if !names::is_mig_profile(profile) {
        let message = format!(
            "invalid MIG profile {} (expected mig-parted form like \"1g.10gb\")",
            quoted(profile)
        );
        report.error(profile.at, path, message);
    }
    if *resources.gpu == 0 && !resources.gpu.broken {
        report.error(
            profile.at,
            path,
            "needs gpu >= 1 (the number of MIG instances)",
        );
    }
    if names::kind_without_mig(&resources.gpu_kind).is_some() {
        let message = format!(
            "{} cannot run on gpu_kind {}",
            quoted(profile),
            quoted(&resources.gpu_kind)
        );
        report.error(profile.at, path, message);
    }
}

pub(super) fn restart(file: &Fusefile, report: &mut Report<'_>) {
    for (name, entry) in file.services.iter() {
        let path = format!("services.{}", path_segment(name));
        let restart = &entry.value.restart;
        if !restart.is_empty() && !RESTART_POLICIES.contains(&restart.as_str()) {
            let policies = RESTART_POLICIES.join(", ");
            let message = format!("bad policy {}; one of {policies}", quoted(restart));
            report.error(restart.at, format!("{path}.restart"), message);
        }
        if let Some(check) = &entry.value.healthcheck.value {
            let path = format!("{path}.healthcheck");
            positive(&format!("{path}.interval"), &check.interval, report);
            positive(&format!("{path}.timeout"), &check.timeout, report);
        }
    }
}

pub(super) fn healthcheck(file: &Fusefile, report: &mut Report<'_>) -> Option<Probe> {
    let check = file.healthcheck.as_ref()?;
    let interval = positive("healthcheck.interval", &check.interval, report);
    let timeout = positive("healthcheck.timeout", &check.timeout, report);
    let start_period = positive("healthcheck.start_period", &check.start_period, report);
    let seconds = |d: Option<Duration>| d.map_or(0, Duration::seconds_ceil);
    if let (Some(i), Some(t)) = (interval, timeout)
        && t.seconds_ceil() > i.seconds_ceil()
    {
        let message = format!("{t} exceeds interval {i}");
        report.error(check.timeout.at, "healthcheck.timeout", message);
    }
    Some(Probe {
        http: check.http.as_ref().map(|http| HttpGet {
            port: *http.port,
            path: http.path.value.clone(),
        }),
        exec: check
            .exec
            .iter()
            .map(|argument| argument.value.clone())
            .collect(),
        interval_seconds: seconds(interval),
        timeout_seconds: seconds(timeout),
        retries: *check.retries,
        start_period_seconds: seconds(start_period),
    })
}
