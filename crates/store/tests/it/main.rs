//! The store's contract, run on SQLite in memory, on a SQLite file and on a
//! PostgreSQL that the tests start themselves.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

#[macro_use]
mod support;

mod api_keys;
mod concurrency;
mod crash;
mod cut_over;
mod environments;
mod events;
mod gpus;
mod hosts;
mod leases;
mod ledger;
mod migrations;
mod operations;
mod outage;
mod rekey;
mod schema;
mod secrets;
mod snapshots;
