//! `fuse-attach/1`: a command in a guest with its terminal or streams attached to a connection.
//!
//! The connection starts as an HTTP/1.1 upgrade whose query, or body, is a [`Request`]. After the 101 both
//! ends exchange [`Frame`]s until an [`Exit`] frame or the end of the connection. Only the two ends,
//! the client and the agent inside the guest, look at frames; everybody between copies bytes.

mod frame;
mod request;

pub use frame::{Codec, Exit, Frame, FrameError, HEADER_BYTES, MAX_PAYLOAD, Resize};
pub use request::{Request, RequestError, Sent};

/// Value of the `Upgrade` header, compared without regard to case.
pub const PROTOCOL: &str = "fuse-attach/1";

/// Most bytes of output that one frame carries.
pub const MAX_OUTPUT_FRAME: usize = 64 * 1024;

/// Body of a 400 where a terminal is required and was not asked for.
pub const NO_TTY: &str = "attach requires tty=1; use ?action=exec for non-interactive commands";
