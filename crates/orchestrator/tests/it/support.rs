//! An orchestrator in this process, and short ways to call it.

use std::{path::Path, sync::Arc, time::Duration};

use fuse_control::{Control, Settings};
use fuse_model::Redacted;
use fuse_orchestrator::{
    AddressBlocks, App, Auth, HttpMetrics, router,
    server::{Listening, Timeouts},
};
use fuse_store::{Store, Vault};
use fuse_testkit::fake_agent::{FakeAgent, TOKEN as AGENT_TOKEN};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const MASTER: &str = "master-token";
/// Nothing in these tests takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a test wants to be different.
pub(crate) struct Options {
    pub(crate) database: Option<String>,
    pub(crate) settings: Settings,
    pub(crate) timeouts: Timeouts,
    pub(crate) auth: Auth,
    pub(crate) key: bool,
    pub(crate) allowlist: AddressBlocks,
    pub(crate) proxies: AddressBlocks,
    pub(crate) listen: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            database: None,
            settings: Settings::default(),
            timeouts: Timeouts::default(),
            auth: Auth::master(MASTER),
            key: true,
            allowlist: AddressBlocks::default(),
            proxies: AddressBlocks::default(),
            listen: "127.0.0.1:0",
        }
    }
}

impl Options {
    pub(crate) fn file(dir: &Path) -> Self {
        let database = Some(format!("sqlite://{}/fuse.db", dir.display()));
        Self {
            database,
            ..Self::default()
        }
    }
}

/// A running orchestrator.
pub(crate) struct Orchestrator {
    pub(crate) control: Control,
    pub(crate) base: String,
    http: reqwest::Client,
    stop: CancellationToken,
    serving: JoinSet<()>,
}

/// A client that knows no proxy. Its TLS library wants a provider first.
pub(crate) fn http_client() -> reqwest::Client {
    // An error means that there is one.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn code(&self) -> &str {
        self.json["error"]["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn message(&self) -> &str {
        self.json["error"]["message"].as_str().unwrap_or_default()
    }

    /// Status, code and message must be exactly these.
    #[track_caller]
    pub(crate) fn is_error(&self, status: u16, code: &str, message: &str) {
        assert_eq!(
            (self.status, self.code(), self.message()),
            (status, code, message),
            "{}",
            self.text
        );
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json
    }
}

impl Orchestrator {
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let vault = if options.key {
            Vault::new(&Redacted::new([7; 32]), None)
        } else {
            Vault::none()
        };
        let store = Store::open(options.database.as_deref(), vault)
            .await
            .unwrap();
        let control = Control::new(store, options.settings).unwrap();
        control.run();
        let app = App::new(control.clone(), options.auth)
            .restricted_to(options.allowlist)
            .behind(options.proxies)
            .counted_by(HttpMetrics::register(&control).unwrap());
        let surface = router(app);
        let listening = Listening::bind(options.listen, None, options.timeouts)
            .await
            .unwrap();
        let base = format!("http://127.0.0.1:{}", listening.address().port());
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(listening.serve(surface, stop.clone()));
        let http = http_client();
        Self {
            control,
            base,
            http,
            stop,
            serving,
        }
    }

    /// Shuts down in good order.
    pub(crate) async fn stop(mut self) {
        self.control.begin_shutdown();
        self.stop.cancel();
        while self.serving.join_next().await.is_some() {}
        self.control.finished().await;
        self.control.store().close().await;
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(MASTER)
    }

    pub(crate) async fn send(request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response.text().await.unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer {
            status,
            headers,
            text,
            json,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Self::send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        Self::send(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        Self::send(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn post_raw(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        Self::send(self.request(Method::POST, path).body(body)).await
    }

    pub(crate) async fn create(&self, body: &Value) -> Answer {
        self.post("/v1/environments", body).await
    }

    /// A create that is answered as soon as it is accepted.
    pub(crate) async fn accepted(&self, body: &Value) {
        let create = self.request(Method::POST, "/v1/environments");
        let create = create.header("Prefer", "respond-async").json(body);
        Self::send(create).await.is(202);
    }

    /// Registers a fake agent as a host with room for ten.
    pub(crate) async fn register(&self, id: &str, agent: &FakeAgent) -> Value {
        let body = json!({
            "id": id, "url": agent.url(), "token": AGENT_TOKEN, "capacity": {"vm_count": 10}
        });
        self.post("/v1/hosts", &body).await.is(201)
    }

    /// Waits until `GET path` answers what `accept` wants.
    pub(crate) async fn until(&self, path: &str, accept: impl Fn(&Answer) -> bool) -> Answer {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                let answer = self.get(path).await;
                if accept(&answer) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        waited
            .await
            .unwrap_or_else(|_| panic!("{path} never became what was wanted"))
    }

    /// What the audit log has of this type, oldest first: whom it is about, and the details.
    pub(crate) async fn audit(&self, kind: &str) -> Value {
        let path = format!("/v1/audit?type={kind}&limit=200");
        let page = self.get(&path).await.is(200);
        let entries = page["audit_events"].as_array().unwrap().iter().rev();
        entries
            .map(|entry| {
                let text = |key: &str| entry[key].as_str().unwrap();
                let entity = format!("{} {}", text("entity_type"), text("entity_id"));
                json!({"entity": entity, "payload": entry["payload"]})
            })
            .collect()
    }

    /// The raw event stream of an environment.
    pub(crate) async fn events(&self, id: &str, last: Option<&str>) -> Sse {
        self.stream(&format!("/v1/environments/{id}/events"), last)
            .await
    }

    /// The raw event stream of the fleet.
    pub(crate) async fn fleet_events(&self, last: Option<&str>) -> Sse {
        self.stream("/v1/events", last).await
    }

    async fn stream(&self, path: &str, last: Option<&str>) -> Sse {
        let mut request = self.request(Method::GET, path);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        Sse::of(request.send().await.unwrap())
    }
}

/// An open event stream.
pub(crate) struct Sse {
    pub(crate) response: reqwest::Response,
    buffer: String,
}

impl Sse {
    pub(crate) fn of(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: String::new(),
        }
    }

    /// The next record; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(PATIENCE, self.record())
            .await
            .expect("an event in time")
    }

    async fn record(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let record: String = self.buffer.drain(..end + 2).collect();
                if record.starts_with(':') {
                    continue;
                }
                let (id, data) = record.split_at(record.find("data: ").unwrap());
                let json: Value =
                    serde_json::from_str(data.strip_prefix("data: ").unwrap().trim()).unwrap();
                if let Some(given) = json["id"].as_str() {
                    assert_eq!((id, given.len()), (&*format!("id: {given}\n"), 32));
                } else {
                    assert_eq!(id, "");
                }
                return Some(json);
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The states of all records to the end of the stream.
    pub(crate) async fn states(mut self) -> Vec<String> {
        let mut states = Vec::new();
        while let Some(event) = self.next().await {
            states.push(event["state"].as_str().unwrap().to_owned());
        }
        states
    }
}

/// An orchestrator with one fake host `h`.
pub(crate) async fn with_agent(options: Options) -> (Orchestrator, FakeAgent) {
    let agent = FakeAgent::start().await.unwrap();
    let orchestrator = Orchestrator::with(options).await;
    orchestrator.register("h", &agent).await;
    (orchestrator, agent)
}

/// Collects log lines of the whole test process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logs(Arc<std::sync::Mutex<Vec<u8>>>);

impl Logs {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
