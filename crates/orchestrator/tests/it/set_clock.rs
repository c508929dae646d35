//! A single box whose clock is set while its orchestrator runs: a month forward, then back to a day
//! before the start. Nothing ends, expires or is interrupted early, and what has a limit ends.
//!
//! The clock that the program asks is the C library's, and that one is replaced for it.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use fuse_model::now;
use fuse_testkit::{
    fake_agent::{FakeAgent, Step, TOKEN},
    until,
};
use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::program::{KEY, Program, wait};

/// Nothing here takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(60);
const DAY: i64 = 24 * 3600;

/// `clock_gettime` as it is, and the time of day ahead by the seconds that a file says.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *ahead = MAP_FAILED;
__attribute__((constructor)) static void look(void) {
    ahead = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, open(getenv("CLOCK_AHEAD"), O_RDONLY), 0);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && id == CLOCK_REALTIME && ahead != MAP_FAILED) at->tv_sec += *ahead;
    return failed;
}
"#;

/// A clock that can be set.
struct Clock {
    library: PathBuf,
    ahead: PathBuf,
}

impl Clock {
    /// `None`, said on stderr, where nothing can be built in C.
    fn build(dir: &Path) -> Option<Self> {
        let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
        std::fs::write(&source, CLOCK).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output();
        match built {
            Ok(built) => {
                let said = String::from_utf8_lossy(&built.stderr).into_owned();
                assert!(built.status.success(), "{said}");
            }
            Err(error) => {
                fuse_testkit::report_skip("set_clock", &format!("no C compiler: {error}"));
                return None;
            }
        }
        let ahead = dir.join("ahead");
        std::fs::write(&ahead, 0i64.to_ne_bytes()).unwrap();
        Some(Self { library, ahead })
    }

    fn write(&self, seconds: i64) {
        let file = File::options().write(true).open(&self.ahead).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

/// The orchestrator of a box, and its host.
struct Machine {
    clock: Clock,
    dir: tempfile::TempDir,
    agent: FakeAgent,
}

impl Machine {
    async fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let agent = FakeAgent::start().await.unwrap();
        agent.serve_surfaces();
        agent.on_exec(|argv| fuse_wire_host::ExecResponse {
            exit_code: i32::from(argv.iter().any(|word| word == "fail")),
            ..Default::default()
        });
        Some(Self {
            clock: Clock::build(dir.path())?,
            dir,
            agent,
        })
    }

    fn start(&self) -> Program {
        let text = |path: &Path| path.display().to_string();
        let database = format!("sqlite://{}/fuse.db", self.dir.path().display());
        let (library, ahead) = (text(&self.clock.library), text(&self.clock.ahead));
        let env = [
            ("DATABASE_URL", database.as_str()),
            ("ORCH_AUTH_TOKEN", "master"),
            ("TOKEN_ENCRYPTION_KEY", KEY),
            ("ORCH_DEFAULT_IDLE_TIMEOUT_SECONDS", "3600"),
            ("ORCH_HOST_CHECK_INTERVAL_SECONDS", "1"),
            ("ORCH_SNAPSHOT_RETENTION_SECONDS", "3600"),
            ("ORCH_ARTIFACT_IDLE_TTL_SECONDS", "3600"),
            ("LD_PRELOAD", library.as_str()),
            ("CLOCK_AHEAD", ahead.as_str()),
        ];
        Program::start_with(&env, &["--reconcile-interval", "100ms"])
    }

    async fn register(&self, fuse: &Program) {
        let host = json!({
            "id": "h", "url": self.agent.url(), "token": TOKEN, "capacity": {"vm_count": 9}
        });
        let registered = fuse.call(Method::POST, "/v1/hosts", Some(host)).await;
        assert_eq!(registered.0, 201);
    }

    /// Sets the clock and lets the orchestrator look at everything a few times.
    async fn set(&self, fuse: &Program, ahead: i64) {
        self.clock.write(ahead);
        let told = move |(_, host): &(u16, Value)| {
            let at: Option<Timestamp> = host["agent"]["checked_at"]
                .as_str()
                .and_then(|at| at.parse().ok());
            let off = at.map(|at| at.duration_since(now()) - SignedDuration::from_secs(ahead));
            off.is_some_and(|off| off.abs() < SignedDuration::from_mins(5))
        };
        wait(fuse, "/v1/hosts/h", told).await;
        self.cycles(5).await;
    }

    async fn cycles(&self, count: usize) {
        let looks = |agent: &FakeAgent| agent.calls().iter().filter(|c| *c == "list").count();
        let enough = looks(&self.agent) + count;
        let looked = self.agent.until(|agent| looks(agent) >= enough);
        tokio::time::timeout(PATIENCE, looked).await.unwrap();
    }
}

/// Creates under a key and waits for the answer; whether it is the answer of an earlier one.
async fn create_once(fuse: &Program, key: &str, task: &str) -> bool {
    let answer = fuse
        .http
        .post(format!("{}/v1/environments", fuse.base))
        .bearer_auth("master")
        .header("Idempotency-Key", key)
        .json(&json!({"task_id": task}))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 201, "{task}");
    answer.headers().contains_key("idempotency-replayed")
}

