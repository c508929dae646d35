//! The least that a server of event streams can be: this program again, to compare with.
//!
//! Hyper and a queue per subscriber, without anything that makes a control plane. What an event
//! costs here is what the kernel, the runtime and the readers cost.

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

/// The argument that makes this program one.
pub(crate) const ARGUMENT: &str = "--fan-out";
/// As long as the orchestrator's.
const EVENT: &str = "id: 0123456789abcdef0123456789abcdef\ndata: {\"id\":\"0123456789abcdef0123456789abcdef\",\
    \"event\":\"state\",\"vm_id\":\"fuse-watched\",\"state\":\"STATE\",\"url\":\"fc://fuse-watched\",\
    \"updated_at\":\"2026-01-01T00:00:00.000000Z\"}\n\n";

type Subscribers = Arc<Mutex<Vec<UnboundedSender<Bytes>>>>;

/// Where to listen, if the arguments say so.
pub(crate) fn address(arguments: impl Iterator<Item = OsString>) -> Option<SocketAddr> {
    let mut arguments = arguments.skip_while(|argument| argument != ARGUMENT);
    arguments.nth(1)?.to_str()?.parse().ok()
}

/// Serves until it is killed: `GET` subscribes, anything else is an event for all.
pub(crate) fn run(address: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        let subscribers = Subscribers::default();
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let subscribers = Arc::clone(&subscribers);
            let api = service_fn(move |request| answer(request, Arc::clone(&subscribers)));
            let serve = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), api);
            // A connection that breaks is its own affair.
            connections.spawn(async move { drop(serve.await) });
            while connections.try_join_next().is_some() {}
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    subscribers: Subscribers,
) -> Result<Response<Events>, Infallible> {
    let (sender, events) = mpsc::unbounded_channel();
    let mut subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
    if request.method() == Method::GET {
        // The channel's other end is in the answer.
        drop(sender.send(event("running")));
        subscribers.push(sender);
    } else {
        let event = event("draining");
        subscribers.retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }
    Ok(Response::new(Events(events)))
}

fn event(state: &str) -> Bytes {
    EVENT.replace("STATE", state).into()
}

/// A body of what comes.
struct Events(UnboundedReceiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(cx);
        next.map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
