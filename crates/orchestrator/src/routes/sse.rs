//! Server-sent events: an answer that goes on, with a comment after every silence.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};

use crate::server::Unhurried;

/// A comment is sent after this much silence, so that proxies keep the stream.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Answers with `records`, each written out to its blank line.
pub(super) fn answer(records: impl Stream<Item = String> + Send + 'static) -> Response {
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

fn kept_alive(
    records: impl Stream<Item = String> + Send + 'static,
    keepalive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(Box::pin(records), move |mut records| async move {
        let record = match tokio::time::timeout(keepalive, records.next()).await {
            Ok(record) => record?,
            Err(_silence) => ": keepalive\n\n".to_owned(),
        };
        Some((Ok(Bytes::from(record)), records))
    })
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
        sender.send("id: 1\ndata: {}\n\n".to_owned()).await.unwrap();
        assert_eq!(next().await, "id: 1\ndata: {}\n\n");
        assert_eq!(next().await, comment);
        drop(sender);
        assert_eq!(next().await, "end");
    }
}
