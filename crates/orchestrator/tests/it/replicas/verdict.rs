//! What must be true when the dust has settled.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fuse_testkit::until;
use reqwest::Method;

use super::{fleet::Fleet, load::Book};

/// A dead replica is believed after 20 s; what it left behind takes a few cycles more.
const SETTLES_WITHIN: Duration = Duration::from_secs(75);

/// Waits until no operation is open and the hosts have what the table says, then checks
/// everything that clients were told.
pub(super) async fn check(fleet: &Arc<Fleet>, book: &Book) {
    let settled = until("a fleet at rest", SETTLES_WITHIN, || async {
        let open = fleet.sql(
            "SELECT id, state, op_kind FROM environments \
             WHERE state <> 'running' OR op_kind IS NOT NULL",
        );
        anyhow::ensure!(open.is_empty(), "still under way:\n{open}");
        let (vms, rows) = (fleet.vms(), rows(fleet));
        anyhow::ensure!(vms == rows, "hosts have {vms:?}, the table has {rows:?}");
        Ok(())
    });
    settled.await.unwrap();
    nothing_acknowledged_is_lost(fleet, book).await;
    fleet.was_never_oversold();
    accounts_add_up(fleet);
    streams_are_whole(fleet);
}

fn rows(fleet: &Fleet) -> Vec<String> {
    let text = fleet.sql("SELECT id FROM environments");
    let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
    rows.sort();
    rows
}

async fn nothing_acknowledged_is_lost(fleet: &Arc<Fleet>, book: &Book) {
    let rows: BTreeSet<String> = rows(fleet).into_iter().collect();
    for id in &book.alive {
        assert!(rows.contains(id), "{id} was created and is gone");
    }
    for id in &book.gone {
        assert!(!rows.contains(id), "{id} was destroyed and is back");
    }
    let known: BTreeSet<_> = book.alive.union(&book.unsure).cloned().collect();
    let strangers: Vec<_> = rows.difference(&known).collect();
    assert_eq!(strangers, Vec::<&String>::new(), "nobody created these");
    // Each replica says so, too.
    for replica in 0..fleet.replicas() {
        for (ids, status) in [(&book.alive, 200), (&book.gone, 404)] {
            let Some(id) = ids.iter().nth(replica) else {
                continue;
            };
            let path = format!("/v1/environments/{id}");
            let answer = fleet.call(replica, Method::GET, &path, None, None).await;
            assert_eq!(answer.unwrap().status, status, "replica {replica}: {id}");
        }
    }
}

/// Charges are those of the reservations, and those are the environments'.
fn accounts_add_up(fleet: &Fleet) {
    let wrong = fleet.sql(
        "SELECT h.id, h.vms_allocated, h.cpus_allocated FROM hosts h \
         WHERE h.vms_allocated <> (SELECT COUNT(*) FROM reservations r WHERE r.host_id = h.id) \
         OR h.vms_allocated <> (SELECT COUNT(*) FROM environments e WHERE e.host_id = h.id) \
         OR h.cpus_allocated <> (SELECT COALESCE(SUM(r.cpus), 0) FROM reservations r \
             WHERE r.host_id = h.id)",
    );
    assert_eq!(wrong, "", "charges that are nobody's");
}

/// The stream of every environment: legal steps only, none twice, none left out, and
/// its end is what the table says.
fn streams_are_whole(fleet: &Fleet) {
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let events = fleet.sql("SELECT environment_id, state FROM witness_events ORDER BY seq");
    for line in events.lines() {
        let (id, state) = line.split_once('|').unwrap();
        let before = last.insert(id.to_owned(), state.to_owned());
        let ended = matches!(before.as_deref(), None | Some("failed" | "destroyed"));
        let legal = match state {
            // A create that found no room fails without having begun.
            "provisioning" => ended,
            "failed" => ended || before.as_deref() == Some("provisioning"),
            "running" => before.as_deref() == Some("provisioning"),
            "destroying" => matches!(before.as_deref(), Some("provisioning" | "running")),
            "destroyed" => before.as_deref() == Some("destroying"),
            _ => false,
        };
        assert!(legal, "{id} went from {before:?} to {state}");
    }
    for id in rows(fleet) {
        assert_eq!(last.remove(&id).as_deref(), Some("running"), "{id}");
    }
    for (id, state) in last {
        let ended = matches!(&*state, "failed" | "destroyed");
        assert!(ended, "{id} is gone and its stream ends in {state}");
    }
}
