//! Reconcile: what to do about the difference between the table of environments and
//! what the hosts list (lifecycle 15).
//!
//! The caller reads the table *before* it asks the hosts. So an environment that is
//! in the table as running and not in a later listing is really gone, while a listed
//! VM that is not in the table may be newer than the table: that is why an orphan must
//! be seen in two cycles in a row, and why the caller looks it up once more before it
//! acts.

use std::collections::{BTreeMap, BTreeSet};

use fuse_model::{EnvironmentId, FleetId, State};

pub use self::strangers::{AtBoot, Strangers};

mod strangers;

/// Most cycles between two attempts to destroy a VM.
const MAX_BACKOFF_CYCLES: u32 = 20;
/// Cycles in a row in which a VM without a record must be seen before it is destroyed.
const ORPHAN_SIGHTINGS: u32 = 2;

/// A record of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracked {
    /// Which one.
    pub id: EnvironmentId,
    /// Where its VM is: a key of the listings.
    pub place: String,
    /// Where it is in its life.
    pub state: State,
    /// Whether somebody is working on it right now.
    pub busy: bool,
    /// The boot of its guest that was set up; empty when unknown.
    pub boot_id: String,
    /// Release of the agent in its guest, as it was noted; empty when unknown.
    pub guest_version: String,
}

/// A VM of a host's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: String,
    /// Tag of the fleet that owns it.
    pub owner: Option<String>,
    /// The boot that its guest is in; `None` while it boots, or when the host does not say.
    pub boot_id: Option<String>,
    /// Release of the agent in its guest; `None` when the host does not say.
    pub guest_version: Option<String>,
    /// Its VMM has ended and its host does not boot it again.
    pub stopped: bool,
}

/// What a place said about its VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// It has exactly these.
    Vms(Vec<Listed>),
    /// It keeps no inventory: absence proves nothing, and destroying always works.
    NoInventory,
    /// It did not answer: nothing is known about its VMs.
    Unknown,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The VM of this running environment is gone.
    MarkLost(EnvironmentId),
    /// The VM of this running environment has ended by itself: destroy what is left.
    EndStopped(EnvironmentId),
    /// The VM of this environment was destroyed: remove the record.
    Reap(EnvironmentId),
    /// Try again to destroy the VM of this environment.
    RetryDestroy(EnvironmentId),
    /// The guest of this running environment has booted again, and with that lost what
    /// was written into its memory: set it up anew.
    SetUpAgain(EnvironmentId),
    /// Write down which release the agent in the guest of this environment is of: its host says
    /// another one than the record.
    NoteGuest {
        /// Which environment.
        id: EnvironmentId,
        /// The release.
        version: String,
    },
    /// A VM of ours without a record, or with a record whose VM is another one elsewhere:
    /// destroy it, unless it has the record by now.
    DestroyOrphan {
        /// Where.
        place: String,
        /// Its name.
        vm: String,
    },
}

/// What is remembered from cycle to cycle. Losing it costs a cycle or two, no more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Orphans by place and name.
    orphans: BTreeMap<(String, String), Orphan>,
    /// Running environments whose VM was listed as stopped in the last cycle.
    stopped: BTreeSet<EnvironmentId>,
    /// Environments whose destroy is being retried.
    retries: BTreeMap<EnvironmentId, Backoff>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Orphan {
    sightings: u32,
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Backoff {
    /// Cycles between the last attempt and the next.
    step: u32,
    /// Cycles left until the next.
    wait: u32,
}

/// The outcome of one comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do, in a fixed order.
    pub actions: Vec<Action>,
    /// VMs with another fleet's tag, or none, by place and name: shown and never touched.
    pub foreign: Vec<(String, String)>,
    /// VMs that were there before a volatile store began, and are left alone.
    pub quarantined: usize,
    /// VMs of ours without a record, including those that were given up.
    pub orphans: usize,
    /// Something is about to change: a host does not answer, or a guest is booting.
    /// Worth looking again soon.
    pub unsettled: bool,
}

impl Memory {
    /// Compares the table with the listings. `max_orphan_failures` failed attempts on
    /// one orphan are enough; it is left alone until it disappears. `strangers` are kept
    /// for a store that does not outlive its process.
    pub fn plan(
        &mut self,
        fleet: &FleetId,
        tracked: &[Tracked],
        listings: &BTreeMap<String, Listing>,
        max_orphan_failures: u32,
        strangers: Option<&mut Strangers>,
    ) -> Plan {
        let mut plan = Plan::default();
        self.plan_tracked(tracked, listings, &mut plan);
        let unknown = Unknown {
            fleet,
            max_failures: max_orphan_failures,
            strangers,
        };
        self.plan_orphans(unknown, tracked, listings, &mut plan);
        plan.actions.sort();
        plan
    }

