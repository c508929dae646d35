//! Which devices a VM gets. Pure.
//!
//! Bound identifiers decide: whoever placed the VM has counted on exactly these devices. Without
//! them the agent picks. Groups are given out whole, because whatever shares an IOMMU group can
//! reach the others' memory; instances of partitioned cards are a pool of their own.

use std::collections::HashMap;

use thiserror::Error;

use super::Claim;
use super::inventory::{Inventory, Part, WholeGroup};
use super::pci::PciAddress;

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Want {
    /// GPUs, or instances of the profile.
    pub(crate) gpus: u32,
    /// Part of the kind's or the model's name, in any case; empty is any.
    pub(crate) kind: String,
    /// Profile of instances; empty asks for whole GPUs.
    pub(crate) profile: String,
    /// Exactly these GPUs.
    pub(crate) gpu_uuids: Vec<String>,
    /// Exactly these instances.
    pub(crate) mig_uuids: Vec<String>,
}

/// Who has what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used {
    slots: HashMap<PciAddress, String>,
    mdevs: HashMap<String, String>,
}

/// Why a VM does not get what it asks for.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PickError {
    /// The request contradicts itself.
    #[error("{0}")]
    Contradiction(String),
    /// No such device.
    #[error("{what} {uuid} is not in this host's inventory {file}")]
    Unknown {
        /// GPU or MIG instance.
        what: &'static str,
        /// Its identifier.
        uuid: String,
        /// The inventory.
        file: &'static str,
    },
    /// Somebody has it.
    #[error("{what} {uuid} is in use by vm {vm}")]
    Taken {
        /// GPU or MIG instance.
        what: &'static str,
        /// Its identifier.
        uuid: String,
        /// Who.
        vm: String,
    },
    /// It is named twice.
    #[error("{what} {uuid} is asked for twice")]
    Twice {
        /// GPU or MIG instance.
        what: &'static str,
        /// Its identifier.
        uuid: String,
    },
    /// It is another thing than what is asked for.
    #[error("MIG instance {uuid} is {found}, not {wanted}")]
    Other {
        /// Its identifier.
        uuid: String,
        /// What it is.
        found: String,
        /// What it should be.
        wanted: String,
    },
    /// It comes with others.
    #[error(
        "GPU {uuid} shares its IOMMU group with others: the {together} GPUs of the request's groups \
         go together, and {wanted} were asked for"
    )]
    Whole {
        /// Its identifier.
        uuid: String,
        /// GPUs that would be given away.
        together: u32,
        /// GPUs that were asked for.
        wanted: u32,
    },
    /// Not that many.
    #[error("not enough free {what}: {wanted} asked for, {free} free{}", in_the_way(.faults))]
    TooFew {
        /// What of.
        what: String,
        /// How many were asked for.
        wanted: u32,
        /// How many are free.
        free: u32,
        /// What is in the way of further ones.
        faults: Vec<String>,
    },
    /// Enough, but in groups of other sizes.
    #[error(
        "no free IOMMU groups have exactly {wanted} GPUs together; groups are given out whole and \
         the free ones have {sizes:?}"
    )]
    Sizes {
        /// How many were asked for.
        wanted: u32,
        /// GPUs of the free groups.
        sizes: Vec<u32>,
    },
    /// The host is not ready to give it away.
    #[error("{what} {uuid} cannot be attached: {fault}")]
    Fault {
        /// GPU or MIG instance.
        what: &'static str,
        /// Its identifier.
        uuid: String,
        /// Why.
        fault: String,
    },
}

fn in_the_way(faults: &[String]) -> String {
    match faults {
        [] => String::new(),
        faults => format!("; not usable: {}", faults.join(", ")),
    }
}

const GPU: &str = "GPU";
const INSTANCE: &str = "MIG instance";

impl PickError {
    /// Whether the host is at fault, rather than the request or those who were faster.
    #[must_use]
    pub fn is_hosts(&self) -> bool {
        match self {
            Self::Fault { .. } => true,
            Self::TooFew { faults, .. } => !faults.is_empty(),
            _ => false,
        }
    }
}

impl Want {
    /// Whether nothing is asked for.
    pub(crate) fn is_nothing(&self) -> bool {
        self.gpus == 0 && self.gpu_uuids.is_empty() && self.mig_uuids.is_empty()
    }
}

impl Used {
    /// Notes what `vm` has.
    pub(crate) fn add(&mut self, vm: &str, claim: &Claim) {
        let slots = claim.slots.iter().map(|slot| (*slot, vm.to_owned()));
        self.slots.extend(slots);
        let mdevs = claim.mdevs.iter().map(|uuid| (uuid.clone(), vm.to_owned()));
        self.mdevs.extend(mdevs);
    }

