//! A large fleet: the decision itself, a page of hosts, and a create among ten thousand of them.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use fuse_model::{
    Allocated, Backend, Capacity, EnvironmentSpec, Evict, Host, HostId, HostState, Labels, now,
};
use fuse_planner::{Policy, place};
use fuse_testkit::fake_agent::{FakeAgent, TOKEN};
use http::{Method, StatusCode};
use serde_json::json;

use crate::load::{Job, Target};
use crate::report::{Budget, Report, note};
use crate::startup::{Engine, Plane};
use crate::stats::Series;

const GROUP: &str = "fleet";

/// All of it; the number of hosts is what the budgets are about, so it stays.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    const HOSTS: u32 = 10_000;
    decision(report, HOSTS, if quick { 100 } else { 2_000 });
    // Once at the start, and not again: what is measured is not the watch over the hosts.
    let hourly = [
        "ORCH_HOST_CHECK_INTERVAL_SECONDS",
        "ORCH_RECONCILE_INTERVAL_SECONDS",
    ]
    .map(|name| (name.to_owned(), "3600".to_owned()));
    let Some(plane) = Plane::start_with(Engine::Postgres, hourly.into()).await? else {
        report.skipped(GROUP, "a fleet in Postgres", "no PostgreSQL is installed");
        return Ok(());
    };
    note("fleet in Postgres:");
    let agent = FakeAgent::start().await?;
    fill(&plane, HOSTS, &agent.url())?;
    let list = job(&plane, StatusCode::OK, |_| {
        (Method::GET, "/v1/hosts?limit=200".into(), String::new())
    });
    let outcome = list.run(if quick { 20 } else { 200 }, 1).await?;
    report.add(
        GROUP,
        format!("a page of 200 out of {HOSTS} hosts"),
        outcome.latency.p50_ms(),
        "ms p50",
        Budget::AtMost(20.0),
    );
    transaction(report, &plane, HOSTS, quick).await?;
    for in_flight in [1, 16] {
        let create = job(&plane, StatusCode::CREATED, move |n| {
            let task = format!("f{in_flight}-{n}");
            let body = json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 128}});
            (Method::POST, "/v1/environments".into(), body.to_string())
        });
        let outcome = create
            .run(if quick { 50 } else { 1_000 }, in_flight)
            .await?;
        let what = format!("create among {HOSTS} hosts, {in_flight} in flight");
        report.add(GROUP, &what, outcome.rate, "/s", Budget::None);
        let p50 = outcome.latency.p50_ms();
        report.add(GROUP, &what, p50, "ms p50", Budget::None);
    }
    plane.stop().await
}

/// What a create takes until it is accepted: the placement, and the transaction that charges the
/// host and stores the environment with its task and its first event.
async fn transaction(report: &mut Report, plane: &Plane, hosts: u32, quick: bool) -> Result<()> {
    let accept = Job {
        in_background: true,
        ..job(plane, StatusCode::ACCEPTED, |n| {
            let body = json!({"task_id": format!("a{n}"), "spec": {"cpus": 1, "ram_mb": 128}});
            (Method::POST, "/v1/environments".into(), body.to_string())
        })
    };
    let outcome = accept.run(if quick { 50 } else { 500 }, 1).await?;
    report.add(
        GROUP,
        format!("a create accepted among {hosts} hosts"),
        outcome.latency.percentile_ms(99),
        "ms p99",
        Budget::AtMost(10.0),
    );
    Ok(())
}

