//! Rust SDK of the orchestrator API.
//!
//! One [`Client`] per orchestrator; typed calls over the bodies of `fuse-wire-api`; failures that
//! carry what the server said ([`Error`]); event streams that survive a dropped connection
//! ([`EventStream`]).
//!
//! What is repeated, and what is not:
//! - A refused connection is tried again, up to three times within a second: nothing was sent, and
//!   that is how a server looks that restarts. This holds for every call.
//! - Nothing else is repeated. An answer that got lost may have been a success; a create that is to
//!   be repeated safely carries an `Idempotency-Key`.
//! - Event streams connect again by themselves, behind the last event that was seen.
//!
//! Invariants: redirects are refused (a bearer token must not follow one); every call is bounded in
//! time; the token appears in no `Debug` output and no error.
//!
//! `examples/` has whole programs: create and watch, exec, list page by page.

mod api_key;
mod attach;
mod base_url;
mod dead_letter;
mod environment;
mod error;
mod events;
mod exec;
mod fleet;
mod host;
mod logs;
mod resolve;
mod service;
mod snapshot;
mod task;
mod token;
mod transport;

pub use attach::Session;
pub use base_url::{BaseUrl, BaseUrlError};
pub use environment::Created;
pub use error::{ApiError, Error, Reason};
pub use events::EventStream;
pub use exec::ExecStream;
pub use fleet::FleetEvents;
pub use fuse_wire_api as api;
pub use fuse_wire_attach as attached;
pub use logs::LogStream;
pub use service::Identity;
pub use token::Token;
pub use transport::{Client, Options};
