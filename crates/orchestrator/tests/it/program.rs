//! The program itself as a child process.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStderr, Command, Stdio},
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;

/// Nothing in these tests takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(90);
const BIN: &str = env!("CARGO_BIN_EXE_orchestrator");
pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

pub(crate) fn command() -> Command {
    let mut command = Command::new(BIN);
    command
        .env_clear()
        .env("RUST_LOG", "info")
        .stdin(Stdio::null());
    command
}

/// A running program; killed when dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) base: String,
    log: String,
    rest: Option<JoinHandle<String>>,
    pub(crate) http: reqwest::Client,
}

impl Program {
    /// Starts on a free port and waits for its `listening` line.
    pub(crate) fn start(env: &[(&str, &str)]) -> Self {
        Self::start_with(env, &[])
    }

    /// The same, with flags.
    pub(crate) fn start_with(env: &[(&str, &str)], flags: &[&str]) -> Self {
        let mut command = command();
        command
            .args(flags)
            .env("ORCH_LISTEN", "127.0.0.1:0")
            .envs(env.iter().copied());
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let http = crate::support::http_client();
        // Made before anything can fail, so that the child does not stay behind.
        let mut program = Self {
            child,
            base: String::new(),
            log: String::new(),
            rest: None,
            http,
        };
        program.base = loop {
            let mut line = String::new();
            assert!(
                lines.read_line(&mut line).unwrap() > 0,
                "it ended before it listened"
            );
            program.log.push_str(&line);
            if let Some(base) = listening(&line) {
                break base;
            }
        };
        program.rest = Some(std::thread::spawn(move || read(lines)));
        program
    }

    /// What it said until it listened.
    pub(crate) fn said(&self) -> &str {
        &self.log
    }

    /// Asks it to end; the signal that it died of, if it did.
    pub(crate) fn end_or_die(&mut self) -> Option<i32> {
        if self.child.try_wait().unwrap().is_none() {
            self.signal("-TERM");
        }
        std::os::unix::process::ExitStatusExt::signal(&self.child.wait().unwrap())
    }

    /// Ends it in good order.
    pub(crate) fn end(&mut self) {
        self.signal("-TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    pub(crate) async fn call(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth("master");
        if let Some(body) = body {
            request = request.header("Prefer", "respond-async").json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

/// All that comes, as it comes: a program whose pipe is full stands still.
fn read(mut lines: BufReader<ChildStderr>) -> String {
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    text
}

/// The URL in the line that says where it listens, in either format of log lines.
fn listening(line: &str) -> Option<String> {
    if let Ok(line) = serde_json::from_str::<Value>(line) {
        let (scheme, address) = (line["scheme"].as_str()?, line["address"].as_str()?);
        return Some(format!("{scheme}://{address}"));
    }
    let (_, rest) = line.split_once("address=")?;
    let scheme = if line.contains("scheme=\"https\"") {
        "https"
    } else {
        "http"
    };
    Some(format!("{scheme}://{}", rest.split(' ').next()?))
}

impl Program {
    /// Waits for its end: the status, and everything it said since it listened.
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        // The end of the pipe is the end of the process.
        let rest = self.rest.take().map(|rest| rest.join().unwrap());
        let rest = rest.unwrap_or_default();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Waits until `GET path` answers what `accept` wants.
pub(crate) async fn wait(program: &Program, path: &str, accept: impl Fn(&(u16, Value)) -> bool) {
    let mut last = (0, Value::Null);
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            last = program.call(reqwest::Method::GET, path, None).await;
            if accept(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let came = waited.await.is_ok();
    assert!(came, "{path} never became what was wanted: {last:?}");
}
