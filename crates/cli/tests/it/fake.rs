//! An orchestrator whose answers a test decides, in the process of the test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) body: String,
    pub(crate) token: String,
    pub(crate) user_agent: String,
}

type Answer = Arc<dyn Fn(&Seen) -> Response<Body> + Send + Sync>;
type Log = Arc<Mutex<Vec<Seen>>>;

/// The running orchestrator. It stops when dropped.
pub(crate) struct Fake {
    address: SocketAddr,
    seen: Log,
    answer: Answer,
    runtime: Option<Runtime>,
}

impl Drop for Fake {
    /// Does not wait: one that another one's answers hold ends on a thread that must not.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fake {
    /// Starts on a free port. Requests that `answer` leaves open are 404 `route_not_found`; the
    /// version route is an orchestrator's.
    pub(crate) fn start(
        answer: impl Fn(&Seen) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Self {
        Self::raw(move |seen| {
            answer(seen).unwrap_or_else(|| match seen.line.as_str() {
                "GET /v1/version" => {
                    json(200, r#"{"service":"fuse-orchestrator","version":"dev"}"#)
                }
                line => error(404, "route_not_found", &format!("no such route: {line}")),
            })
        })
    }

    /// What it would answer, without being asked over the wire.
    pub(crate) fn answer(&self, seen: &Seen) -> Option<Response<Body>> {
        Some((self.answer)(seen))
    }

    /// Starts something that need not be an orchestrator.
    pub(crate) fn raw(answer: impl Fn(&Seen) -> Response<Body> + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let seen = Log::default();
        let answer: Answer = Arc::new(answer);
        let app = Router::new()
            .fallback(handle)
            .with_state((Arc::clone(&seen), Arc::clone(&answer)));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn_on(
            async move { axum::serve(listener, app).await.unwrap() },
            runtime.handle(),
        );
        tasks.detach_all();
        Self {
            address,
            seen,
            answer,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }
}

async fn handle(
    State((log, answer)): State<(Log, Answer)>,
    request: Request<Body>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 22).await.unwrap();
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    };
    let seen = Seen {
        line: format!("{} {}", parts.method, parts.uri),
        body: String::from_utf8(body.to_vec()).unwrap(),
        token: header("authorization"),
        user_agent: header("user-agent"),
    };
    log.lock().unwrap().push(seen.clone());
    answer(&seen)
}

pub(crate) fn json(status: u16, body: &str) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("x-request-id", "req_42")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

pub(crate) fn error(status: u16, code: &str, message: &str) -> Response<Body> {
    json(
        status,
        &serde_json::json!({"error": {"code": code, "message": message}}).to_string(),
    )
}

pub(crate) fn empty() -> Response<Body> {
    Response::builder().status(204).body(Body::empty()).unwrap()
}

/// An event stream that says this, and then ends.
pub(crate) fn stream(text: impl Into<String>) -> Response<Body> {
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from(text.into()))
        .unwrap()
}

/// An event stream of these (state, error) pairs, which then ends.
pub(crate) fn events(states: &[(&str, &str)]) -> Response<Body> {
    let mut text = String::new();
    for (number, (state, error)) in states.iter().enumerate() {
        let mut event = serde_json::json!({
            "id": format!("{number:032x}"), "event": "state", "vm_id": "fuse-a", "state": state,
            "updated_at": "2026-01-15T10:00:00Z",
        });
        if !error.is_empty() {
            event["error"] = (*error).into();
        }
        text.push_str(&format!("id: {number:032x}\ndata: {event}\n\n"));
    }
    stream(text)
}

/// An event stream of these records, which then ends.
pub(crate) fn records(records: &[serde_json::Value]) -> Response<Body> {
    let mut text = String::new();
    for (number, record) in records.iter().enumerate() {
        let mut event = serde_json::json!({
            "id": format!("{number:032x}"), "event": "state", "vm_id": "fuse-a",
            "updated_at": "2026-01-15T10:00:00Z",
        });
        let fields = record.as_object().unwrap().clone();
        event.as_object_mut().unwrap().extend(fields);
        text.push_str(&format!("id: {number:032x}\ndata: {event}\n\n"));
    }
    stream(text)
}

/// An environment as the API writes it.
pub(crate) fn environment(state: &str) -> String {
    serde_json::json!({
        "id": "fuse-a", "state": state, "task_id": "a", "host_id": "h1",
        "url": if state == "running" { "10.0.0.5:19551" } else { "" },
        "spec": {"cpus": 2, "ram_mb": 2048, "storage_gb": 10},
        "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z",
        "egress": {"mode": "direct"},
    })
    .to_string()
}

/// A host as the API writes it.
pub(crate) fn host(id: &str, warnings: &[&str]) -> String {
    let mut host = serde_json::json!({
        "id": id, "url": "http://10.0.0.5:8090", "backend": "firecracker", "state": "active",
        "capacity": {"cpus": 16, "ram_mb": 65536, "storage_gb": 500, "vm_count": 20, "arch": "amd64"},
        "allocated": {"cpus": 0, "ram_mb": 0, "storage_gb": 0, "vm_count": 0},
        "last_seen": "2026-01-15T10:00:00Z", "created_at": "2026-01-15T10:00:00Z",
        "updated_at": "2026-01-15T10:00:00Z",
    });
    if !warnings.is_empty() {
        host["warnings"] = warnings.into();
    }
    host.to_string()
}
