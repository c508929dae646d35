//! Named leases.

use std::time::Duration;

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

contract! {
    a_lease_is_renewed_by_its_holder_and_given_back,
    a_lease_has_one_holder,
}

async fn a_lease_is_renewed_by_its_holder_and_given_back(db: Db) {
    let store = db.open().await;
    let lease = store
        .lease_acquire("reconcile", MINUTE)
        .await
        .expect("answers")
        .expect("is free");
    let same = store
        .lease_acquire("reconcile", MINUTE)
        .await
        .expect("answers")
        .expect("is ours");
    assert_eq!(lease, same);
    assert!(
        store
            .lease_acquire("other", MINUTE)
            .await
            .expect("answers")
            .is_some()
    );
    store.lease_release(&lease).await.expect("releases");
}

async fn a_lease_has_one_holder(db: Db) {
    if db.server.is_none() {
        return;
    }
    let (first, second) = (db.open().await, db.open().await);
    let lease = first
        .lease_acquire("reconcile", MINUTE)
        .await
        .expect("answers")
        .expect("is free");
    assert_eq!(
        second
            .lease_acquire("reconcile", MINUTE)
            .await
            .expect("answers"),
        None
    );
    first.lease_release(&lease).await.expect("releases");
    let taken = second
        .lease_acquire("reconcile", MINUTE)
        .await
        .expect("answers")
        .expect("is free");
    assert_eq!(taken.epoch, lease.epoch + 1);
    // A late release by the holder before changes nothing.
    first.lease_release(&lease).await.expect("answers");
    assert_eq!(
        first
            .lease_acquire("reconcile", MINUTE)
            .await
            .expect("answers"),
        None
    );
    // One that has signed off holds nothing.
    second.close().await;
    let back = first
        .lease_acquire("reconcile", MINUTE)
        .await
        .expect("answers")
        .expect("is free");
    assert_eq!(back.epoch, taken.epoch + 1);
    // An expired one neither.
    let third = db.open().await;
    first
        .lease_acquire("reconcile", Duration::ZERO)
        .await
        .expect("answers")
        .expect("is ours");
    assert!(
        third
            .lease_acquire("reconcile", MINUTE)
            .await
            .expect("answers")
            .is_some()
    );
}
