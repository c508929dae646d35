//! A server whose answers a test decides, and which remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, Response};
use fuse_client::{BaseUrl, Client, Options, Token};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

type Answer = Box<dyn Fn(&Seen, usize) -> Response<Body> + Send + Sync>;

/// The running server; it stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    _task: JoinSet<()>,
}

impl Server {
    /// Starts on a free port. `answer` gets the request and how many came before it.
    pub(crate) async fn start(
        answer: impl Fn(&Seen, usize) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let state = (Arc::clone(&seen), Arc::new(Box::new(answer) as Answer));
        let app = Router::new().fallback(handle).with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            seen,
            _task: task,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_at("", Some("secret-token"))
    }

    pub(crate) fn client_at(&self, prefix: &str, token: Option<&str>) -> Client {
        let base = BaseUrl::parse(&format!("http://{}{prefix}", self.address)).unwrap();
        Client::new(Options::new(base, token.map(Token::new), "test/1")).unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

type Shared = (Arc<Mutex<Vec<Seen>>>, Arc<Answer>);

async fn handle(State((seen, answer)): State<Shared>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let request = Seen {
        line: format!("{} {}", parts.method, parts.uri),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    let before = {
        let mut seen = seen.lock().unwrap();
        seen.push(request.clone());
        seen.len() - 1
    };
    answer(&request, before)
}

/// A JSON answer.
pub(crate) fn json(status: u16, body: &str) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("x-request-id", "req_42")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// An event stream that says `text` and ends.
pub(crate) fn stream(text: &str) -> Response<Body> {
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from(text.to_owned()))
        .unwrap()
}

/// An environment as the API writes it.
pub(crate) fn environment(state: &str) -> String {
    format!(
        r#"{{"id":"fuse-a","state":"{state}","task_id":"a","url":"","spec":{{}},
            "created_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}}"#
    )
}
