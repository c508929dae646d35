//! Attaching to a fake guest: it sends back whatever it gets, until it gets no more.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, Request, State as Shared},
    http::{StatusCode, header},
    response::IntoResponse as _,
    routing::get,
};
use fuse_wire_host::attach::PROTOCOL;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;

use super::{
    routes::{Agent, Answer, failure, with_vm},
    state::{State, Step},
};

pub(super) fn router() -> Router<Arc<State>> {
    Router::new().route("/v1/vm/{id}/attach", get(attach))
}

async fn attach(Shared(state): Agent, Path(id): Path<String>, mut request: Request) -> Answer {
    state.enter(Step::Attach, &id).await?;
    with_vm(&state, &id, |_| ())?;
    let query = request.uri().query().unwrap_or_default().to_owned();
    state.lock().attach_queries.push(query);
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return Err(failure(StatusCode::BAD_REQUEST, "not an upgrade"));
    };
    let ended = state.attach_ended();
    state.lock().sessions.spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
            // However it ends, it has.
            let _copied = tokio::io::copy(&mut from, &mut to).await;
            let _closed = to.shutdown().await;
        }
        ended.send_modify(|count| *count += 1);
    });
    let headers = [(header::UPGRADE, PROTOCOL), (header::CONNECTION, "Upgrade")];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}
