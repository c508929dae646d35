//! The orchestrator over its real HTTP surface: on the stub, and on a fake host agent.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails fails its test"
)]

mod support;

mod api;
mod api_commands;
mod api_page;
mod artifacts;
mod attach;
mod audit;
mod background;
mod bodies;
mod computer;
mod connection;
mod contract;
mod create;
mod events;
mod exec;
mod faults;
mod fleet_events;
mod health;
mod hosts;
mod idempotency;
mod keys;
mod layers;
mod lifecycle;
mod liveness;
mod logs;
mod matrix;
mod metrics;
mod migrate;
mod openapi;
mod order;
mod outages;
mod owners;
mod placement;
mod postgres;
mod process;
mod program;
mod reconcile;
mod recovery;
mod rekey;
mod replicas;
mod secrets;
mod services;
mod set_clock;
mod settings;
mod shutdown;
mod snapshots;
mod soak;
mod startup;
mod tls;