async fn create(fuse: &Program, body: Value) {
    let path = format!(
        "/v1/environments/fuse-{}",
        body["task_id"].as_str().unwrap()
    );
    let made = fuse.call(Method::POST, "/v1/environments", Some(body));
    assert_eq!(made.await.0, 202);
    wait(fuse, &path, |(_, is)| is["state"] == "running").await;
}

/// Runs a slow operation while `meanwhile` sets the clock; it must come to its own end.
async fn holding(
    machine: &Machine,
    fuse: &Program,
    step: Step,
    path: &str,
    meanwhile: impl AsyncFnOnce(),
) {
    let mut gate = machine.agent.hold(step);
    let body = json!({});
    let ((status, said), ()) = tokio::join!(post(fuse, path, &body), async {
        gate.reached().await;
        meanwhile().await;
        gate.open();
    });
    assert_eq!(status, 204, "{path}: {said}");
}

/// Asks and waits for what comes of it.
async fn post(fuse: &Program, path: &str, body: &Value) -> (u16, String) {
    let url = format!("{}{path}", fuse.base);
    let request = fuse.http.post(url).bearer_auth("master").json(body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Logs in; the cookie of the session.
async fn log_in(fuse: &Program) -> String {
    let login = fuse.http.post(format!("{}/login", fuse.base));
    let answer = login.json(&json!({"token": "master"})).send().await;
    let answer = answer.unwrap();
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

/// A session lasts, and the loop that looks after everything is seen to run.
async fn check_at_work(fuse: &Program, cookie: &str, when: &str) {
    let hosts = fuse.http.get(format!("{}/v1/hosts", fuse.base));
    let hosts = hosts.header("Cookie", cookie).send().await.unwrap();
    assert_eq!(hosts.status(), 200, "{when}: the session");
    let (status, ready) = fuse.call(Method::GET, "/ready", None).await;
    let reconcile = &ready["checks"]["reconcile"];
    assert_eq!((status, reconcile), (200, &json!("ok")), "{when}: {ready}");
}

/// What everybody was told is still so.
async fn check_kept(machine: &Machine, fuse: &Program, when: &str) {
    let get = async |path: &str| fuse.call(Method::GET, path, None).await;
    for task in ["before", "worked"] {
        let (_, record) = get(&format!("/v1/environments/fuse-{task}")).await;
        assert_eq!(record["state"], "running", "{when}: {record}");
        assert_eq!(record.get("error"), None, "{when}: {record}");
    }
    assert!(create_once(fuse, "once", "before").await, "{when}: the key");
    let (_, list) = get("/v1/snapshots?state=ready").await;
    let count = list["snapshots"].as_array().map(Vec::len);
    assert_eq!(count, Some(3), "{when}: {list}");
    assert_eq!(machine.agent.snapshots().len(), 3, "{when}");
    let (_, failed) = get("/v1/tasks/bad").await;
    assert!(failed["failure"].is_object(), "{when}: {failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_ends_early_and_nothing_late() {
    let Some(machine) = Machine::new().await else {
        return;
    };
    let mut fuse = machine.start();
    machine.register(&fuse).await;
    assert!(!create_once(&fuse, "once", "before").await);
    create(&fuse, json!({"task_id": "worked"})).await;
    // Two, because the newest of an environment is never collected; and a layer, dated months ago
    // by its host.
    for body in [
        json!({}),
        json!({}),
        json!({"mode": "build", "layer_key": "k"}),
    ] {
        let path = "/v1/environments/fuse-before/snapshots";
        assert_eq!(post(&fuse, path, &body).await.0, 201);
    }
    let bad = json!({"task_id": "bad", "startup_script": "fail"});
    fuse.call(Method::POST, "/v1/environments", Some(bad)).await;
    wait(&fuse, "/v1/tasks/bad", |(_, task)| {
        task["failure"].is_object()
    })
    .await;
    machine.cycles(3).await;
    check_kept(&machine, &fuse, "before").await;
    let cookie = log_in(&fuse).await;
    for hours in [5, -10, 0] {
        machine.set(&fuse, hours * 3600).await;
        let when = format!("{hours} hours off");
        check_kept(&machine, &fuse, &when).await;
        check_at_work(&fuse, &cookie, &when).await;
    }

    let rotate = "/v1/environments/fuse-worked?action=rotate-token";
    let forward = async || machine.set(&fuse, 30 * DAY).await;
    holding(&machine, &fuse, Step::StartAgent, rotate, forward).await;
    check_kept(&machine, &fuse, "a month ahead").await;
    // Its time is over when the clock has been put back to before it was made.
    let short = json!({"task_id": "short", "spec": {"max_runtime_seconds": 12}});
    create(&fuse, short).await;
    let back = async || machine.set(&fuse, -DAY).await;
    holding(&machine, &fuse, Step::StartAgent, rotate, back).await;
    check_kept(&machine, &fuse, "a day back").await;
    until("its end", PATIENCE, || async {
        let path = "/v1/environments/fuse-short";
        let (status, record) = fuse.call(Method::GET, path, None).await;
        anyhow::ensure!(status == 404, "{record}");
        Ok(())
    })
    .await
    .unwrap();
    let (_, ended) = fuse.call(Method::GET, "/v1/tasks/short", None).await;
    let said = ended["last_error"].as_str().unwrap();
    assert!(said.starts_with("task stuck: runtime "), "{said}");
    fuse.end();

    // What the last process held is free at once, though it expires tomorrow.
    let fuse = machine.start();
    wait(&fuse, "/ready", |(status, _)| *status == 200).await;
    machine.cycles(3).await;
    check_kept(&machine, &fuse, "after a restart").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_renewed_at_half_of_their_life() {
    let Some(machine) = Machine::new().await else {
        return;
    };
    let mut fuse = machine.start();
    machine.register(&fuse).await;
    let month = 30 * DAY;
    let spec = json!({"max_runtime_seconds": month, "idle_timeout_seconds": month});
    create(&fuse, json!({"task_id": "old", "spec": spec})).await;
    let renewed = async |fuse: &Program| {
        let path = "/v1/audit?type=vm.token_rotated";
        let (_, list) = fuse.call(Method::GET, path, None).await;
        list["audit_events"].as_array().map_or(0, Vec::len)
    };
    machine.cycles(3).await;
    assert_eq!(renewed(&fuse).await, 0);
    for (ahead, times) in [(3 * DAY, 0), (4 * DAY, 1), (7 * DAY, 1), (8 * DAY, 2)] {
        fuse.end();
        machine.clock.write(ahead);
        fuse = machine.start();
        wait(&fuse, "/ready", |(status, _)| *status == 200).await;
        until("as many renewals", PATIENCE, || async {
            let so_far = renewed(&fuse).await;
            anyhow::ensure!(so_far >= times, "{so_far} of {times}");
            Ok(())
        })
        .await
        .unwrap();
        machine.cycles(3).await;
        assert_eq!(renewed(&fuse).await, times, "{ahead} s after the create");
        let (_, record) = fuse
            .call(Method::GET, "/v1/environments/fuse-old", None)
            .await;
        assert_eq!(record["state"], "running", "{record}");
    }
    fuse.end();
}
