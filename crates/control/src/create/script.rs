//! Runs the startup script of an environment (lifecycle 7), and what else is run while it is made.

use std::{future::Future, pin::Pin, time::Duration};

use fuse_model::EnvironmentId;
use fuse_wire_host::{
    HostError,
    attach::{Codec, Exit, Frame, Request as AttachRequest},
    limits::CALL_GRACE,
};
use futures_util::StreamExt as _;
use tokio_util::codec::FramedRead;

use super::{
    failure::BootError,
    output::{Output, Source},
};
use crate::{
    exec::Command,
    provider::{Provider, ProviderError},
};

/// How often what a script has written is stored while it runs.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Keeps what was written so far.
pub(super) type Save = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The command that runs a script.
pub(super) fn argv(script: &str) -> Vec<String> {
    ["sh", "-lc", script].map(str::to_owned).to_vec()
}

/// Runs a command and collects what it writes as it comes. The guest enforces the bound; here it
/// is waited a little longer than that. Answers with the exit status, of a command that ended.
pub(super) async fn run(
    provider: &dyn Provider,
    vm: &EnvironmentId,
    argv: Vec<String>,
    limit: Duration,
    output: &mut Output<'_>,
    save: impl Fn(&Output<'_>) -> Save,
) -> Result<i32, BootError> {
    let request = AttachRequest {
        cmd: argv,
        timeout_ms: Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        ..AttachRequest::default()
    };
    let exit = match provider.attach(vm, &request).await {
        Ok(stream) => {
            let ended = collect(stream, output, save);
            let ended = tokio::time::timeout(limit + CALL_GRACE, ended).await;
            ended.unwrap_or(None)
        }
        // An agent of an earlier release, or the VM is gone, which the next call says as well.
        Err(ProviderError::Host(HostError::NotFound { .. })) => {
            Some(at_once(provider, vm, request.cmd, limit, output).await?)
        }
        Err(error) => return Err(BootError::Script(error)),
    };
    output.finish();
    let exit = exit.ok_or(BootError::ScriptCut)?;
    if exit.timed_out {
        return Err(BootError::ScriptTimeout {
            limit,
            stderr: output.stderr().to_owned(),
            exit_code: exit.exit_code,
        });
    }
    if exit.exit_code != 0 {
        return Err(BootError::ScriptExit {
            exit_code: exit.exit_code,
            stderr: output.stderr().to_owned(),
        });
    }
    Ok(exit.exit_code)
}

/// Runs the script where nothing can be attached: all of its output comes with its end.
async fn at_once(
    provider: &dyn Provider,
    vm: &EnvironmentId,
    argv: Vec<String>,
    timeout: Duration,
    output: &mut Output<'_>,
) -> Result<Exit, BootError> {
    let command = Command { argv, timeout };
    let answer = provider.exec(vm, &command.request()).await;
    let answer = answer.map_err(BootError::Script)?;
    output.push(Source::Stdout, &answer.stdout);
    output.push(Source::Stderr, &answer.stderr);
    Ok(Exit {
        exit_code: answer.exit_code,
        timed_out: answer.timed_out,
        ..Exit::default()
    })
}

/// Reads to the end; `None` when the connection ended before the script did.
async fn collect(
    stream: impl tokio::io::AsyncRead + Unpin,
    output: &mut Output<'_>,
    save: impl Fn(&Output<'_>) -> Save,
) -> Option<Exit> {
    let mut frames = FramedRead::new(stream, Codec);
    let mut ticks = tokio::time::interval(SAVE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    let mut saving: Option<Save> = None;
    loop {
        let saved = async {
            match saving.as_mut() {
                Some(saving) => saving.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = frames.next() => match frame?.ok()? {
                Frame::Stdout(bytes) => output.push(Source::Stdout, &bytes),
                Frame::Stderr(bytes) => output.push(Source::Stderr, &bytes),
                Frame::Exit(exit) => return Some(exit),
                Frame::Stdin(_) | Frame::Resize(_) | Frame::Other(_) => {}
            },
            () = saved => saving = None,
            _ = ticks.tick() => {
                if saving.is_none() && output.take_changed() {
                    saving = Some(save(output));
                }
            }
        }
    }
}