/// Placement on hosts that are all different.
fn decision(report: &mut Report, count: u32, rounds: u32) {
    let mut fleet: Vec<Host> = (0..count).map(host).collect();
    let spec = EnvironmentSpec {
        cpus: 2,
        ram_mb: 2048,
        storage_gb: 10,
        region: "eu".to_owned(),
        labels: Labels::from([("disk".to_owned(), "nvme".to_owned())]),
        ..EnvironmentSpec::default()
    };
    let mut samples = Vec::new();
    for round in 0..rounds {
        let begun = Instant::now();
        let placement = black_box(place(black_box(&spec), &fleet, Policy::Spread, &[]));
        samples.push(begun.elapsed());
        drop(placement);
        // Never the same fleet twice.
        if let Some(host) = fleet.get_mut((round * 7919 % count) as usize) {
            host.allocated.cpus = i32::try_from(round % 32).unwrap_or_default();
        }
    }
    let series = Series::new(samples);
    report.add(
        GROUP,
        format!("decision among {count} hosts"),
        series.percentile_ms(99),
        "ms p99",
        Budget::AtMost(1.0),
    );
}

fn host(n: u32) -> Host {
    let part = |of: u32| i32::try_from(n % of).unwrap_or_default();
    Host {
        id: HostId::new(format!("host-{n:05}")),
        url: format!("http://host-{n}:8090"),
        region: if n.is_multiple_of(2) { "eu" } else { "us" }.to_owned(),
        backend: Backend::Firecracker,
        labels: Labels::from([("disk".to_owned(), "nvme".to_owned())]),
        state: HostState::Active,
        evict: Evict::None,
        capacity: Capacity {
            cpus: 32 + part(64),
            ram_mb: 131_072 + part(1000),
            storage_gb: 2000,
            vm_count: 100,
            ..Capacity::default()
        },
        allocated: Allocated {
            cpus: part(32),
            ..Allocated::default()
        },
        last_seen: now(),
        created_at: now(),
        updated_at: now(),
        agent: None,
        failed_boots: None,
    }
}

/// Hosts with ten environments each, written past the API: that would take minutes.
fn fill(plane: &Plane, hosts: u32, url: &str) -> Result<()> {
    let micros = now().as_microsecond();
    let insert_hosts = format!(
        "INSERT INTO hosts (id, url, region, backend, labels, state, arch, gpu_kind, cpus_total, \
         cpus_allocated, ram_mb_total, ram_mb_allocated, storage_gb_total, storage_gb_allocated, \
         vms_total, vms_allocated, gpus_total, gpus_allocated, last_seen, created_at, updated_at, \
         token_sealed, token) SELECT 'host-' || lpad(n::text, 5, '0'), '{url}', 'eu', \
         'firecracker', '{{\"disk\":\"nvme\"}}', 'active', 'amd64', '', 64 + n % 32, 10, 131072, \
         1280, 2000, 0, 100, 10, 0, 0, {micros}, {micros}, {micros}, 0, '{TOKEN}' \
         FROM generate_series(1, {hosts}) AS n"
    );
    let environments = hosts * 10;
    let insert_environments = format!(
        "INSERT INTO environments (id, version, state, task_id, tenant, host_id, url, error, \
         created_at, updated_at, activity_at, endpoints, spec, request) SELECT 'fuse-old-' || n, \
         1, 'running', 'old-' || n, '', 'host-' || lpad((1 + n % {hosts})::text, 5, '0'), '', '', \
         {micros}, {micros}, {micros}, '[]', '{{\"cpus\":1,\"ram_mb\":128}}', '{{}}' \
         FROM generate_series(1, {environments}) AS n"
    );
    let insert_reservations = format!(
        "INSERT INTO reservations (environment_id, host_id, cpus, ram_mb, storage_gb, gpus) \
         SELECT 'fuse-old-' || n, 'host-' || lpad((1 + n % {hosts})::text, 5, '0'), 1, 128, 0, 0 \
         FROM generate_series(1, {environments}) AS n"
    );
    for sql in [insert_hosts, insert_environments, insert_reservations] {
        plane.sql(&sql)?;
    }
    plane.sql("ANALYZE")?;
    Ok(())
}

fn job(
    plane: &Plane,
    expected: StatusCode,
    request: impl Fn(usize) -> (Method, String, String) + Send + Sync + 'static,
) -> Job {
    Job {
        target: Target::Tcp(plane.address()),
        token: plane.token().to_owned(),
        request: Arc::new(request),
        in_background: false,
        expected,
    }
}
