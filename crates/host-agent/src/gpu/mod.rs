//! GPUs of the host: what there is, who gets which, and what happens when they come back.
//!
//! ```text
//! vfio-inventory.txt ─┐
//! mig-inventory.txt  ─┼─> inventory ─> pick (under the registry's lock) ─> Claim in the VM's meta
//! sysfs, nvidia-smi  ─┘                                                     └─> VMM: vfio-pci
//! ```
//!
//! A claim is written down with the VM, before anything is attached, and is given back with the VM's
//! directory, after the VMM has ended. So who has what follows from the stored VMs alone, whatever
//! happened to the agent in between.

mod check;
mod inventory;
mod mig;
pub mod pci;
pub(crate) mod pick;
mod recarve;
mod smi;
mod sysfs;
mod text;
mod vfio;

use serde::{Deserialize, Serialize};

pub(crate) use check::check;
pub use inventory::Inventory;
use pci::PciAddress;
pub use pick::PickError;
pub(crate) use pick::{Used, Want, pick};
pub(crate) use recarve::Recarve;
pub use text::{InventoryError, Problem};

/// The devices of a VM. Field names in the stored form are compatibility facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// GPUs, or instances of the profile.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus: u32,
    /// The kind that was asked for.
    #[serde(default, rename = "gpu_kind", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The profile that was asked for.
    #[serde(
        default,
        rename = "gpu_profile",
        skip_serializing_if = "String::is_empty"
    )]
    pub profile: String,
    /// PCI functions, companions of the GPUs included.
    #[serde(default, rename = "gpu_slots", skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<PciAddress>,
    /// Mediated devices, by UUID.
    #[serde(default, rename = "gpu_mdevs", skip_serializing_if = "Vec::is_empty")]
    pub mdevs: Vec<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
fn is_zero(n: &u32) -> bool {
    *n == 0
}
