//! Server-sent events: an answer that goes on, with a comment after every silence.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::{Instant, sleep};

use crate::server::Unhurried;

/// A comment is sent after this much silence, so that proxies keep the stream.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Answers with `records`, each written out to its blank line.
pub(super) fn answer(records: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = Body::from_stream(kept_alive(records, KEEPALIVE));
    let mut response = passed_on(body, "text/event-stream");
    let keep = HeaderValue::from_static("keep-alive");
    response.headers_mut().insert(header::CONNECTION, keep);
    response
}

/// An answer that proxies neither keep nor hold back, and that may take its time.
pub(super) fn passed_on(body: Body, content_type: &'static str) -> Response {
    let mut response = Response::new(body);
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response.extensions_mut().insert(Unhurried);
    response
}

/// The alarm is set anew when it rings, not with each record.
fn kept_alive(
    records: impl Stream<Item = Bytes> + Send + 'static,
    keepalive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let begun = (
        Box::pin(records),
        Box::pin(sleep(keepalive)),
        Instant::now(),
    );
    stream::unfold(
        begun,
        move |(mut records, mut alarm, mut spoke)| async move {
            loop {
                let record = tokio::select! {
                    biased;
                    record = records.next() => record?,
                    () = alarm.as_mut() => {
                        let is_silent = spoke + keepalive <= Instant::now();
                        if !is_silent {
                            alarm.as_mut().reset(spoke + keepalive);
                            continue;
                        }
                        alarm.as_mut().reset(Instant::now() + keepalive);
                        Bytes::from_static(b": keepalive\n\n")
                    }
                };
                spoke = Instant::now();
                return Some((Ok(record), (records, alarm, spoke)));
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silence_is_filled_with_comments_until_the_end() {
        assert_eq!(KEEPALIVE, Duration::from_secs(15));
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let records = stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        // However short the interval, a record that is there goes first.
        let mut frames = Box::pin(kept_alive(records, Duration::from_millis(1)));
        let mut next = async || match frames.next().await {
            Some(Ok(frame)) => String::from_utf8(frame.to_vec()).unwrap(),
            Some(Err(e)) => match e {},
            None => "end".to_owned(),
        };
        let comment = ": keepalive\n\n";
        assert_eq!(next().await, comment);
        assert_eq!(next().await, comment);
        let record = Bytes::from_static(b"id: 1\ndata: {}\n\n");
        sender.send(record).await.unwrap();
        assert_eq!(next().await, "id: 1\ndata: {}\n\n");
        assert_eq!(next().await, comment);
        drop(sender);
        assert_eq!(next().await, "end");
    }
}