    fn plan_tracked(
        &mut self,
        tracked: &[Tracked],
        listings: &BTreeMap<String, Listing>,
        plan: &mut Plan,
    ) {
        let index = index(listings);
        let mut retries = BTreeMap::new();
        let mut stopped = BTreeSet::new();
        for environment in tracked.iter().filter(|environment| !environment.busy) {
            let found = match listings.get(&environment.place) {
                Some(Listing::Vms(_)) => index
                    .get(environment.place.as_str())
                    .and_then(|vms| vms.get(environment.id.as_str()))
                    .map_or(Found::Absent, |vm| match vm.stopped {
                        true => Found::Stopped,
                        false => Found::Listed(vm),
                    }),
                Some(Listing::NoInventory) => Found::Assumed,
                Some(Listing::Unknown) | None => {
                    plan.unsettled = true;
                    // The count goes on when the host answers again.
                    if let Some(backoff) = self.retries.get(&environment.id) {
                        retries.insert(environment.id.clone(), *backoff);
                    }
                    continue;
                }
            };
            match (environment.state == State::Destroying, found) {
                (true, Found::Absent) => plan.actions.push(Action::Reap(environment.id.clone())),
                (true, Found::Listed(_) | Found::Stopped | Found::Assumed) => {
                    let (due, backoff) = Backoff::tick(self.retries.get(&environment.id));
                    retries.insert(environment.id.clone(), backoff);
                    if due {
                        plan.actions
                            .push(Action::RetryDestroy(environment.id.clone()));
                    }
                }
                (false, Found::Stopped) => {
                    if environment.state.is_in(&State::MAY_BE_ABSENT) {
                        continue;
                    }
                    // Once may be a host that has not come round to booting it again.
                    if self.stopped.contains(&environment.id) {
                        plan.actions
                            .push(Action::EndStopped(environment.id.clone()));
                    }
                    plan.unsettled = true;
                    stopped.insert(environment.id.clone());
                }
                (false, found) => plan_living(environment, &found, plan),
            }
        }
        self.stopped = stopped;
        self.retries = retries;
    }

    fn plan_orphans(
        &mut self,
        mut rules: Unknown<'_>,
        tracked: &[Tracked],
        listings: &BTreeMap<String, Listing>,
        plan: &mut Plan,
    ) {
        let owners: BTreeMap<&str, &Tracked> =
            tracked.iter().map(|one| (one.id.as_str(), one)).collect();
        let index = index(listings);
        let mut orphans = BTreeMap::new();
        for (place, listing) in listings {
            let Listing::Vms(vms) = listing else {
                self.keep_orphans_of(place, listing, &mut orphans);
                continue;
            };
            let is_known = |vm: &Listed| {
                owners
                    .get(vm.id.as_str())
                    .is_some_and(|owner| !is_second(owner, place, vm, &index))
            };
            let unknown = || vms.iter().filter(|vm| !is_known(vm));
            if let Some(strangers) = &mut rules.strangers {
                strangers.note(place, unknown().map(|vm| vm.id.as_str()));
            }
            for vm in unknown() {
                match rules.kind_of(place, vm) {
                    Kind::Foreign => {
                        plan.foreign.push((place.clone(), vm.id.clone()));
                        continue;
                    }
                    Kind::Quarantined => {
                        plan.quarantined += 1;
                        continue;
                    }
                    Kind::Orphan => plan.orphans += 1,
                }
                let key = (place.clone(), vm.id.clone());
                let mut orphan = self.orphans.get(&key).copied().unwrap_or_default();
                orphan.sightings = orphan.sightings.saturating_add(1);
                if orphan.sightings >= ORPHAN_SIGHTINGS && orphan.failures < rules.max_failures {
                    plan.actions.push(Action::DestroyOrphan {
                        place: place.clone(),
                        vm: vm.id.clone(),
                    });
                }
                orphans.insert(key, orphan);
            }
        }
        self.orphans = orphans;
    }

    /// A host that does not answer neither confirms nor clears what was seen on it.
    fn keep_orphans_of(
        &self,
        place: &str,
        listing: &Listing,
        kept: &mut BTreeMap<(String, String), Orphan>,
    ) {
        if *listing == Listing::Unknown {
            kept.extend(
                self.orphans
                    .iter()
                    .filter(|((at, _), _)| at == place)
                    .map(|(key, orphan)| (key.clone(), *orphan)),
            );
        }
    }

