//! One attempt.

use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::config::{Check, Config};

/// Passes, or says why not.
pub(super) async fn attempt(config: &Config) -> Result<(), String> {
    match &config.check {
        Check::Http { port, path } => match timeout(config.timeout, http(*port, path)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(too_slow(config.timeout)),
        },
        Check::Exec(argv) => exec(argv, config.timeout).await,
    }
}

fn too_slow(limit: Duration) -> String {
    format!("no answer within {}s", limit.as_secs())
}

/// 200 to 399 passes; a redirect is an answer and is not followed.
async fn http(port: u16, path: &str) -> Result<(), String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await;
    let stream = stream.map_err(|e| format!("cannot connect to port {port}: {e}"))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
    let request = hyper::Request::get(path)
        .header("host", format!("127.0.0.1:{port}"))
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    let mut answer = pin!(sender.send_request(request));
    let mut connection = pin!(connection);
    // A server that closes at once has answered all the same.
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ended = &mut connection => answer.await,
    };
    let answer = answer.map_err(|e| format!("no answer: {e}"))?;
    match answer.status().as_u16() {
        200..=399 => Ok(()),
        status => Err(format!("status {status}")),
    }
}

/// Status 0 passes. On a timeout the command goes with everything that it started.
async fn exec(argv: &[String], limit: Duration) -> Result<(), String> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err("there is no command".to_owned());
    };
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("{name}: {e}"))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    match timeout(limit, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{name}: {status}")),
        Ok(Err(e)) => Err(format!("{name}: {e}")),
        Err(_) => {
            if let Some(group) = group.and_then(rustix::process::Pid::from_raw) {
                // It may have ended in this very moment.
                let _gone =
                    rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            Err(format!("{name}: {}", too_slow(limit)))
        }
    }
}
