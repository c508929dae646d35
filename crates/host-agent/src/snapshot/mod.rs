//! The snapshots of this host.
//!
//! ```text
//! <snapshots dir>/<id>/        meta.json, overlay.img; of a live one also vmstate, mem
//! <snapshots dir>/.new-<id>/   one that is being taken
//! <snapshots dir>/.old-<id>/   one that is being removed
//! <snapshots dir>/.pulls/      disks that arrive from other hosts, where the directory is a mount
//! ```
//!
//! A snapshot appears and disappears by a rename, so there is never half of one; what an agent that
//! was killed left under the other names goes at the next start. Snapshots outlive their VMs.
//! Functions here block, unless they only look at the table.

mod record;
mod store;

pub use record::{Files, Stored};
pub use store::{ARRIVING, Held, Snapshots, Staged, StoreError};
