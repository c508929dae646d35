//! The least of an HTTP client: one request on one connection.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// No answer takes longer; a test that waits for one fails instead of hanging.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn typed<T: DeserializeOwned>(&self) -> T {
        serde_json::from_value(self.json()).unwrap()
    }

    /// The complaint of an answer that is one.
    pub(crate) fn fault(&self) -> String {
        assert_eq!(self.status, 400, "{self:?}");
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "{self:?}");
        body["fault_message"].as_str().unwrap().to_owned()
    }
}

/// Sends one request and reads the answer to its end.
pub(crate) fn call(mut stream: UnixStream, method: &str, path: &str, body: &str) -> Answer {
    send(&mut stream, method, path, body);
    receive(stream)
}

pub(crate) fn send(stream: &mut UnixStream, method: &str, path: &str, body: &str) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
}

pub(crate) fn receive(mut stream: UnixStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    Answer {
        status: status
            .parse()
            .unwrap_or_else(|_| panic!("no answer: {text:?}")),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}
