//! Frames: `type: u8 | reserved: 3 bytes, 0 | length: u32 big-endian | payload`.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio_util::codec::{Decoder, Encoder};

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 8;
/// Longest payload. A longer one ends the session.
pub const MAX_PAYLOAD: usize = 1024 * 1024;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const RESIZE: u8 = 3;
const EXIT: u8 = 4;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// To the guest: input. Empty ends the input of a command without a terminal.
    Stdin(Bytes),
    /// To the client: output, with a terminal all of it.
    Stdout(Bytes),
    /// To the client: error output of a command without a terminal.
    Stderr(Bytes),
    /// To the guest: the client's terminal has another size.
    Resize(Resize),
    /// To the client: the last frame.
    Exit(Exit),
    /// A type that this side does not know, or one whose content does not parse; ignored.
    Other(u8),
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// Lines.
    pub rows: i64,
    /// Columns.
    pub cols: i64,
}

impl Resize {
    /// Rows and columns as a terminal takes them; `None` when either is not positive.
    #[must_use]
    pub fn size(self) -> Option<(u16, u16)> {
        let clamp = |n: i64| (n > 0).then(|| u16::try_from(n).unwrap_or(u16::MAX));
        Some((clamp(self.rows)?, clamp(self.cols)?))
    }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit status; 128 + signal when signalled, 124 on timeout, 127 not found, 126 not executable.
    pub exit_code: i32,
    /// The command ran into its limit and was killed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Number of the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// A stream that cannot go on.
#[derive(Debug, Error)]
pub enum FrameError {
    /// A payload over [`MAX_PAYLOAD`].
    #[error("a frame of {length} bytes; at most {MAX_PAYLOAD} are possible")]
    TooLong {
        /// The declared length.
        length: usize,
    },
    /// The connection failed.
    #[error("the connection of the session failed")]
    Io(#[from] std::io::Error),
}

/// Reads and writes frames; the length is checked before anything is allocated for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codec;

impl Decoder for Codec {
    type Item = Frame;
    type Error = FrameError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(header) = src.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let (kind, mut length) = (header[0], &header[4..]);
        let length = usize::try_from(length.get_u32()).unwrap_or(usize::MAX);
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLong { length });
        }
        if src.len() < HEADER_BYTES + length {
            src.reserve(HEADER_BYTES + length - src.len());
            return Ok(None);
        }
        src.advance(HEADER_BYTES);
        let payload = src.split_to(length).freeze();
        let json = || serde_json::from_slice(&payload).ok();
        Ok(Some(match kind {
            STDIN => Frame::Stdin(payload),
            STDOUT => Frame::Stdout(payload),
            STDERR => Frame::Stderr(payload),
            RESIZE => json().map_or(Frame::Other(kind), Frame::Resize),
            EXIT => serde_json::from_slice(&payload).map_or(Frame::Other(kind), Frame::Exit),
            kind => Frame::Other(kind),
        }))
    }

    /// A half frame at the end is an end like any other: the peer is gone.
    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        self.decode(src)
    }
}

impl Encoder<Frame> for Codec {
    type Error = FrameError;

    fn encode(&mut self, frame: Frame, dst: &mut BytesMut) -> Result<(), FrameError> {
        let (kind, payload) = match frame {
            Frame::Stdin(bytes) => (STDIN, bytes),
            Frame::Stdout(bytes) => (STDOUT, bytes),
            Frame::Stderr(bytes) => (STDERR, bytes),
            Frame::Resize(size) => (RESIZE, json(&size)?),
            Frame::Exit(exit) => (EXIT, json(&exit)?),
            Frame::Other(kind) => (kind, Bytes::new()),
        };
        let length = payload.len();
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLong { length });
        }
        dst.reserve(HEADER_BYTES + length);
        dst.put_u8(kind);
        dst.put_bytes(0, 3);
        dst.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        dst.extend_from_slice(&payload);
        Ok(())
    }
}

fn json(value: &impl Serialize) -> Result<Bytes, FrameError> {
    let text = serde_json::to_vec(value).map_err(std::io::Error::from)?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(frame: Frame) -> BytesMut {
        let mut bytes = BytesMut::new();
        Codec.encode(frame, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_layout_is_that_of_the_contract() {
        let stdin = encoded(Frame::Stdin(Bytes::from_static(b"hi")));
        assert_eq!(&stdin[..], b"\x00\x00\x00\x00\x00\x00\x00\x02hi");
        let exit = encoded(Frame::Exit(Exit {
            exit_code: 7,
            ..Exit::default()
        }));
        assert_eq!(
            &exit[..],
            b"\x04\x00\x00\x00\x00\x00\x00\x0f{\"exit_code\":7}"
        );
    }

    #[test]
    fn reserved_bytes_and_unknown_types_are_ignored() {
        let mut bytes = BytesMut::from(&b"\x01\xff\xff\xff\x00\x00\x00\x01x\x09\0\0\0\0\0\0\0"[..]);
        let first = Codec.decode(&mut bytes).unwrap();
        assert_eq!(first, Some(Frame::Stdout(Bytes::from_static(b"x"))));
        assert_eq!(Codec.decode(&mut bytes).unwrap(), Some(Frame::Other(9)));
        assert_eq!(Codec.decode(&mut bytes).unwrap(), None);
    }

    #[test]
    fn too_long_is_refused_before_it_arrives() {
        let mut bytes = BytesMut::from(&b"\0\0\0\0\x00\x10\x00\x01"[..]);
        let error = Codec.decode(&mut bytes).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { length: 1_048_577 }));
        let long = Frame::Stdin(vec![0; MAX_PAYLOAD + 1].into());
        assert!(Codec.encode(long, &mut BytesMut::new()).is_err());
        let longest = Frame::Stdin(vec![7; MAX_PAYLOAD].into());
        let decoded = Codec.decode(&mut encoded(longest.clone())).unwrap();
        assert_eq!(decoded, Some(longest));
    }

    #[test]
    fn a_malformed_resize_is_no_size() {
        let mut bytes = encoded(Frame::Stdout(Bytes::from_static(b"{\"rows\":")));
        bytes[0] = RESIZE;
        assert_eq!(Codec.decode(&mut bytes).unwrap(), Some(Frame::Other(3)));
        let size = |rows, cols| Resize { rows, cols }.size();
        assert_eq!(size(24, 80), Some((24, 80)));
        assert_eq!(size(70_000, 1), Some((u16::MAX, 1)));
        assert_eq!((size(0, 80), size(24, -1)), (None, None));
    }

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        let frame = prop_oneof![
            bytes().prop_map(Frame::Stdin),
            bytes().prop_map(Frame::Stdout),
            bytes().prop_map(Frame::Stderr),
            (any::<i64>(), any::<i64>())
                .prop_map(|(rows, cols)| Frame::Resize(Resize { rows, cols })),
            (any::<i32>(), any::<bool>(), any::<Option<i32>>()).prop_map(
                |(exit_code, timed_out, signal)| Frame::Exit(Exit {
                    exit_code,
                    timed_out,
                    signal
                })
            ),
        ];
        prop::collection::vec(frame, 0..8)
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(sent in frames(), cut in 1usize..40) {
            let mut wire = BytesMut::new();
            for frame in &sent {
                Codec.encode(frame.clone(), &mut wire).unwrap();
            }
            let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
            for part in wire.chunks(cut) {
                buffer.extend_from_slice(part);
                while let Some(frame) = Codec.decode(&mut buffer).unwrap() {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let mut bytes = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = Codec.decode(&mut bytes) {}
        }
    }
}
