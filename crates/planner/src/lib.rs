//! Pure decisions over plain data. Nothing here does I/O, knows time or keeps
//! state: the same input always gives the same answer, so every choice that the
//! control plane makes can be tested without a fleet.

mod ages;
mod cache;
mod evict;
mod explain;
mod gate;
mod limits;
mod placement;
mod reconcile;

pub use ages::{Age, Ages};
pub use cache::{CacheLimits, Cached, Unused, grace, unused};
pub use evict::{Eviction, evictions};
pub use explain::{Explained, Verdict, explain};
pub use gate::Gate;
pub use limits::{Limits, Overrun, Strike, Strikes};
pub use placement::{Candidate, Placement, PlacementError, Policy, Rejections, place};
pub use reconcile::{Action, AtBoot, Listed, Listing, Memory, Plan, Strangers, Tracked};