    fn of_group(&self, group: &WholeGroup) -> Option<&String> {
        group
            .listed
            .slots
            .iter()
            .find_map(|slot| self.slots.get(slot))
    }
}

/// Picks the devices for a request.
///
/// # Errors
/// The host does not have them, or not free, or the request contradicts itself.
pub(crate) fn pick(inventory: &Inventory, used: &Used, want: &Want) -> Result<Claim, PickError> {
    if want.is_nothing() {
        return Ok(Claim::default());
    }
    let contradiction = |text: &str| Err(PickError::Contradiction(text.to_owned()));
    let parts = !want.profile.is_empty() || !want.mig_uuids.is_empty();
    if parts && !want.gpu_uuids.is_empty() {
        return contradiction(
            "gpu_uuids are whole GPUs and cannot be asked for with a gpu_profile",
        );
    }
    let named = if parts {
        &want.mig_uuids
    } else {
        &want.gpu_uuids
    };
    let what = if parts { INSTANCE } else { GPU };
    for (at, uuid) in named.iter().enumerate() {
        if named[..at]
            .iter()
            .any(|other| other.eq_ignore_ascii_case(uuid))
        {
            let uuid = uuid.clone();
            return Err(PickError::Twice { what, uuid });
        }
    }
    let picked = match (parts, named.is_empty()) {
        (false, false) => bound_groups(inventory, used, want)?,
        (false, true) => free_groups(inventory, used, want)?,
        (true, false) => bound_parts(inventory, used, want)?,
        (true, true) => free_parts(inventory, used, want)?,
    };
    Ok(picked)
}

fn bound_groups(inventory: &Inventory, used: &Used, want: &Want) -> Result<Claim, PickError> {
    let mut groups: Vec<&WholeGroup> = Vec::new();
    for uuid in &want.gpu_uuids {
        let (what, uuid) = (GPU, uuid.clone());
        let has = |group: &&WholeGroup| group.uuids.iter().any(|u| u.eq_ignore_ascii_case(&uuid));
        let Some(group) = inventory.groups.iter().find(has) else {
            let file = "vfio-inventory.txt";
            return Err(PickError::Unknown { what, uuid, file });
        };
        if let Some(vm) = used.of_group(group).cloned() {
            return Err(PickError::Taken { what, uuid, vm });
        }
        if let Some(fault) = group.fault.clone() {
            return Err(PickError::Fault { what, uuid, fault });
        }
        if !groups
            .iter()
            .any(|other| other.listed.slots == group.listed.slots)
        {
            groups.push(group);
        }
    }
    let together = groups.iter().map(|group| group.listed.count).sum();
    let wanted = match want.gpus {
        0 => u32::try_from(want.gpu_uuids.len()).unwrap_or(u32::MAX),
        gpus => gpus,
    };
    if together != wanted {
        let several = groups.iter().position(|group| group.listed.count > 1);
        let uuid = want.gpu_uuids[several.unwrap_or(0)].clone();
        return Err(PickError::Whole {
            uuid,
            together,
            wanted,
        });
    }
    Ok(claim_of(&groups, want))
}

fn free_groups(inventory: &Inventory, used: &Used, want: &Want) -> Result<Claim, PickError> {
    let of_kind = |group: &&WholeGroup| {
        let models = group.models.iter().map(String::as_str);
        is_kind(&want.kind, models.chain([group.listed.kind.as_str()]))
    };
    let candidates = inventory.groups.iter().filter(of_kind);
    let candidates = candidates.filter(|group| used.of_group(group).is_none());
    let (usable, faulty): (Vec<_>, Vec<_>) = candidates.partition(|group| group.fault.is_none());
    let sizes: Vec<u32> = usable.iter().map(|group| group.listed.count).collect();
    let free = sizes.iter().copied().fold(0, u32::saturating_add);
    if free < want.gpus {
        return Err(PickError::TooFew {
            what: named("GPUs", &want.kind),
            wanted: want.gpus,
            free,
            faults: faulty
                .iter()
                .filter_map(|group| group.fault.clone())
                .collect(),
        });
    }
    let chosen = exact(&sizes, want.gpus).ok_or(PickError::Sizes {
        wanted: want.gpus,
        sizes,
    })?;
    let groups: Vec<_> = chosen.into_iter().map(|at| usable[at]).collect();
    Ok(claim_of(&groups, want))
}

