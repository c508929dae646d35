//! Event streams of environments.
//!
//! The events table is the truth. One task per process ([`Hub`]) reads what is new and
//! adds it to the log of its environment, which all of its subscribers read. The log is
//! bounded: a subscriber that reads slowly misses intermediate states, never the
//! terminal one.

mod fleet;
mod hub;
mod stream;
mod topic;

pub use fleet::FleetEvents;
pub use stream::EventStream;
pub use topic::SharedEvent;

pub(crate) use hub::Hub;
