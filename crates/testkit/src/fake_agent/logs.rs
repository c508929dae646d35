//! What fake VMs print, and what is remembered of fake creates that failed.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Query, State as Shared},
    http::StatusCode,
    response::IntoResponse as _,
    routing::get,
};
use fuse_wire_host::{FailedCreate, LogSource, text};
use futures_util::stream;
use tokio::sync::watch;

use super::{
    FakeAgent,
    routes::{Agent, Answer, failure, with_vm},
    state::{State, Step},
};

pub(super) fn router() -> Router<Arc<State>> {
    Router::new()
        .route("/v1/vm/{id}/logs", get(logs))
        .route("/v1/vm/{id}/failure", get(failed))
}

#[derive(serde::Deserialize)]
struct Wanted {
    source: String,
    follow: String,
}

async fn logs(
    Shared(state): Agent,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer {
    state.enter(Step::Logs, &id).await?;
    with_vm(&state, &id, |_| ())?;
    let source: LogSource = wanted
        .source
        .parse()
        .map_err(|()| failure(StatusCode::BAD_REQUEST, "source must be console or agent"))?;
    let printed = printed(&state, &id, source).subscribe();
    let follow = wanted.follow == "1";
    let chunks = stream::unfold((printed, 0), move |(mut printed, at)| async move {
        if follow {
            // The sender goes with the VM: what was printed last is still read.
            let _gone = printed.wait_for(|text| text.len() > at).await;
        }
        let new = Bytes::from(printed.borrow().get(at..)?.to_vec());
        let next = at + new.len();
        (!new.is_empty()).then_some((Ok::<_, std::io::Error>(new), (printed, next)))
    });
    Ok(Body::from_stream(chunks).into_response())
}

async fn failed(Shared(state): Agent, Path(id): Path<String>) -> Answer {
    state.enter(Step::Failure, &id).await?;
    let known = state.lock().failed_creates.get(&id).cloned();
    match known {
        Some(known) => Ok(Json(known).into_response()),
        None => Err(failure(StatusCode::NOT_FOUND, text::VM_NOT_FOUND)),
    }
}

fn printed(state: &State, id: &str, source: LogSource) -> watch::Sender<Vec<u8>> {
    let mut inner = state.lock();
    inner
        .printed
        .entry((id.to_owned(), source))
        .or_default()
        .clone()
}

impl FakeAgent {
    /// Lets a VM print something, now and to everybody who follows.
    pub fn print(&self, name: &str, source: LogSource, text: &str) {
        printed(&self.state, name, source)
            .send_modify(|all| all.extend_from_slice(text.as_bytes()));
    }

    /// Remembers that a create of this name failed.
    pub fn remember_failure(&self, failure: FailedCreate) {
        let id = failure.vm_id.clone();
        self.state.lock().failed_creates.insert(id, failure);
    }

    /// Keeps attached commands from ending, once they have written what they write, until the
    /// answer is dropped.
    #[must_use]
    pub fn hold_ends(&self) -> watch::Sender<bool> {
        let (open, opened) = watch::channel(false);
        self.state.lock().holds_ends = Some(opened);
        open
    }
}
