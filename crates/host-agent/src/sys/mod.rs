//! The only module of this crate with `unsafe` code: a few system calls that no crate wraps safely.

#[cfg(test)]
mod nudge;
mod session;
mod tap;
mod watch;

#[cfg(test)]
pub(crate) use nudge::nudge_clock;
pub(crate) use session::in_own_session;
pub(crate) use tap::create_tap;
pub(crate) use watch::readable;
