//! Artifacts of a fake agent: the files of its snapshots, as JSON, over the real wire. One agent
//! fetches them from another with a grant that is really checked.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, Request, State as Shared},
    http::{HeaderMap, Method, StatusCode},
    response::IntoResponse as _,
    routing::{get, post},
};
use fuse_wire_host::{
    AgentToken, AgentUrl, Artifact, Grant, HostTransport, Pull, PullRequest, PullState,
    artifact::{DIGEST_HEADER, GRANT_HEADER, default_id},
    limits,
    snapshot::Snapshot,
    text,
};

use super::{
    TOKEN,
    routes::{Agent, Answer, failure},
    snapshots::Stored,
    state::{Inner, State, Step},
};

pub(super) fn router() -> Router<Arc<State>> {
    Router::new()
        .route("/v1/artifacts/{digest}", get(serve))
        .route("/v1/artifacts/{digest}/pull", post(pull))
        .route("/v1/artifacts/pulls/{id}", get(pulled))
}

/// Whether the grant in a request stands for the token.
pub(super) fn is_granted(request: &Request) -> bool {
    let digest = request.uri().path().strip_prefix("/v1/artifacts/");
    request.method() == Method::GET && digest.is_some_and(|digest| !digest.contains('/'))
}

async fn serve(Shared(state): Agent, Path(digest): Path<String>, headers: HeaderMap) -> Answer {
    let grant = headers
        .get(GRANT_HEADER)
        .and_then(|grant| grant.to_str().ok());
    let claims =
        Grant::from_text(grant.unwrap_or_default()).verify(&AgentToken::new(TOKEN), &digest);
    if !claims.is_ok_and(|claims| claims.is_open()) {
        return Err(failure(StatusCode::FORBIDDEN, text::FORBIDDEN));
    }
    state.enter(Step::Artifact, &digest).await?;
    let inner = state.lock();
    let found = inner
        .snapshots
        .values()
        .find(|stored| stored.record.digest == digest);
    let found = found.ok_or_else(|| failure(StatusCode::NOT_FOUND, text::ARTIFACT_NOT_FOUND))?;
    Ok(([(DIGEST_HEADER, digest)], Json(&found.files)).into_response())
}

async fn pull(
    Shared(state): Agent,
    Path(digest): Path<String>,
    Json(request): Json<PullRequest>,
) -> Answer {
    let id = request
        .snapshot_id
        .clone()
        .unwrap_or_else(|| default_id(&digest));
    state.enter(Step::Pull, &id).await?;
    let mut inner = state.lock();
    if let Some(there) = inner.snapshots.get(&id) {
        return Ok(Json(artifact(&there.record, &request.peer_url)).into_response());
    }
    let running = inner.pulls.values().find(|pull| {
        let record = pull.record.as_ref();
        pull.state == PullState::Running && record.is_some_and(|record| record.snapshot_id == id)
    });
    if let Some(running) = running {
        return Ok((StatusCode::ACCEPTED, Json(shown(running))).into_response());
    }
    let pull = Pull {
        pull_id: format!("pull-{}", inner.calls.len()),
        // What it is for, until it is there.
        record: Some(Artifact {
            snapshot_id: id.clone(),
            ..Artifact::default()
        }),
        ..Pull::default()
    };
    inner.pulls.insert(pull.pull_id.clone(), pull.clone());
    let (worker, pull_id) = (state.clone(), pull.pull_id.clone());
    inner.sessions.spawn(async move {
        let fetched = fetch(&worker, &digest, &id, &request).await;
        let mut inner = worker.lock();
        let Inner {
            pulls, snapshots, ..
        } = &mut *inner;
        if let Some(pull) = pulls.get_mut(&pull_id) {
            if pull.state == PullState::Failed {
                // It was deleted before it was there.
                snapshots.remove(&id);
                return;
            }
            match fetched {
                Ok(record) => {
                    pull.state = PullState::Done;
                    pull.record = Some(record);
                }
                Err(error) => {
                    pull.state = PullState::Failed;
                    pull.record = None;
                    pull.error = Some(error.to_string());
                }
            }
        }
    });
    Ok((StatusCode::ACCEPTED, Json(shown(&pull))).into_response())
}

/// As it goes out: a record is there when the artifact is.
fn shown(pull: &Pull) -> Pull {
    Pull {
        record: pull
            .record
            .clone()
            .filter(|_| pull.state == PullState::Done),
        ..pull.clone()
    }
}

async fn pulled(Shared(state): Agent, Path(id): Path<String>) -> Answer {
    state.enter(Step::Pulled, "").await?;
    let inner = state.lock();
    let pull = inner.pulls.get(&id);
    let pull = pull.ok_or_else(|| failure(StatusCode::NOT_FOUND, text::PULL_NOT_FOUND))?;
    Ok(Json(shown(pull)).into_response())
}

async fn fetch(
    state: &State,
    digest: &str,
    id: &str,
    request: &PullRequest,
) -> anyhow::Result<Artifact> {
    let peer = AgentUrl::parse(&request.peer_url)?;
    let transport = HostTransport::new()?;
    let fetching = transport.fetch_artifact(&peer, digest, &request.grant, 0, limits::ARTIFACT_IO);
    let mut stream = fetching.await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.chunk().await? {
        bytes.extend_from_slice(&chunk);
    }
    let record = Snapshot {
        snapshot_id: id.to_owned(),
        digest: digest.to_owned(),
        base_digest: request.base_digest.clone(),
        size_bytes: 1 << 20,
        ..Snapshot::default()
    };
    let files = serde_json::from_slice(&bytes)?;
    let answer = artifact(&record, &request.peer_url);
    let stored = Stored { record, files };
    state.lock().snapshots.insert(id.to_owned(), stored);
    Ok(answer)
}

fn artifact(record: &Snapshot, peer: &str) -> Artifact {
    Artifact {
        snapshot_id: record.snapshot_id.clone(),
        digest: record.digest.clone(),
        bytes: record.size_bytes,
        source_peer: peer.to_owned(),
        base_digest: record.base_digest.clone(),
        ..Artifact::default()
    }
}
