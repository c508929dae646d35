//! The way out of a session: `~.` at the beginning of a line. `~~` is one tilde.

/// What became of some input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// What goes to the guest.
    pub(super) bytes: Vec<u8>,
    /// The user wants to leave.
    pub(super) leave: bool,
}

/// Where in a line the input is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Escape {
    /// Nothing was typed in this line yet.
    #[default]
    LineStart,
    /// A tilde was, and nothing else: it is held back.
    Tilde,
    /// Something else was.
    Middle,
}

impl Escape {
    /// Passes input on, less the escapes.
    pub(super) fn pass(&mut self, input: &[u8]) -> Passed {
        let mut bytes = Vec::with_capacity(input.len() + 1);
        for &byte in input {
            match (*self, byte) {
                (Self::Tilde, b'.') => return Passed { bytes, leave: true },
                (Self::LineStart, b'~') => {
                    *self = Self::Tilde;
                    continue;
                }
                (Self::Tilde, b'~') | (Self::LineStart | Self::Middle, _) => {}
                (Self::Tilde, _) => bytes.push(b'~'),
            }
            bytes.push(byte);
            *self = match byte {
                b'\r' | b'\n' => Self::LineStart,
                _ => Self::Middle,
            };
        }
        Passed {
            bytes,
            leave: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(pieces: &[&str]) -> (String, bool) {
        let mut escape = Escape::default();
        let mut sent = Vec::new();
        for piece in pieces {
            let passed = escape.pass(piece.as_bytes());
            sent.extend(passed.bytes);
            if passed.leave {
                return (String::from_utf8(sent).unwrap(), true);
            }
        }
        (String::from_utf8(sent).unwrap(), false)
    }

    #[test]
    fn only_a_tilde_and_a_dot_at_the_beginning_of_a_line_leave() {
        assert_eq!(pass(&["~."]), (String::new(), true));
        assert_eq!(pass(&["ls\r", "~", "."]), ("ls\r".into(), true));
        assert_eq!(pass(&["a~."]), ("a~.".into(), false));
        assert_eq!(pass(&["cd ~/.\r"]), ("cd ~/.\r".into(), false));
        assert_eq!(pass(&["~~.\r"]), ("~.\r".into(), false));
        assert_eq!(pass(&["~/x\r"]), ("~/x\r".into(), false));
        assert_eq!(pass(&["~\r~."]), ("~\r".into(), true));
    }
}
