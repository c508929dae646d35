//! The handlers of logs.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use fuse_wire_host::logs::{FailedCreate, LogSource};
use fuse_wire_host::name;
use futures_util::{Stream, stream};
use serde::Deserialize;

use super::routes::Answer;
use super::{ApiError, App};

/// `?source=console|agent&follow=1`
#[derive(Debug, Deserialize)]
pub(super) struct LogQuery {
    #[serde(default)]
    source: String,
    #[serde(default)]
    follow: String,
}

pub(super) async fn read(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Response, ApiError> {
    let source: LogSource = query.source.parse().map_err(|()| {
        ApiError::bad_request(format!(
            "source must be console or agent, not {:?}",
            query.source
        ))
    })?;
    let follow = matches!(query.follow.as_str(), "1" | "true");
    let id = name::vm_id(&id);
    Ok(match source {
        LogSource::Console => {
            let log = app.registry.console(&id, follow).await?;
            answer(stream::unfold(log, |mut log| async {
                Some((log.next().await.transpose()?, log))
            }))
        }
        LogSource::Agent => {
            let log = app.registry.agent_log(&id, follow).await?;
            answer(stream::unfold(log, |mut log| async {
                Some((log.next().await.transpose()?, log))
            }))
        }
    })
}

pub(super) async fn failure(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Answer<FailedCreate> {
    Ok(Json(app.registry.failed_create(&name::vm_id(&id))?))
}

fn answer(chunks: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Response {
    let text = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    (text, Body::from_stream(chunks)).into_response()
}
