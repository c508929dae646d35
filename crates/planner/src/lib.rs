//! Pure decisions over plain data. Nothing here does I/O, knows time or keeps
//! state: the same input always gives the same answer, so every choice that the
//! control plane makes can be tested without a fleet.

mod gate;
mod placement;
mod reconcile;

pub use gate::Gate;
pub use placement::{Candidate, Placement, PlacementError, Policy, Rejections, place};
pub use reconcile::{Action, Listed, Listing, Memory, Plan, Tracked};
