//! What to attach to: the query of the upgrade request, or the JSON body of one whose command is too
//! long for a query.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest query, in bytes: well below what HTTP servers take as a request line.
const MAX_QUERY: usize = 16 * 1024;

/// A command to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// With a terminal. Without one the output streams stay apart and stdin can be ended.
    pub tty: bool,
    /// First size of the terminal.
    pub rows: Option<u16>,
    /// First size of the terminal.
    pub cols: Option<u16>,
    /// Program and arguments; none is root's login shell.
    pub cmd: Vec<String>,
    /// `TERM` of the command; the guest has a default.
    pub term: Option<String>,
    /// Working directory; absent is the guest's default.
    pub cwd: Option<String>,
    /// The command's input stays open for stdin frames. A terminal always has input; otherwise the
    /// command reads end of file at once unless this is set.
    pub stdin: bool,
    /// Time limit in milliseconds; none by default.
    pub timeout_ms: Option<u64>,
}

/// Where a request stands in the upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// `GET` with this query, without the question mark.
    Query(String),
    /// `POST` with the request as JSON.
    Body,
}

/// A query that asks for something impossible.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{name} must be {expected}, not {value:?}")]
pub struct RequestError {
    name: &'static str,
    value: String,
    expected: &'static str,
}

impl Request {
    /// As a query, without the question mark.
    #[must_use]
    pub fn to_query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let flag = |on: bool| if on { "1" } else { "0" };
        query.append_pair("tty", flag(self.tty));
        if self.stdin {
            query.append_pair("stdin", "1");
        }
        let sizes = [("rows", self.rows), ("cols", self.cols)];
        for (name, value) in sizes {
            if let Some(value) = value {
                query.append_pair(name, &value.to_string());
            }
        }
        if let Some(limit) = self.timeout_ms {
            query.append_pair("timeout_ms", &limit.to_string());
        }
        for (name, value) in [("term", &self.term), ("cwd", &self.cwd)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        for word in &self.cmd {
            query.append_pair("cmd", word);
        }
        query.finish()
    }

    /// How it is sent. A query is understood by every peer, so that the body is for commands that do
    /// not fit in one.
    #[must_use]
    pub fn sent(&self) -> Sent {
        let query = self.to_query();
        if query.len() <= MAX_QUERY {
            Sent::Query(query)
        } else {
            Sent::Body
        }
    }

    /// Reads a query. Blank `cmd` words and their order are kept, a size that is none is ignored,
    /// and so is what this side does not know.
    ///
    /// # Errors
    /// `timeout_ms` is not a positive number.
    pub fn from_query(query: &str) -> Result<Self, RequestError> {
        let mut request = Self::default();
        let on = |value: &str| matches!(value, "1" | "true");
        let size = |value: &str| value.parse().ok().filter(|n| *n > 0);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "tty" => request.tty = on(&value),
                "stdin" => request.stdin = on(&value),
                "rows" => request.rows = size(&value),
                "cols" => request.cols = size(&value),
                "cmd" => request.cmd.push(value.into_owned()),
                "term" => request.term = Some(value.into_owned()).filter(|term| !term.is_empty()),
                "cwd" => request.cwd = Some(value.into_owned()).filter(|cwd| !cwd.is_empty()),
                "timeout_ms" => {
                    let limit = value.parse().ok().filter(|n| *n > 0);
                    request.timeout_ms = Some(limit.ok_or_else(|| RequestError {
                        name: "timeout_ms",
                        value: value.into_owned(),
                        expected: "a number above 0",
                    })?);
                }
                _ => {}
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blanks_and_order_are_kept_and_nonsense_is_not() {
        let query = "tty=true&rows=0&cols=x&cmd=sh&cmd=&cmd=a%20b&later=1";
        let want = Request {
            tty: true,
            cmd: vec!["sh".into(), String::new(), "a b".into()],
            ..Request::default()
        };
        assert_eq!(Request::from_query(query).unwrap(), want);
        assert!(!Request::from_query("tty=yes").unwrap().tty);
        let error = Request::from_query("timeout_ms=-1")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "timeout_ms must be a number above 0, not \"-1\"");
    }

    #[test]
    fn what_does_not_fit_in_a_query_goes_in_the_body() {
        let mut request = Request {
            cmd: vec!["sh".into(), "-c".into(), "é".repeat(2000)],
            ..Request::default()
        };
        assert_eq!(request.sent(), Sent::Query(request.to_query()));
        request.cmd.push("é".repeat(2000));
        assert_eq!(request.sent(), Sent::Body);
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }

    proptest! {
        #[test]
        fn a_request_survives_the_wire(
            flags: (bool, bool),
            rows in proptest::option::of(1u16..),
            cols in proptest::option::of(1u16..),
            cmd in proptest::collection::vec(".{0,12}", 0..4),
            term in proptest::option::of("[a-z0-9-]{1,9}"),
            cwd in proptest::option::of("/.{0,12}"),
            timeout_ms in proptest::option::of(1u64..),
        ) {
            let (tty, stdin) = flags;
            let sent = Request { tty, rows, cols, cmd, term, cwd, stdin, timeout_ms };
            prop_assert_eq!(Request::from_query(&sent.to_query()).unwrap(), sent);
        }
    }
}
