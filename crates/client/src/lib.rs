//! Rust SDK of the orchestrator API.
//!
//! One [`Client`] per orchestrator; typed calls over the bodies of `fuse-wire-api`; failures that
//! carry what the server said ([`Error`]); event streams that survive a dropped connection
//! ([`EventStream`]).
//!
//! Invariants: redirects are refused (a bearer token must not follow one); every call is bounded in
//! time; a call is repeated only when the connection was refused and the call is idempotent; the
//! token appears in no `Debug` output and no error.

mod api_key;
mod base_url;
mod environment;
mod error;
mod events;
mod host;
mod resolve;
mod service;
mod task;
mod token;
mod transport;

pub use base_url::{BaseUrl, BaseUrlError};
pub use environment::Created;
pub use error::{ApiError, Error, Reason};
pub use events::EventStream;
pub use fuse_wire_api as api;
pub use service::Identity;
pub use token::Token;
pub use transport::{Client, Options};
