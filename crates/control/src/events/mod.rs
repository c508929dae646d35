//! Event streams of environments.
//!
//! The events table is the truth. One task per process ([`Hub`]) reads what is new and
//! hands it to the subscribers of each environment; a subscriber that reads slowly
//! gets intermediate states merged, never loses the terminal one, and holds a bounded
//! queue.

mod fleet;
mod hub;
mod mailbox;
mod stream;

pub use fleet::FleetEvents;
pub use stream::EventStream;

pub(crate) use hub::Hub;
