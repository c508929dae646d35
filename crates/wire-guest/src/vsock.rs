//! The text handshake in front of a vsock stream on the host side.
//!
//! A VMM offers its guest's vsock as one Unix socket. The host connects to it,
//! writes [`connect_line`] and reads [`ok_line`]; after that the stream is the
//! guest's. A guest that dials the host makes the VMM connect to
//! [`listener_path`]. The host agent is the client, `fc-emulator` the server.

use std::path::{Path, PathBuf};

/// Longest line of the handshake, line feed included.
pub const MAX_LINE_BYTES: usize = 64;

/// What the host writes to reach `port` of the guest.
#[must_use]
pub fn connect_line(port: u32) -> String {
    format!("CONNECT {port}\n")
}

/// The port of a [`connect_line`], with or without its line feed.
#[must_use]
pub fn parse_connect(line: &str) -> Option<u32> {
    parse(line, "CONNECT ")
}

/// What the VMM answers when the guest took the connection; `port` is the
/// host-side port it chose.
#[must_use]
pub fn ok_line(port: u32) -> String {
    format!("OK {port}\n")
}

/// The port of an [`ok_line`], with or without its line feed.
#[must_use]
pub fn parse_ok(line: &str) -> Option<u32> {
    parse(line, "OK ")
}

/// Where the host must listen for guests that dial `port` of the host.
#[must_use]
pub fn listener_path(uds_path: &Path, port: u32) -> PathBuf {
    let mut path = uds_path.as_os_str().to_owned();
    path.push(format!("_{port}"));
    PathBuf::from(path)
}

fn parse(line: &str, word: &str) -> Option<u32> {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_prefix(word)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_round_trip(port in any::<u32>()) {
            prop_assert_eq!(parse_connect(&connect_line(port)), Some(port));
            prop_assert_eq!(parse_ok(&ok_line(port)), Some(port));
            prop_assert_eq!(parse_connect(&ok_line(port)), None);
            prop_assert!(connect_line(port).len() <= MAX_LINE_BYTES);
        }
    }

    #[test]
    fn the_listener_stands_beside_the_socket() {
        assert_eq!(
            listener_path(Path::new("/run/v.sock"), 1025),
            Path::new("/run/v.sock_1025")
        );
    }
}
