//! The only module of this crate with `unsafe` code: a few system calls that no crate wraps safely.

mod session;
mod tap;
mod watch;

pub(crate) use session::in_own_session;
pub(crate) use tap::create_tap;
pub(crate) use watch::readable;
