//! Three orchestrator processes on one PostgreSQL, hosts with room for exactly 200, and
//! witnesses inside the database that miss no commit.

use std::{
    fs::File,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use fuse_testkit::{
    SkipReason,
    fake_agent::{FakeAgent, TOKEN},
    free_port,
    postgres::{Durability, Postgres},
    until,
};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_orchestrator");
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const MASTER: &str = "master";
const REPLICAS: usize = 3;
const HOSTS: usize = 4;
const SLOTS: usize = 50;
/// Nothing in these tests takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(90);

/// Notes every event that is committed, and every commit that leaves a host with more
/// than it has room for, by its own count or by that of its reservations.
const WITNESSES: &str = "\
CREATE TABLE witness_events AS SELECT * FROM events;
CREATE TABLE witness_oversold (host TEXT);
CREATE FUNCTION witness_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO witness_events SELECT NEW.*; RETURN NULL; END $$;
CREATE TRIGGER witness AFTER INSERT ON events
    FOR EACH ROW EXECUTE FUNCTION witness_event();
CREATE FUNCTION witness_host() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO witness_oversold VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER witness AFTER UPDATE ON hosts FOR EACH ROW
    WHEN (NEW.vms_allocated > NEW.vms_total) EXECUTE FUNCTION witness_host();
CREATE FUNCTION witness_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO witness_oversold SELECT h.id FROM hosts h WHERE h.id = NEW.host_id
        AND h.vms_total < (SELECT COUNT(*) FROM reservations r WHERE r.host_id = h.id);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER witness AFTER INSERT ON reservations
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION witness_reservation();";

/// See the module.
pub(super) struct Fleet {
    server: Postgres,
    database: String,
    pub(super) agents: Vec<FakeAgent>,
    replicas: Vec<Replica>,
    http: reqwest::Client,
    logs: TempDir,
}

/// A replica on a port of its own, which it keeps over restarts.
struct Replica {
    address: String,
    process: Mutex<Option<Child>>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Answer {
    pub(super) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

impl Fleet {
    /// `None`, said on stderr, where there is no PostgreSQL.
    pub(super) async fn start(durability: Durability) -> Option<Arc<Self>> {
        let server = match Postgres::start(durability) {
            Ok(server) => server,
            Err(error) if error.is::<SkipReason>() => {
                fuse_testkit::report_skip("replicas", &error.to_string());
                return None;
            }
            Err(error) => panic!("{error:#}"),
        };
        let database = server.database().unwrap();
        let mut agents = Vec::new();
        for _ in 0..HOSTS {
            agents.push(FakeAgent::start().await.unwrap());
        }
        let replicas = (0..REPLICAS).map(|_| Replica {
            address: format!("127.0.0.1:{}", free_port().unwrap()),
            process: Mutex::default(),
        });
        let fleet = Self {
            replicas: replicas.collect(),
            server,
            database,
            agents,
            // Without idle connections every failure is the server's doing, and none the
            // race between its close and our next request.
            http: {
                let _ready = crate::support::http_client();
                reqwest::Client::builder()
                    .no_proxy()
                    .pool_max_idle_per_host(0)
                    .timeout(PATIENCE)
                    .build()
                    .unwrap()
            },
            logs: tempfile::tempdir().unwrap(),
        };
        for replica in 0..REPLICAS {
            fleet.spawn(replica);
        }
        for replica in 0..REPLICAS {
            fleet.is_up(replica).await;
        }
        fleet.sql(WITNESSES);
        for (n, agent) in fleet.agents.iter().enumerate() {
            let host = json!({
                "id": format!("h{n}"), "url": agent.url(), "token": TOKEN,
                "capacity": {
                    "cpus": 10_000, "ram_mb": 10_000_000, "storage_gb": 100_000, "vm_count": SLOTS
                }
            });
            let answer = fleet.call(0, Method::POST, "/v1/hosts", Some(&host), None);
            assert_eq!(answer.await.unwrap().status, 201);
        }
        Some(Arc::new(fleet))
    }

    fn spawn(&self, replica: usize) {
        let log = self.logs.path().join(format!("replica-{replica}"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let Replica { address, process } = &self.replicas[replica];
        let child = Command::new(BIN)
            .env_clear()
            .env("RUST_LOG", "warn,fuse_control=info")
            .env("ORCH_LISTEN", address)
            .env("DATABASE_URL", &self.database)
            .env("ORCH_AUTH_TOKEN", MASTER)
            .env("TOKEN_ENCRYPTION_KEY", KEY)
            .env("ORCH_RECONCILE_INTERVAL_SECONDS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        *process.lock().unwrap() = Some(child);
    }

    async fn is_up(&self, replica: usize) {
        let probe = || async {
            let answer = self
                .call(replica, Method::GET, "/v1/hosts", None, None)
                .await?;
            anyhow::ensure!(answer.status == 200, "{answer:?}");
            Ok(())
        };
        until("a replica that serves", PATIENCE, probe)
            .await
            .unwrap();
    }

    /// Ends a replica with SIGKILL and starts it again.
    pub(super) async fn kill(&self, replica: usize) {
        let child = self.replicas[replica].process.lock().unwrap().take();
        let mut child = child.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.spawn(replica);
        self.is_up(replica).await;
    }

    /// Ends a replica in good order and starts it again.
    pub(super) async fn roll(&self, replica: usize) {
        let child = self.replicas[replica].process.lock().unwrap().take();
        let mut child = child.unwrap();
        let pid = child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(asked.success());
        let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
        assert_eq!(ended.await.unwrap().code(), Some(0), "replica {replica}");
        self.spawn(replica);
        self.is_up(replica).await;
    }

    /// Ends PostgreSQL as a crash does and starts it again.
    pub(super) fn crash_database(&self) {
        self.server.crash_and_restart().unwrap();
    }

    /// What `psql` prints.
    #[track_caller]
    pub(super) fn sql(&self, sql: &str) -> String {
        self.server.query(&self.database, sql).unwrap()
    }

    /// Calls a replica; an error is one without an answer.
    pub(super) async fn call(
        &self,
        replica: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
        idempotency_key: Option<&str>,
    ) -> reqwest::Result<Answer> {
        let url = format!("{}{path}", self.base(replica));
        let mut request = self.http.request(method, url).bearer_auth(MASTER);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        let response = request.send().await?;
        Ok(Answer {
            status: response.status().as_u16(),
            body: serde_json::from_slice(&response.bytes().await?).unwrap_or_default(),
        })
    }

    /// Opens the fleet's event stream behind the event `last`.
    pub(super) async fn open_events(
        &self,
        replica: usize,
        last: Option<&str>,
    ) -> reqwest::Result<reqwest::Response> {
        let url = format!("{}/v1/events", self.base(replica));
        let mut request = self.http.get(url).bearer_auth(MASTER);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        request.send().await?.error_for_status()
    }

    fn base(&self, replica: usize) -> String {
        format!("http://{}", self.replicas[replica % REPLICAS].address)
    }

    pub(super) fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// The VMs of all hosts, sorted.
    pub(super) fn vms(&self) -> Vec<String> {
        let mut vms: Vec<String> = self.agents.iter().flat_map(FakeAgent::vms).collect();
        vms.sort();
        vms
    }

    /// No host ever had more VMs than it has room for, by its own count.
    #[track_caller]
    pub(super) fn was_never_oversold(&self) {
        for agent in &self.agents {
            assert!(agent.peak() <= SLOTS, "{} VMs on one host", agent.peak());
        }
        assert_eq!(self.sql("SELECT * FROM witness_oversold"), "");
    }

    /// The last lines of every replica, for a test that fails.
    pub(super) fn logs(&self) -> String {
        let tail = |replica| {
            let path = self.logs.path().join(format!("replica-{replica}"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(40).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            format!("replica {replica}:\n{}\n", lines.join("\n"))
        };
        (0..REPLICAS).map(tail).collect()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Ok(Some(mut child)) = self.process.lock().map(|mut process| process.take()) {
            // Both fail only when it has ended already.
            let _killed = child.kill();
            let _waited = child.wait();
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}
