//! An environment as a test sees it: run something inside, through the orchestrator or through its host's agent.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::api::Api;

/// One environment.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Environment id, which is also the VM id on the host.
    pub id: String,
    /// The environment object as the API returned it on creation.
    pub object: Value,
    orchestrator: Api,
    agent: Api,
}

/// What a command in the guest did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    /// Exit status; 128 + signal when it died of one.
    pub exit_code: i64,
    /// Standard output, byte for byte when it came from the agent.
    pub stdout: Vec<u8>,
    /// Standard error likewise.
    pub stderr: Vec<u8>,
    /// The whole answer.
    pub answer: Value,
}

impl ExecResult {
    /// Standard output as text.
    #[must_use]
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    #[must_use]
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl Guest {
    /// The environment described by `object`.
    ///
    /// # Errors
    /// When the object has no id.
    pub fn new(object: Value, orchestrator: Api, agent: Api) -> Result<Self> {
        let id = object["id"]
            .as_str()
            .context("environment without id")?
            .to_owned();
        Ok(Self {
            id,
            object,
            orchestrator,
            agent,
        })
    }

    /// Runs `cmd` through the orchestrator.
    ///
    /// # Errors
    /// When the call itself fails; a failing command is an answer.
    pub async fn exec(&self, cmd: &[&str], timeout_ms: u64) -> Result<ExecResult> {
        let body = json!({"cmd": cmd, "timeout_ms": timeout_ms});
        let path = format!("/v1/environments/{}?action=exec", self.id);
        let answer = self
            .orchestrator
            .post(&path, &body)
            .await?
            .expect(200)?
            .json()?;
        let stream = |name: &str| {
            answer[name]
                .as_str()
                .map(|s| s.as_bytes().to_vec())
                .context("missing stream")
        };
        Ok(ExecResult {
            exit_code: answer["exit_code"].as_i64().context("exit_code")?,
            stdout: stream("stdout")?,
            stderr: stream("stderr")?,
            answer: answer.clone(),
        })
    }

    /// Runs `cmd` through the host agent, which keeps every byte.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub async fn agent_exec(&self, cmd: &[&str], timeout_ms: u64) -> Result<ExecResult> {
        let body = json!({"cmd": cmd, "timeout_ms": timeout_ms});
        let answer = self
            .agent
            .post(&format!("/v1/vm/{}/exec", self.id), &body)
            .await?
            .expect(200)?
            .json()?;
        let stream = |name: &str| -> Result<Vec<u8>> {
            Ok(STANDARD.decode(answer[name].as_str().context("missing stream")?)?)
        };
        Ok(ExecResult {
            exit_code: answer["exit_code"].as_i64().context("exit_code")?,
            stdout: stream("stdout")?,
            stderr: stream("stderr")?,
            answer: answer.clone(),
        })
    }

    /// Runs a shell line through the orchestrator, whatever its status. 60 s at most.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub async fn sh(&self, line: &str) -> Result<ExecResult> {
        self.exec(&["sh", "-c", line], 60_000).await
    }

    /// Runs a shell line that must succeed; its output without the final newline.
    ///
    /// # Errors
    /// Also when the command fails.
    pub async fn ok(&self, line: &str) -> Result<String> {
        let result = self.sh(line).await?;
        ensure!(
            result.exit_code == 0,
            "`{line}` exited {}: {}{}",
            result.exit_code,
            result.out(),
            result.err()
        );
        Ok(result.out().trim_end_matches('\n').to_owned())
    }

    /// The environment as the orchestrator shows it now.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn get(&self) -> Result<Value> {
        self.orchestrator
            .get(&format!("/v1/environments/{}", self.id))
            .await?
            .expect(200)?
            .json()
    }

    /// Destroys it and expects 204.
    ///
    /// # Errors
    /// On any other answer.
    pub async fn destroy(&self) -> Result<()> {
        self.orchestrator
            .delete(&format!("/v1/environments/{}", self.id))
            .await?
            .expect(204)?;
        Ok(())
    }
}
