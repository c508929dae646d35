//! The orchestrator: configuration, the HTTP API, the server around it.
//!
//! Handlers are thin: extract, one call of `fuse-control`, view. Nothing here decides
//! anything about environments or hosts.

pub mod config;
pub mod http;
pub mod openapi;
mod routes;
pub mod run;
pub mod server;
mod views;

pub use http::{AddressBlocks, App, Auth, HttpMetrics, router};

/// The release of this build, `dev` when it is not stamped.
pub const VERSION: &str = match option_env!("FUSE_VERSION") {
    Some(version) => version,
    None => "dev",
};
