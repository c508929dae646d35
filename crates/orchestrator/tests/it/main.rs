//! The orchestrator over its real HTTP surface: on the stub, and on a fake host agent.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails fails its test"
)]

mod support;

mod api;
mod audit;
mod connection;
mod create;
mod events;
mod fleet_events;
mod hosts;
mod idempotency;
mod keys;
mod metrics;
mod postgres;
mod process;
mod reconcile;
mod recovery;
mod rekey;
mod replicas;
mod secrets;
