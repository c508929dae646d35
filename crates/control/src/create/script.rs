//! The startup script of an environment (lifecycle 7).

use std::time::Duration;

use fuse_model::EnvironmentId;

use super::failure::BootError;
use crate::{exec::Command, provider::Provider};

/// What a script that succeeded wrote.
#[derive(Debug)]
pub(super) struct ScriptOutput {
    pub(super) exit_code: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Runs the script. The agent enforces the bound, so that the output until then comes
/// back; the client waits a little longer than that.
pub(super) async fn run(
    provider: &dyn Provider,
    vm: &EnvironmentId,
    script: &str,
    limit: Duration,
) -> Result<ScriptOutput, (BootError, Option<ScriptOutput>)> {
    let argv = vec!["sh".to_owned(), "-lc".to_owned(), script.to_owned()];
    let command = Command {
        argv,
        timeout: limit,
    };
    let answer = provider
        .exec(vm, &command.request())
        .await
        .map_err(|e| (BootError::Script(e), None))?;
    let output = ScriptOutput {
        exit_code: answer.exit_code,
        stdout: answer.stdout,
        stderr: answer.stderr,
    };
    let stderr = || output.stderr.clone();
    let failed = if answer.timed_out {
        BootError::ScriptTimeout {
            limit,
            stderr: stderr(),
        }
    } else if output.exit_code != 0 {
        BootError::ScriptExit {
            exit_code: output.exit_code,
            stderr: stderr(),
        }
    } else {
        return Ok(output);
    };
    Err((failed, Some(output)))
}
