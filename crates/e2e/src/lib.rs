//! End-to-end suites live in `tests/it`: real programs, real guests, nothing simulated.
//!
//! `cargo test -p fuse-e2e` runs them (build the programs and the guest image first; `make test` does), with the
//! usual filters: `cargo test -p fuse-e2e network`.
