//! Tells what a new holder of the lease found as the one before it, or this process before
//! its restart, had left it.

use std::collections::HashSet;

use fuse_model::{AuditEntry, State};
use fuse_planner::{Listing, Tracked};
use jiff::Timestamp;

use super::cycle::Picture;
use crate::{Control, audit, error::chain};

/// Entries that are written in one go: more would keep requests waiting behind them.
const BATCH: usize = 500;

impl Control {
    /// Writes an audit entry for each environment that runs on and that nobody has touched
    /// since the lease was asked for, at `asked_at`. There can be thousands, so nothing waits
    /// for it.
    pub(super) fn note_recovered(&self, picture: &Picture, asked_at: Timestamp) {
        let listed = listed(picture);
        let is_here = |vm: &&Tracked| match picture.listings.get(&vm.place) {
            Some(Listing::Vms(_)) => listed.contains(&(vm.place.as_str(), vm.id.as_str())),
            // It has what the table says.
            Some(Listing::NoInventory) => true,
            Some(Listing::Unknown) | None => false,
        };
        let here = picture.tracked.iter().filter(is_here);
        let found: Vec<AuditEntry> = here
            .filter_map(|vm| picture.records.get(&vm.id))
            .filter(|record| record.state == State::Running && record.updated_at < asked_at)
            .map(audit::recovered)
            .collect();
        if found.is_empty() {
            return;
        }
        let store = self.inner.store.clone();
        self.spawn(async move {
            for batch in found.chunks(BATCH) {
                if let Err(e) = store.audit_insert(batch.to_vec()).await {
                    tracing::warn!(error = %chain(&e), "cannot note what was recovered");
                }
            }
        });
    }
}

/// Every VM that runs, with its place.
fn listed(picture: &Picture) -> HashSet<(&str, &str)> {
    let mut all = HashSet::new();
    for (place, listing) in &picture.listings {
        if let Listing::Vms(vms) = listing {
            let running = vms.iter().filter(|vm| !vm.stopped);
            all.extend(running.map(|vm| (place.as_str(), vm.id.as_str())));
        }
    }
    all
}
