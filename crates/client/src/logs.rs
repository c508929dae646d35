//! What environments and tasks printed: text, as it comes.

use bytes::Bytes;
use fuse_wire_api::LogQuery;
use reqwest::{Method, Response};

use crate::{Client, Error, Reason};

/// An output on its way. Dropping it ends the call.
#[derive(Debug)]
pub struct LogStream {
    url: String,
    response: Response,
}

impl LogStream {
    /// The next text; `None` at the end. A character may be cut in two by a piece's end.
    ///
    /// # Errors
    /// See [`Error`]; the output broke off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = self.response.chunk().await;
        chunk.map_err(|error| Error::Transport {
            url: self.url.clone(),
            reason: Reason::of(&error),
        })
    }
}

impl Client {
    /// Reads what an environment prints; with `follow` also what comes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn environment_logs(&self, id: &str, query: &LogQuery) -> Result<LogStream, Error> {
        self.logs(&["v1", "environments", id, "logs"], query).await
    }

    pub(crate) async fn logs(&self, path: &[&str], query: &LogQuery) -> Result<LogStream, Error> {
        let mut call = self.call(Method::GET, path)?.query(query)?;
        if query.follow {
            // Silence says nothing: the guest may have nothing to say.
            call = call.timeout(None);
        }
        let url = call.shown();
        let response = self.send(call).await?;
        Ok(LogStream { url, response })
    }
}
