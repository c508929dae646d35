//! Turning API objects into text: tables, detail blocks, times, sizes.
//!
//! Everything here is pure (the current time is handed in) and writes colour freely; the streams
//! remove it where it does not belong. Layouts are fixed by golden tests.

pub(crate) mod api;
pub(crate) mod api_key;
pub(crate) mod block;
pub(crate) mod compiled;
pub(crate) mod environment;
pub(crate) mod event;
pub(crate) mod host;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod service;
pub(crate) mod size;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod steps;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod task;
pub(crate) mod time;

/// The value, or the mark of an empty cell.
pub(crate) fn or_dash(value: &str) -> &str {
    if value.is_empty() { "-" } else { value }
}
