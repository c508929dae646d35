//! VMs that were on the hosts before a store that does not outlive its process began
//! (lifecycle 17). They may be that process' own from before it was restarted: the tag
//! that would tell was lost with the store. So nobody knows whose they are.

use std::collections::{BTreeMap, BTreeSet};

/// What happens to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtBoot {
    /// They are counted and left alone.
    Quarantine,
    /// They are destroyed like orphans: the operator says that the hosts are his alone.
    Destroy,
}

/// The VMs without a record that each place had when it was heard for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strangers {
    rule: AtBoot,
    by_place: BTreeMap<String, BTreeSet<String>>,
}

impl Strangers {
    /// Nothing is known yet.
    #[must_use]
    pub const fn new(rule: AtBoot) -> Self {
        Self {
            rule,
            by_place: BTreeMap::new(),
        }
    }

    pub(super) const fn rule(&self) -> AtBoot {
        self.rule
    }

    /// Notes what a place lists without a record. What was not there the first time is
    /// no stranger, nor is what has left in between.
    pub(super) fn note<'a>(&mut self, place: &str, unknown: impl Iterator<Item = &'a str>) {
        let now: BTreeSet<String> = unknown.map(str::to_owned).collect();
        match self.by_place.get_mut(place) {
            Some(there) => there.retain(|vm| now.contains(vm)),
            None => {
                self.by_place.insert(place.to_owned(), now);
            }
        }
    }

    pub(super) fn has(&self, place: &str, vm: &str) -> bool {
        self.by_place
            .get(place)
            .is_some_and(|there| there.contains(vm))
    }
}
