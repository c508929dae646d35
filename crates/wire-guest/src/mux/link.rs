//! The raw link under a session: buffered, and aware of where frames begin.
//!
//! Reading through [`AsyncRead`] yields the bytes of one session. It ends (end
//! of file) where a frame would have to begin but [`BREAK`] stands instead: the
//! peer left the session and started over. Nothing behind that point is
//! consumed, so the next handshake finds it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Not a yamux version, so it never begins a frame.
pub(super) const BREAK: u8 = 0xff;

/// Payload of the longest frame that either side sends.
pub(super) const MAX_PAYLOAD: usize = 16 * 1024;

const HEADER_BYTES: usize = 12;

/// Breaks needed to be seen by a peer that may be in the middle of a frame.
pub(super) const PADDING_BYTES: usize = HEADER_BYTES + MAX_PAYLOAD + 1;

/// Bytes gathered before they are written: a serial port costs one exit to the
/// VMM per write, however short.
const BUFFER_BYTES: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct Link<T> {
    io: T,
    read: Vec<u8>,
    /// Part of `read` that is not yet consumed.
    unread: std::ops::Range<usize>,
    write: Vec<u8>,
    /// Bytes of `write` that are already written.
    written: usize,
    position: FramePosition,
    ended: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Link<T> {
    pub(super) fn new(io: T) -> Self {
        Self {
            io,
            read: vec![0; BUFFER_BYTES],
            unread: 0..0,
            write: Vec::with_capacity(BUFFER_BYTES),
            written: 0,
            position: FramePosition::default(),
            ended: false,
        }
    }

    /// Whether the underlying stream is at its end or broken.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Forgets the last session's frames: the next byte read begins one.
    pub(super) fn start_session(&mut self) {
        self.position = FramePosition::default();
    }

    /// Drops what the last session still wanted to write, in whole or in part.
    pub(super) fn discard_unwritten(&mut self) {
        self.write.clear();
        self.written = 0;
    }

    /// Adds to what is written while bytes are read.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.write.extend_from_slice(bytes);
    }

    /// One byte, whatever it belongs to. Writes what is queued meanwhile: both
    /// ends begin by writing, so neither may wait for the other to read.
    pub(super) async fn read_byte(&mut self) -> io::Result<u8> {
        poll_fn(|cx| {
            if let Poll::Ready(drained) = self.poll_drain(cx) {
                drained?;
            }
            ready!(self.poll_fill(cx))?;
            if self.unread.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            let byte = self.read[self.unread.start];
            self.unread.start += 1;
            Poll::Ready(Ok(byte))
        })
        .await
    }

    /// Reads more if nothing is left; leaves `unread` empty at end of file.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut buf = ReadBuf::new(&mut self.read);
        let result = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf));
        self.unread = 0..buf.filled().len();
        self.ended |= result.is_err() || self.unread.is_empty();
        Poll::Ready(result)
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.write.len() {
            let rest = &self.write[self.written..];
            let result = match ready!(Pin::new(&mut self.io).poll_write(cx, rest)) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                other => other,
            };
            self.ended |= result.is_err();
            self.written += result?;
        }
        self.discard_unwritten();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Link<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = &mut *self;
        ready!(link.poll_fill(cx))?;
        let available = &link.read[link.unread.clone()];
        let count = available.len().min(buf.remaining());
        let count = link.position.advance(&available[..count]);
        buf.put_slice(&available[..count]);
        link.unread.start += count;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Link<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.write.len() >= BUFFER_BYTES {
            ready!(self.poll_drain(cx))?;
        }
        self.write.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A session ends, the link stays.
        self.poll_flush(cx)
    }
}

/// Where in a frame the next byte stands.
#[derive(Debug, Default)]
struct FramePosition {
    header: [u8; HEADER_BYTES],
    header_len: usize,
    payload_left: usize,
    /// A header claimed more than anyone sends: the peer left in the middle of it.
    broken: bool,
}

impl FramePosition {
    /// Takes `bytes` up to a break; returns how many.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && !self.broken {
            let rest = &bytes[taken..];
            if self.payload_left > 0 {
                let count = rest.len().min(self.payload_left);
                self.payload_left -= count;
                taken += count;
                continue;
            }
            if self.header_len == 0 && rest[0] == BREAK {
                break;
            }
            let count = rest.len().min(HEADER_BYTES - self.header_len);
            self.header[self.header_len..self.header_len + count].copy_from_slice(&rest[..count]);
            self.header_len += count;
            taken += count;
            if self.header_len == HEADER_BYTES {
                self.header_len = 0;
                self.payload_left = payload_len(&self.header);
                self.broken = self.payload_left > MAX_PAYLOAD;
            }
        }
        taken
    }
}

/// Only data frames (type 0) have a payload; in others the field means something else.
fn payload_len(header: &[u8; HEADER_BYTES]) -> usize {
    let [_, kind, .., a, b, c, d] = *header;
    if kind == 0 {
        u32::from_be_bytes([a, b, c, d]) as usize
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, kind, 0, 0, 0, 0, 0, 1];
        frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend(payload);
        frame
    }

    proptest! {
        /// However the bytes are cut, exactly the frames before the break are taken.
        #[test]
        fn stops_at_a_break_between_frames(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            cuts in prop::collection::vec(1usize..20, 1..10),
        ) {
            let mut bytes: Vec<u8> = payloads.iter().flat_map(|p| frame(0, p)).collect();
            bytes.extend([0, 1, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0]);
            let end = bytes.len();
            bytes.extend([BREAK; 50]);
            let mut position = FramePosition::default();
            let (mut at, mut cut) = (0, cuts.iter().cycle());
            loop {
                let upto = bytes.len().min(at + cut.next().unwrap());
                let count = position.advance(&bytes[at..upto]);
                at += count;
                if count == 0 { break; }
            }
            prop_assert_eq!(at, end);
        }

        /// A peer in the middle of any frame we send sees a break within the padding.
        #[test]
        fn padding_outlasts_a_cut_frame(len in 0..=MAX_PAYLOAD, keep in 0..MAX_PAYLOAD + 12) {
            let whole = frame(0, &vec![7; len]);
            let cut = &whole[..keep.min(whole.len())];
            let mut position = FramePosition::default();
            prop_assert_eq!(position.advance(cut), cut.len());
            let padding = vec![BREAK; PADDING_BYTES];
            prop_assert!(position.advance(&padding) < PADDING_BYTES);
            prop_assert_eq!(position.advance(&padding), 0);
        }
    }
}
