//! Throughput of the control plane on the stub provider: create, get, list, delete, per store and load.

use std::sync::Arc;

use anyhow::Result;
use fuse_testkit::fake_agent::{FakeAgent, TOKEN};
use http::{Method, StatusCode};
use serde_json::json;

use crate::load::{Job, Outcome, Target};
use crate::report::{Budget, Report, note};
use crate::startup::{Engine, Plane};

const GROUP: &str = "store";

/// Environments of one create run, by what a store is expected to do in about five seconds.
fn creates(engine: Engine, in_flight: usize, quick: bool) -> usize {
    let full = match (engine, in_flight) {
        (_, 1) => 500,
        (Engine::Memory, _) => 8_000,
        (Engine::File | Engine::Postgres, _) => 3_000,
    };
    if quick { full / 10 } else { full }
}

/// All stores at 1, 16 and 64 requests in flight.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    for engine in Engine::ALL {
        let Some(plane) = Plane::start(engine).await? else {
            report.skipped(
                GROUP,
                format!("everything on {}", engine.name()),
                "no PostgreSQL is installed",
            );
            continue;
        };
        note(&format!("{}:", engine.name()));
        for in_flight in [1, 16, 64] {
            round(report, &plane, in_flight, quick).await?;
        }
        if engine == Engine::Postgres {
            with_a_host(report, &plane, quick).await?;
        }
        page_of_many(report, &plane, quick).await?;
        plane.stop().await?;
    }
    Ok(())
}

async fn round(report: &mut Report, plane: &Plane, in_flight: usize, quick: bool) -> Result<()> {
    let engine = plane.engine();
    let count = creates(engine, in_flight, quick);
    let prefix = format!("b{in_flight}");
    let create = job(plane, StatusCode::CREATED, {
        let prefix = prefix.clone();
        move |n| {
            let body =
                json!({"task_id": format!("{prefix}-{n}"), "spec": {"cpus": 1, "ram_mb": 128}});
            (Method::POST, "/v1/environments".into(), body.to_string())
        }
    });
    let outcome = create.run(count, in_flight).await?;
    let line = |verb: &str| format!("{verb}, {}, {in_flight} in flight", engine.name());
    add(
        report,
        &line("create"),
        &outcome,
        create_budget(engine, in_flight),
    );

    let get = job(plane, StatusCode::OK, {
        let prefix = prefix.clone();
        move |n| {
            (
                Method::GET,
                format!("/v1/environments/fuse-{prefix}-{}", n % count),
                String::new(),
            )
        }
    });
    let gets = if in_flight == 1 { 2_000 } else { 20_000 } / if quick { 10 } else { 1 };
    let outcome = get.run(gets, in_flight).await?;
    add(
        report,
        &line("get"),
        &outcome,
        get_budget(engine, in_flight),
    );

    let delete = job(plane, StatusCode::NO_CONTENT, move |n| {
        (
            Method::DELETE,
            format!("/v1/environments/fuse-{prefix}-{n}"),
            String::new(),
        )
    });
    let outcome = delete.run(count, in_flight).await?;
    let budget = if engine == Engine::Postgres && in_flight == 16 {
        Limits {
            rate: Some(600.0),
            ..Limits::default()
        }
    } else {
        Limits::default()
    };
    add(report, &line("delete"), &outcome, budget);
    Ok(())
}

