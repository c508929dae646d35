//! The machine's clock is set, forward and back, under a program on SQLite, which has no other.

use std::{fs, os::unix::fs::FileExt as _, path::Path, process::Command};

use reqwest::Method;
use serde_json::{Value, json};

use crate::program::{KEY, Program, wait};

/// Adds the seconds in a file to the time of day. The other clocks stay as they are, as when a
/// clock is set.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *shift;
__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("CLOCK_SHIFT"), O_RDONLY);
    shift = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int outcome = (int)syscall(SYS_clock_gettime, id, at);
    if (outcome == 0 && id == CLOCK_REALTIME && shift) at->tv_sec += *shift;
    return outcome;
}
"#;
const HOUR: i64 = 3600;

/// A program whose clock can be set.
struct Shifted {
    program: Program,
    shift: fs::File,
}

impl Shifted {
    fn start(dir: &Path) -> Self {
        let (source, shim, shift) = (dir.join("shim.c"), dir.join("shim.so"), dir.join("shift"));
        fs::write(&source, SHIM).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&shim, &source])
            .status();
        assert!(compiled.unwrap().success());
        fs::write(&shift, 0i64.to_ne_bytes()).unwrap();
        let url = format!("sqlite://{}/fuse.db", dir.display());
        let program = Program::start(&[
            ("DATABASE_URL", &url),
            ("ORCH_AUTH_TOKEN", "master"),
            ("TOKEN_ENCRYPTION_KEY", KEY),
            ("ORCH_RECONCILE_INTERVAL_SECONDS", "1"),
            ("LD_PRELOAD", shim.to_str().unwrap()),
            ("CLOCK_SHIFT", shift.to_str().unwrap()),
        ]);
        let shift = fs::OpenOptions::new().write(true).open(shift).unwrap();
        Self { program, shift }
    }

    async fn cycles(&self) -> u64 {
        let url = format!("{}/metrics", self.program.base);
        let text = self.program.http.get(url).send().await.unwrap();
        let text = text.text().await.unwrap();
        let line = "orchestrator_reconcile_cycles_total ";
        let value = text.lines().find_map(|text| text.strip_prefix(line));
        value.unwrap().parse().unwrap()
    }

    /// Sets the clock so far off, and lets three cycles see it.
    async fn set(&self, hours: i64) {
        let bytes = (hours * HOUR).to_ne_bytes();
        self.shift.write_all_at(&bytes, 0).unwrap();
        let seen = self.cycles().await + 3;
        let looked = async { while self.cycles().await < seen {} };
        let looked = tokio::time::timeout(std::time::Duration::from_secs(60), looked).await;
        assert!(looked.is_ok(), "reconcile stands still at {hours} hours");
    }

    /// The same create, under the same key.
    async fn create(&self) -> (u16, Value) {
        let url = format!("{}/v1/environments", self.program.base);
        let body = json!({"task_id": "a", "spec": {
            "max_runtime_seconds": HOUR, "idle_timeout_seconds": HOUR,
        }});
        let request = self.program.http.post(url).bearer_auth("master");
        let answer = request.header("Idempotency-Key", "k").json(&body);
        let answer = answer.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.program.call(Method::GET, path, None).await
    }
}

/// Nothing ends early, nothing is stuck, and what was promised for a day is kept.
#[tokio::test]
async fn a_clock_that_is_set_changes_nothing_that_callers_rely_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut shifted = Shifted::start(dir.path());
    let (status, made) = shifted.create().await;
    assert_eq!(status, 201, "{made}");
    let login = shifted
        .program
        .http
        .post(format!("{}/login", shifted.program.base));
    let login = login
        .json(&json!({"token": "master"}))
        .send()
        .await
        .unwrap();
    let cookie = login.headers()["set-cookie"].to_str().unwrap().to_owned();
    let cookie = cookie.split(';').next().unwrap();
    for hours in [5, -10, 0] {
        shifted.set(hours).await;
        let (status, shown) = shifted.get("/v1/environments/fuse-a").await;
        assert_eq!((status, &shown), (200, &made), "{hours}");
        assert_eq!(shifted.create().await, (201, made.clone()), "{hours}");
        let hosts = shifted
            .program
            .http
            .get(format!("{}/v1/hosts", shifted.program.base));
        let hosts = hosts.header("Cookie", cookie).send().await.unwrap();
        assert_eq!(hosts.status().as_u16(), 200, "{hours}");
        let (status, ready) = shifted.get("/ready").await;
        assert_eq!(
            (status, &ready["checks"]["reconcile"]),
            (200, &json!("ok")),
            "{hours}"
        );
    }
    // Set past the day that a key is good for: it is not over.
    shifted.set(30).await;
    assert_eq!(shifted.create().await, (201, made.clone()));
    shifted.set(-30).await;
    let path = "/v1/environments/fuse-a";
    let (status, _) = shifted.program.call(Method::DELETE, path, None).await;
    assert_eq!(status, 204);
    wait(&shifted.program, path, |(status, _)| *status == 404).await;
    shifted.program.end();
}