    /// Notes that destroying an orphan failed. Answers how often it has by now.
    pub fn orphan_failed(&mut self, place: &str, vm: &str) -> u32 {
        let key = (place.to_owned(), vm.to_owned());
        let orphan = self.orphans.entry(key).or_default();
        orphan.failures = orphan.failures.saturating_add(1);
        orphan.failures
    }
}

/// What each place that has an inventory lists, by name.
type Index<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Listed>>;

fn index(listings: &BTreeMap<String, Listing>) -> Index<'_> {
    listings
        .iter()
        .filter_map(|(place, listing)| match listing {
            Listing::Vms(vms) => Some((
                place.as_str(),
                vms.iter().map(|vm| (vm.id.as_str(), vm)).collect(),
            )),
            Listing::NoInventory | Listing::Unknown => None,
        })
        .collect()
}

/// Whether a VM with the name of a record is a second one, left at another place by a create that
/// was undone there. One agent may be registered under two addresses and list its VMs twice: only
/// guests that are in different boots, or of which one has ended, are two.
fn is_second(owner: &Tracked, place: &str, vm: &Listed, index: &Index<'_>) -> bool {
    if owner.busy || owner.place == place {
        return false;
    }
    let own = index
        .get(owner.place.as_str())
        .and_then(|vms| vms.get(owner.id.as_str()));
    let Some(own) = own else { return false };
    // One that has ended is in no boot.
    own.stopped != vm.stopped
        || matches!((&own.boot_id, &vm.boot_id), (Some(own), Some(this)) if own != this)
}

/// The rules for VMs without a record.
struct Unknown<'a> {
    fleet: &'a FleetId,
    max_failures: u32,
    strangers: Option<&'a mut Strangers>,
}

/// What a VM without a record is.
enum Kind {
    /// Another fleet's, or nobody knows whose.
    Foreign,
    /// From before this store.
    Quarantined,
    /// Ours.
    Orphan,
}

impl Unknown<'_> {
    fn kind_of(&self, place: &str, vm: &Listed) -> Kind {
        if vm.owner.as_deref() == Some(self.fleet.as_str()) {
            return Kind::Orphan;
        }
        let strangers = self.strangers.as_deref();
        match strangers.filter(|strangers| strangers.has(place, &vm.id)) {
            None => Kind::Foreign,
            Some(strangers) => match strangers.rule() {
                AtBoot::Quarantine => Kind::Quarantined,
                AtBoot::Destroy => Kind::Orphan,
            },
        }
    }
}

/// What the listing of its place says about the VM of a record.
enum Found<'a> {
    /// It is not there.
    Absent,
    /// It is there, as its host describes it.
    Listed(&'a Listed),
    /// It is there and has ended.
    Stopped,
    /// There is no listing that could say otherwise.
    Assumed,
}

fn plan_living(environment: &Tracked, found: &Found<'_>, plan: &mut Plan) {
    let id = || environment.id.clone();
    match found {
        Found::Absent if environment.state.is_in(&State::MAY_BE_ABSENT) => {}
        Found::Absent => plan.actions.push(Action::MarkLost(id())),
        // Where the boot that was set up is not known, nothing can be told from another.
        Found::Listed(vm) if environment.state == State::Running => {
            match (environment.boot_id.as_str(), vm.boot_id.as_deref()) {
                ("", _) => plan_note(environment, vm, plan),
                (_, None) => plan.unsettled = true,
                // Notes the release, too.
                (known, Some(boot)) if known != boot => {
                    plan.unsettled = true;
                    plan.actions.push(Action::SetUpAgain(id()));
                }
                (_, Some(_)) => plan_note(environment, vm, plan),
            }
        }
        Found::Listed(_) | Found::Stopped | Found::Assumed => {}
    }
}

fn plan_note(environment: &Tracked, vm: &Listed, plan: &mut Plan) {
    let Some(version) = &vm.guest_version else {
        return;
    };
    if *version != environment.guest_version {
        plan.actions.push(Action::NoteGuest {
            id: environment.id.clone(),
            version: version.clone(),
        });
    }
}

impl Backoff {
    /// One cycle passes: attempts come 1, 2, 4, 8, … cycles apart, at most 20.
    fn tick(last: Option<&Self>) -> (bool, Self) {
        let Some(last) = last else {
            return (true, Self { step: 1, wait: 1 });
        };
        if last.wait > 1 {
            return (
                false,
                Self {
                    step: last.step,
                    wait: last.wait - 1,
                },
            );
        }
        let step = last.step.saturating_mul(2).min(MAX_BACKOFF_CYCLES);
        (true, Self { step, wait: step })
    }
}

#[cfg(test)]
mod tests;
