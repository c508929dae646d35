//! Attaching to a fake guest: it sends back whatever it gets, until it gets no more. A command
//! without a terminal is answered like one that is executed, in frames; or a test answers
//! ([`super::FakeAgent::answer_attached`]).

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, Request, State as Shared},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use fuse_wire_host::{
    ExecRequest,
    attach::{Codec, Exit, Frame, FrameError, PROTOCOL, Request as Wanted},
    limits,
};
use futures_util::SinkExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncWriteExt as _, sync::mpsc};
use tokio_util::codec::FramedWrite;

use super::{
    routes::{Agent, Answer, failure, run, with_vm},
    state::{State, Step},
};

/// What was asked for, and the connection that the asker waits on.
pub type AttachedGuest = (Wanted, TokioIo<Upgraded>);

/// Where a test gets them.
pub(super) type Answered = mpsc::UnboundedSender<AttachedGuest>;

pub(super) fn router() -> Router<Arc<State>> {
    Router::new().route("/v1/vm/{id}/attach", get(attach).post(attach))
}

async fn attach(Shared(state): Agent, Path(id): Path<String>, mut request: Request) -> Answer {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or_else(|| failure(StatusCode::BAD_REQUEST, "not an upgrade"))?;
    let query = request.uri().query().map(str::to_owned);
    let body = axum::body::to_bytes(request.into_body(), limits::MAX_BODY_BYTES).await;
    let bad = |error: &dyn std::fmt::Display| failure(StatusCode::BAD_REQUEST, &error.to_string());
    let wanted: Wanted = match &query {
        Some(query) => Wanted::from_query(query).map_err(|e| bad(&e))?,
        None => serde_json::from_slice(&body.map_err(|e| bad(&e))?).map_err(|e| bad(&e))?,
    };
    let answered = state.lock().answer_attached.clone();
    if !wanted.tty && answered.is_none() {
        return execute(&state, &id, wanted, upgrade).await;
    }
    state.enter(Step::Attach, &id).await?;
    with_vm(&state, &id, |_| ())?;
    state.lock().attach_queries.push(query.unwrap_or_default());
    let ended = state.attach_ended();
    state.lock().sessions.spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            if let Some(answered) = answered {
                // A test that is over answers nobody.
                let _over = answered.send((wanted, TokioIo::new(upgraded)));
                return;
            }
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
            // However it ends, it has.
            let _copied = tokio::io::copy(&mut from, &mut to).await;
            let _closed = to.shutdown().await;
        }
        ended.send_modify(|count| *count += 1);
    });
    Ok(switching())
}

async fn execute(state: &Arc<State>, id: &str, wanted: Wanted, upgrade: OnUpgrade) -> Answer {
    let command = ExecRequest {
        cmd: wanted.cmd,
        ..ExecRequest::default()
    };
    let done = run(state, id, &command).await?;
    let hold = state.lock().holds_ends.clone();
    state.lock().sessions.spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let (mut from, to) = tokio::io::split(TokioIo::new(upgraded));
        let mut to = FramedWrite::new(to, Codec);
        let told = async {
            to.send(Frame::Stdout(done.stdout.into())).await?;
            to.send(Frame::Stderr(done.stderr.into())).await?;
            if let Some(mut hold) = hold {
                // A dropped gate is an open one.
                let _open = hold.wait_for(|open| *open).await;
            }
            let exit = Exit {
                exit_code: done.exit_code,
                timed_out: done.timed_out,
                signal: done.signal,
            };
            to.send(Frame::Exit(exit)).await?;
            to.get_mut().shutdown().await?;
            Ok::<_, FrameError>(())
        };
        // A caller that goes away has missed it.
        let _told = told.await;
        let _closed = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    });
    Ok(switching())
}

fn switching() -> Response {
    let headers = [(header::UPGRADE, PROTOCOL), (header::CONNECTION, "Upgrade")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}
