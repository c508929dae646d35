//! `/metrics`: names and types of the contract, labels from closed sets.

use std::collections::BTreeMap;

use axum::{Router, body::Body, http::Request};
use fuse_control::{Control, Settings};
use fuse_orchestrator::{AddressBlocks, App, Auth, HttpMetrics, router};
use fuse_store::{Store, Vault};
use fuse_testkit::fake_agent::Step;
use http_body_util::BodyExt as _;
use reqwest::Method;
use serde_json::json;
use tower::ServiceExt as _;

use crate::support::{MASTER, Options, Orchestrator, with_agent};

/// Name, type and labels of every metric of the contract.
const CONTRACT: &[(&str, &str, &[&str])] = &[
    ("reconcile_cycles_total", "counter", &[]),
    ("reconcile_duration_seconds", "histogram", &[]),
    ("fleet_tracked_vms", "gauge", &[]),
    ("fleet_provider_vms", "gauge", &[]),
    ("reconcile_orphans_destroyed_total", "counter", &[]),
    ("reconcile_orphans_failed_total", "counter", &[]),
    ("reconcile_orphans_dead_lettered_total", "counter", &[]),
    ("reconcile_stuck_tasks_suspected_total", "counter", &[]),
    ("reconcile_stuck_tasks_failed_total", "counter", &[]),
    ("reconcile_idle_vms_suspected_total", "counter", &[]),
    ("reconcile_idle_vms_failed_total", "counter", &[]),
    ("reconcile_vms_missing_provider_total", "counter", &[]),
    ("reconcile_health_checked_vms", "gauge", &[]),
    ("reconcile_health_failing_vms", "gauge", &[]),
    (
        "http_requests_total",
        "counter",
        &["route", "method", "code"],
    ),
    (
        "http_request_duration_seconds",
        "histogram",
        &["route", "method"],
    ),
    ("http_requests_in_flight", "gauge", &[]),
    ("host_reachable", "gauge", &["host"]),
    ("host_quarantined", "gauge", &["host"]),
    ("host_capacity", "gauge", &["host", "resource"]),
    ("host_allocated", "gauge", &["host", "resource"]),
    ("reconcile_host_list_errors_total", "counter", &["host"]),
    ("reconcile_last_success_timestamp_seconds", "gauge", &[]),
    ("reconcile_quarantined_vms", "gauge", &[]),
    ("reconcile_foreign_vms", "gauge", &[]),
    ("sse_coalesced_events_total", "counter", &[]),
    ("state_write_failures_total", "counter", &["entity"]),
    ("leader", "gauge", &[]),
];

/// The samples of an exposition by name and labels, without those of histograms.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name, value.parse().unwrap())
        })
        .collect()
}

async fn exposed(fuse: &Orchestrator) -> String {
    let request = reqwest::Client::new().get(format!("{}/metrics", fuse.base));
    let answer = Orchestrator::send(request).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4");
    // In front of the layers of the main router.
    assert_eq!(
        (answer.header("server"), answer.header("x-request-id")),
        ("", "")
    );
    answer.text
}

/// Waits until a sample has this value.
async fn until(fuse: &Orchestrator, sample: &str, value: f64) {
    fuse.until("/metrics", |answer| {
        samples(&answer.text).get(sample) == Some(&value)
    })
    .await;
}

#[tokio::test]
async fn names_types_and_labels_of_the_contract() {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a", "spec": {"cpus": 2}}))
        .await
        .is(201);
    agent.fail(Step::List, 1, 500, "no list");
    fuse.control.reconcile_now();
    until(
        &fuse,
        "orchestrator_reconcile_host_list_errors_total{host=\"h\"}",
        1.0,
    )
    .await;
    fuse.control.reconcile_now();
    until(&fuse, "orchestrator_host_reachable{host=\"h\"}", 1.0).await;
    until(&fuse, "orchestrator_fleet_provider_vms", 1.0).await;

    let text = exposed(&fuse).await;
    let samples = samples(&text);
    for (name, kind, labels) in CONTRACT {
        let name = format!("orchestrator_{name}");
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
        let of_it = samples
            .keys()
            .find(|sample| sample.split('{').next().unwrap().starts_with(&name))
            .unwrap_or_else(|| panic!("{name} has no sample"));
        for label in *labels {
            assert!(of_it.contains(&format!("{label}=\"")), "{of_it}");
        }
    }
    for (sample, value) in [
        ("orchestrator_leader", 1.0),
        ("orchestrator_fleet_tracked_vms", 1.0),
        (
            "orchestrator_host_allocated{host=\"h\",resource=\"cpus\"}",
            2.0,
        ),
        (
            "orchestrator_host_capacity{host=\"h\",resource=\"cpus\"}",
            16.0,
        ),
        (
            "orchestrator_host_capacity{host=\"h\",resource=\"vm_count\"}",
            10.0,
        ),
        (
            "orchestrator_http_requests_total{code=\"201\",method=\"POST\",route=\"/v1/environments\"}",
            1.0,
        ),
    ] {
        assert_eq!(samples.get(sample), Some(&value), "{sample}\n{text}");
    }
    assert!(samples["orchestrator_reconcile_last_success_timestamp_seconds"] > 1.7e9);
    assert!(samples.contains_key("process_open_fds"));
    for bound in [
        "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10",
    ] {
        let sample = format!("orchestrator_reconcile_duration_seconds_bucket{{le=\"{bound}\"}}");
        assert!(samples.contains_key(&*sample), "{sample}");
        let sample = format!(
            "orchestrator_http_request_duration_seconds_bucket{{method=\"POST\",route=\"/v1/environments\",le=\"{bound}\"}}"
        );
        assert!(samples.contains_key(&*sample), "{sample}\n{text}");
    }
    fuse.stop().await;
}

