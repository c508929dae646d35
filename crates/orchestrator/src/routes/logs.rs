//! `GET /v1/environments/{id}/logs`, and what it shares with the logs of tasks: plain text, as it was
//! printed.

use axum::{
    body::{Body, Bytes},
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use fuse_control::{LogSource, Phase};
use fuse_model::EnvironmentId;
use futures_util::stream;

use super::sse::passed_on;
use crate::http::{ApiError, App, Query};

pub(super) async fn read(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    query: Query,
) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    let (source, phase) = wanted(&query)?;
    let follow = match query.get("follow") {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(_) => return Err(ApiError::invalid("follow must be true or false")),
    };
    let logs = app
        .control
        .environment_logs(&id, source, phase, follow)
        .await?;
    // An error ends the answer without its last chunk, which tells the reader that there was more.
    let chunks = stream::unfold(logs, |mut logs| async move {
        let text = logs.next().await.transpose()?;
        Some((text.map(Bytes::from), logs))
    });
    Ok(answer(Body::from_stream(chunks)))
}

/// Which output a query asks for.
pub(super) fn wanted(query: &Query) -> Result<(LogSource, Option<Phase>), ApiError> {
    let source = match query.get("source") {
        None | Some("startup") => LogSource::Startup,
        Some("console") => LogSource::Console,
        Some("agent") => LogSource::Agent,
        Some(_) => {
            return Err(ApiError::invalid(
                "source must be startup, console or agent",
            ));
        }
    };
    let phase = match query.get("phase") {
        None => None,
        Some("build") => Some(Phase::Build),
        Some("run") => Some(Phase::Run),
        Some(_) => return Err(ApiError::invalid("phase must be build or run")),
    };
    if phase.is_some() && source != LogSource::Startup {
        return Err(ApiError::invalid("phase is for source=startup"));
    }
    Ok((source, phase))
}

pub(super) fn whole(text: String) -> Response {
    answer(Body::from(text))
}

fn answer(body: Body) -> Response {
    passed_on(body, "text/plain; charset=utf-8")
}