/// Creates and deletes on a registered host: placement, its charge, and the calls of an agent.
/// The agent is a fake one in this process, so its share is in the figures.
async fn with_a_host(report: &mut Report, plane: &Plane, quick: bool) -> Result<()> {
    let agent = FakeAgent::start().await?;
    let host = json!({
        "id": "bench", "url": agent.url(), "token": TOKEN,
        "capacity": {"cpus": 1_000_000, "ram_mb": 1_000_000_000, "storage_gb": 1_000_000,
                     "vm_count": 1_000_000},
    });
    let register = job(plane, StatusCode::CREATED, move |_| {
        (Method::POST, "/v1/hosts".into(), host.to_string())
    });
    register.run(1, 1).await?;
    for in_flight in [1, 16, 64] {
        let count = creates(plane.engine(), in_flight, quick);
        let create = job(plane, StatusCode::CREATED, move |n| {
            let task = format!("h{in_flight}-{n}");
            let body = json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 128}});
            (Method::POST, "/v1/environments".into(), body.to_string())
        });
        let line = |verb: &str| format!("{verb} on a host, Postgres, {in_flight} in flight");
        let outcome = create.run(count, in_flight).await?;
        add(report, &line("create"), &outcome, Limits::default());
        let delete = job(plane, StatusCode::NO_CONTENT, move |n| {
            let path = format!("/v1/environments/fuse-h{in_flight}-{n}");
            (Method::DELETE, path, String::new())
        });
        let outcome = delete.run(count, in_flight).await?;
        add(report, &line("delete"), &outcome, Limits::default());
    }
    let remove = job(plane, StatusCode::NO_CONTENT, |_| {
        (Method::DELETE, "/v1/hosts/bench".into(), String::new())
    });
    remove.run(1, 1).await.map(drop)
}

/// One page of 200 out of 10,000 environments; then all of them are removed again.
async fn page_of_many(report: &mut Report, plane: &Plane, quick: bool) -> Result<()> {
    let count = if quick { 1_000 } else { 10_000 };
    let create = job(plane, StatusCode::CREATED, |n| {
        let body = json!({"task_id": format!("many-{n}"), "spec": {"cpus": 1, "ram_mb": 128}});
        (Method::POST, "/v1/environments".into(), body.to_string())
    });
    create.run(count, 16).await?;
    let list = job(plane, StatusCode::OK, |_| {
        (
            Method::GET,
            "/v1/environments?limit=200".into(),
            String::new(),
        )
    });
    let outcome = list.run(200, 1).await?;
    let what = format!("a page of 200 out of {count}, {}", plane.engine().name());
    report.add(
        GROUP,
        what,
        outcome.latency.p50_ms(),
        "ms p50",
        Budget::AtMost(5.0),
    );
    let what = format!("orchestrator after all that, {}", plane.engine().name());
    let resident = plane.resident_mib().await?;
    report.add(GROUP, what, resident, "MiB", Budget::None);
    plane.restart_with_many(report, count).await
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

/// Limits of one run; absent ones are shown without a verdict.
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    rate: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

fn create_budget(engine: Engine, in_flight: usize) -> Limits {
    match (engine, in_flight) {
        (Engine::Memory, 16) => Limits {
            rate: Some(2_500.0),
            ..Limits::default()
        },
        (Engine::File, 16) => Limits {
            rate: Some(800.0),
            ..Limits::default()
        },
        (Engine::Postgres, 1) => Limits {
            p50_ms: Some(6.0),
            ..Limits::default()
        },
        (Engine::Postgres, 16) => Limits {
            rate: Some(600.0),
            p99_ms: Some(45.0),
            ..Limits::default()
        },
        (Engine::Postgres, 64) => Limits {
            rate: Some(600.0),
            p99_ms: Some(180.0),
            ..Limits::default()
        },
        _ => Limits::default(),
    }
}

fn get_budget(engine: Engine, in_flight: usize) -> Limits {
    let rate = match (engine, in_flight) {
        (_, 1) => None,
        (Engine::Postgres, _) => Some(8_000.0),
        (Engine::Memory | Engine::File, _) => Some(20_000.0),
    };
    Limits {
        rate,
        p99_ms: (in_flight == 64).then_some(10.0),
        ..Limits::default()
    }
}

fn add(report: &mut Report, what: &str, outcome: &Outcome, limits: Limits) {
    let at_most = |limit: Option<f64>| limit.map_or(Budget::None, Budget::AtMost);
    report.add(
        GROUP,
        what,
        outcome.rate,
        "/s",
        limits.rate.map_or(Budget::None, Budget::AtLeast),
    );
    report.add(
        GROUP,
        what,
        outcome.latency.p50_ms(),
        "ms p50",
        at_most(limits.p50_ms),
    );
    report.add(
        GROUP,
        what,
        outcome.latency.percentile_ms(99),
        "ms p99",
        at_most(limits.p99_ms),
    );
}