#[tokio::test]
async fn streams_are_in_flight_until_they_end() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut stream = fuse.events("fuse-a", None).await;
    stream.next().await;
    until(&fuse, "orchestrator_http_requests_in_flight", 1.0).await;
    drop(stream);
    until(&fuse, "orchestrator_http_requests_in_flight", 0.0).await;
    fuse.stop().await;
}

async fn surface(allowlist: &str) -> Router {
    let store = Store::open(None, Vault::none()).await.unwrap();
    let control = Control::new(store, Settings::default()).unwrap();
    let metrics = HttpMetrics::register(&control).unwrap();
    let app = App::new(control, Auth::master(MASTER))
        .restricted_to(AddressBlocks::parse(allowlist).unwrap())
        .counted_by(metrics);
    router(app)
}

async fn call(router: &Router, method: &str, path: &str, token: &str) -> String {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {token}"))
        .body(Body::empty())
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The series of the requests counter.
async fn series(router: &Router) -> Vec<String> {
    let mut all = all_series(router).await;
    all.retain(|name| name.starts_with("orchestrator_http_requests_total"));
    all
}

async fn all_series(router: &Router) -> Vec<String> {
    let text = call(router, "GET", "/metrics", MASTER).await;
    samples(&text).into_keys().map(str::to_owned).collect()
}

#[tokio::test]
async fn made_up_ids_paths_and_methods_add_no_series() {
    let router = surface("").await;
    for (method, path) in [
        ("GET", "/v1/environments/x"),
        ("GET", "/v1/hosts/x"),
        ("GET", "/x"),
        ("BREW", "/x"),
        ("BREW", "/v1/hosts/x"),
    ] {
        call(&router, method, path, MASTER).await;
    }
    call(&router, "GET", "/v1/environments/x", "wrong").await;
    let before = series(&router).await;
    let label = |route, method, code| {
        format!(
            "orchestrator_http_requests_total{{code=\"{code}\",method=\"{method}\",route=\"{route}\"}}"
        )
    };
    let mut want = vec![
        label("/v1/environments/{vmId}", "GET", 401),
        label("/v1/environments/{vmId}", "GET", 404),
        label("/v1/hosts/{hostId}", "GET", 404),
        label("unknown", "GET", 404),
        label("unknown", "other", 404),
        label("/v1/hosts/{hostId}", "other", 405),
    ];
    want.sort();
    assert_eq!(before, want);
    let all = all_series(&router).await;
    for n in 0..10_000 {
        let (method, path) = match n % 4 {
            0 => ("GET", format!("/v1/environments/bogus-{n}")),
            1 => ("GET", format!("/v1/hosts/bogus-{n}")),
            2 => ("GET", format!("/bogus-{n}")),
            _ => ("BREW", format!("/v1/hosts/bogus-{n}")),
        };
        call(&router, method, &path, MASTER).await;
    }
    // Nor of the histogram, nor of anything else.
    assert_eq!(all_series(&router).await, all);
}

#[tokio::test]
async fn refused_addresses_are_counted_without_a_route() {
    let router = surface("192.0.2.0/24").await;
    call(&router, "GET", "/v1/environments", MASTER).await;
    assert_eq!(
        series(&router).await,
        ["orchestrator_http_requests_total{code=\"403\",method=\"GET\",route=\"unknown\"}"]
    );
}

#[tokio::test]
async fn metrics_need_no_credential_and_take_no_other_method() {
    let fuse = Orchestrator::start().await;
    exposed(&fuse).await;
    let answer = Orchestrator::send(fuse.request(Method::POST, "/metrics")).await;
    assert_eq!(answer.status, 405);
    fuse.stop().await;
}