/// Places of the fewest sizes that make up `wanted`: large groups go before several small ones, which
/// fit more requests. Earlier places win.
fn exact(sizes: &[u32], wanted: u32) -> Option<Vec<usize>> {
    let wanted = usize::try_from(wanted).ok()?;
    // By sum: the fewest places that make it up.
    let mut best: Vec<Option<Vec<usize>>> = vec![None; wanted + 1];
    best[0] = Some(Vec::new());
    for (at, size) in sizes.iter().enumerate() {
        let size = usize::try_from(*size).ok()?;
        for sum in (size..=wanted).rev() {
            let Some(before) = &best[sum - size] else {
                continue;
            };
            let fewer = best[sum]
                .as_ref()
                .is_none_or(|now| before.len() + 1 < now.len());
            if fewer {
                let mut places = before.clone();
                places.push(at);
                best[sum] = Some(places);
            }
        }
    }
    best.pop().flatten()
}

fn bound_parts(inventory: &Inventory, used: &Used, want: &Want) -> Result<Claim, PickError> {
    let count = u32::try_from(want.mig_uuids.len()).unwrap_or(u32::MAX);
    if want.gpus != 0 && want.gpus != count {
        let text = format!(
            "{} instances are asked for and {count} are named in mig_instance_uuids",
            want.gpus
        );
        return Err(PickError::Contradiction(text));
    }
    let mut mdevs = Vec::new();
    for uuid in &want.mig_uuids {
        let (what, uuid) = (INSTANCE, uuid.to_lowercase());
        let Some(part) = inventory.parts.iter().find(|part| part.listed.uuid == uuid) else {
            let file = "mig-inventory.txt";
            return Err(PickError::Unknown { what, uuid, file });
        };
        let other = |found: &str, wanted: &str| PickError::Other {
            uuid: uuid.clone(),
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        };
        if !want.profile.is_empty() && part.listed.profile != want.profile {
            return Err(other(&part.listed.profile, &want.profile));
        }
        if !part.is_kind(&want.kind) {
            return Err(other(&format!("of kind {}", part.listed.kind), &want.kind));
        }
        if let Some(vm) = used.mdevs.get(&uuid).cloned() {
            return Err(PickError::Taken { what, uuid, vm });
        }
        if let Some(fault) = part.fault.clone() {
            return Err(PickError::Fault { what, uuid, fault });
        }
        mdevs.push(uuid);
    }
    Ok(Claim {
        mdevs,
        ..claim_of(&[], want)
    })
}

fn free_parts(inventory: &Inventory, used: &Used, want: &Want) -> Result<Claim, PickError> {
    let fits = |part: &&Part| part.listed.profile == want.profile && part.is_kind(&want.kind);
    let candidates = inventory.parts.iter().filter(fits);
    let candidates = candidates.filter(|part| !used.mdevs.contains_key(&part.listed.uuid));
    let (usable, faulty): (Vec<_>, Vec<_>) = candidates.partition(|part| part.fault.is_none());
    let wanted = usize::try_from(want.gpus).unwrap_or(usize::MAX);
    if usable.len() < wanted {
        let told = |part: &&Part| {
            let fault = part.fault.as_ref()?;
            Some(format!("{}: {fault}", part.listed.uuid))
        };
        return Err(PickError::TooFew {
            what: named(&format!("{} instances", want.profile), &want.kind),
            wanted: want.gpus,
            free: u32::try_from(usable.len()).unwrap_or(u32::MAX),
            faults: faulty.iter().filter_map(told).collect(),
        });
    }
    let mdevs = usable[..wanted].iter().map(|part| part.listed.uuid.clone());
    Ok(Claim {
        mdevs: mdevs.collect(),
        ..claim_of(&[], want)
    })
}

impl Part {
    fn is_kind(&self, wanted: &str) -> bool {
        is_kind(
            wanted,
            [self.listed.kind.as_str(), self.model.as_str()].into_iter(),
        )
    }
}

/// Whether one of the names has the wanted one in it, in any case, as the control plane matches.
fn is_kind<'a>(wanted: &str, mut names: impl Iterator<Item = &'a str>) -> bool {
    let wanted = wanted.to_lowercase();
    wanted.is_empty() || names.any(|name| name.to_lowercase().contains(&wanted))
}

fn named(what: &str, kind: &str) -> String {
    if kind.is_empty() {
        what.to_owned()
    } else {
        format!("{what} of kind {kind:?}")
    }
}

fn claim_of(groups: &[&WholeGroup], want: &Want) -> Claim {
    let listed = groups.iter().map(|group| &group.listed);
    let instances = u32::try_from(want.mig_uuids.len()).unwrap_or(u32::MAX);
    let gpus = listed.clone().map(|group| group.count).sum::<u32>();
    Claim {
        gpus: if groups.is_empty() {
            want.gpus.max(instances)
        } else {
            gpus
        },
        kind: want.kind.clone(),
        profile: want.profile.clone(),
        slots: listed.flat_map(|group| group.slots.clone()).collect(),
        mdevs: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
