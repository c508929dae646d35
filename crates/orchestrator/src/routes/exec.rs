//! `POST /v1/environments/{id}?action=exec`, in its three forms: the answer at the end, a stream of
//! what the command writes (`stream=1`), and the connection itself (`Upgrade: fuse-attach/1`), over
//! which the command can be given input.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::Request,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use fuse_control::{Command, ExecOutput, ExecStream};
use fuse_model::EnvironmentId;
use fuse_wire_api::{ExecFrame, ExecRequest, ExecResponse, Output, Scope};
use futures_util::{Stream, stream};

use super::{attach, sse};
use crate::{
    http::{ApiError, App, Limit, Principal, Query, read_required},
    server::Unhurried,
    views,
};

pub(super) async fn exec(
    app: &App,
    principal: &Principal,
    id: &EnvironmentId,
    query: &Query,
    mut request: Request,
) -> Result<Response, ApiError> {
    principal.require(Scope::Exec, "exec requires the master token")?;
    let handover = attach::handover(&mut request)?;
    let is_stream = matches!(query.get("stream"), Some("1" | "true"));
    let command = command(request.into_body()).await?;
    if let Some(handover) = handover {
        let attached = app.control.exec_session(id, command).await?;
        return Ok(handover.relay(attached));
    }
    if is_stream {
        let running = app.control.exec_stream(id, command).await?;
        return Ok(sse::answer(records(running)));
    }
    let answer = app.control.exec(id, command).await?;
    let view = ExecResponse {
        exit_code: answer.exit_code,
        stdout: views::lossy(answer.stdout),
        stderr: views::lossy(answer.stderr),
    };
    let mut response = Json(view).into_response();
    response.extensions_mut().insert(Unhurried);
    Ok(response)
}

async fn command(body: Body) -> Result<Command, ApiError> {
    let request: ExecRequest = read_required(body, Limit::Large).await?;
    let command = request.check()?;
    Ok(Command {
        argv: command.argv,
        timeout: Duration::from_millis(command.timeout_ms),
    })
}

/// Ends behind the command's exit status, or behind the reason why there is none.
fn records(running: ExecStream) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(Some(running), |running| async move {
        let mut running = running?;
        let (frame, rest) = match running.next().await {
            Ok(ExecOutput::Stdout(bytes)) => {
                (ExecFrame::Stdout { data: data(bytes) }, Some(running))
            }
            Ok(ExecOutput::Stderr(bytes)) => {
                (ExecFrame::Stderr { data: data(bytes) }, Some(running))
            }
            Ok(ExecOutput::Exit(exit)) => {
                let frame = ExecFrame::Exit {
                    exit_code: exit.exit_code,
                    timed_out: exit.timed_out,
                    signal: exit.signal,
                };
                (frame, None)
            }
            Err(error) => {
                let error = ApiError::from(error).into_body();
                (ExecFrame::Error { error }, None)
            }
        };
        // Plain structs always serialise.
        let json = serde_json::to_string(&frame).unwrap_or_default();
        Some((format!("data: {json}\n\n").into(), rest))
    })
}

fn data(bytes: Bytes) -> Output {
    Output(bytes.into())
}
