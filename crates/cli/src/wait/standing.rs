//! A wait that no events tell of: somebody asks again and again how it stands.

use super::live::Live;
use crate::io::Io;

/// What is waited for and how it stands: a live view on a terminal, else a line for each change.
#[derive(Debug)]
pub(crate) struct Standing {
    io: Io,
    live: Option<Live>,
    last: String,
}

impl Standing {
    /// Begins; what moves goes away with the value.
    pub(crate) fn of(io: Io, what: &str) -> Self {
        let live = io.animated().then(|| Live::new(None));
        match &live {
            Some(live) => live.say(what),
            None => io.note(what),
        }
        Self {
            io,
            live,
            last: String::new(),
        }
    }

    /// Shows how it stands. Without a live view `text` is a line only if `gist` is another than before: what
    /// merely counts on is not worth one.
    pub(crate) fn is(&mut self, gist: &str, text: &str) {
        match &mut self.live {
            Some(live) => live.show_line(text),
            None if self.last != gist => {
                self.io.note(text);
                gist.clone_into(&mut self.last);
            }
            None => {}
        }
    }
}
