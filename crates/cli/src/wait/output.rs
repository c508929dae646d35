//! What a startup script prints while it runs, and the last line of what is printed.

use futures_util::stream::{BoxStream, unfold};
use futures_util::{Stream, StreamExt as _};

use bytes::Bytes;
use fuse_client::Client;
use fuse_wire_api::LogQuery;

/// Longest part of a line that is kept; more than a terminal shows.
const LINE_LIMIT: usize = 1024;

/// Follows the output. What goes wrong ends it: the view is complete without.
pub(super) struct Output(BoxStream<'static, Bytes>);

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

impl Output {
    /// Of an environment. Nothing is asked before the first call of [`Output::next`].
    pub(super) fn of(client: &Client, id: &str) -> Self {
        let (client, id) = (client.clone(), id.to_owned());
        let pieces = unfold(None, move |open| {
            let (client, id) = (client.clone(), id.clone());
            async move {
                let mut open = match open {
                    Some(open) => open,
                    None => {
                        let query = LogQuery {
                            source: "startup".to_owned(),
                            follow: true,
                            ..LogQuery::default()
                        };
                        client.environment_logs(&id, &query).await.ok()?
                    }
                };
                let piece = open.next().await.ok()??;
                Some((piece, Some(open)))
            }
        });
        Self::new(pieces)
    }

    /// Fused: whoever waits for other things as well asks again after the end.
    fn new(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self(pieces.fuse().boxed())
    }

    /// What was printed next; nothing ever after the end.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub(super) async fn next(&mut self) -> Bytes {
        match self.0.next().await {
            Some(piece) => piece,
            None => std::future::pending().await,
        }
    }
}

/// The last line that says something, of bytes that come in pieces.
#[derive(Debug, Default)]
pub(super) struct LastLine {
    /// What came behind the last line end.
    open: Vec<u8>,
    /// The line before it that was not blank.
    whole: String,
}

impl LastLine {
    /// Takes a piece and answers with the line as a terminal can show it: without escape sequences and
    /// other control characters.
    pub(super) fn push(&mut self, piece: &[u8]) -> String {
        for byte in piece {
            // A progress bar goes back to the start of its line.
            if matches!(byte, b'\n' | b'\r') {
                let line = shown(&self.open);
                self.open.clear();
                if !line.is_empty() {
                    self.whole = line;
                }
            } else if self.open.len() < LINE_LIMIT {
                self.open.push(*byte);
            }
        }
        match shown(&self.open) {
            line if line.is_empty() => self.whole.clone(),
            line => line,
        }
    }
}

fn shown(line: &[u8]) -> String {
    let plain = anstream::adapter::strip_bytes(line).into_vec();
    let text = String::from_utf8_lossy(&plain).replace('\t', " ");
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn output_that_has_ended_can_be_asked_again() {
        let pieces = unfold(1, async |left| {
            (left > 0).then_some((Bytes::from_static(b"one"), left - 1))
        });
        let mut output = Output::new(pieces);
        assert_eq!(output.next().now_or_never().unwrap(), "one");
        for _ in 0..3 {
            assert_eq!(output.next().now_or_never(), None);
        }
    }

    #[test]
    fn the_last_line_that_says_something() {
        let mut line = LastLine::default();
        assert_eq!(line.push(b""), "");
        assert_eq!(line.push(b"one\ntw"), "tw");
        assert_eq!(line.push(b"o\n\n  \n"), "two");
        assert_eq!(line.push(b" 10%\r 20%"), "20%");
        assert_eq!(line.push(b"\r\x1b[2K\x1b[32mdo"), "do");
        assert_eq!(line.push(b"ne\x1b[0m\x07\t!\n"), "done !");
        // A character that is cut in two.
        line.push(b"caf\xc3");
        assert_eq!(line.push(b"\xa9"), "caf\u{e9}");
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut line = LastLine::default();
        for _ in 0..100 {
            line.push(&[b'x'; 1000]);
        }
        assert_eq!(line.open.len(), LINE_LIMIT);
        assert_eq!(line.push(b"\nshort"), "short");
    }
}
