//! One operation at a time per environment, and what becomes of it when its
//! owner does not finish.

use std::time::Duration;

use fuse_model::{Environment, OperationKind, State, Trigger};
use fuse_store::{Change, Guarded, OperationChange, Store};

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

contract! {
    an_operation_keeps_others_out_and_is_given_back,
    an_expired_operation_is_listed_and_can_be_taken,
    a_seized_operation_makes_its_owner_stale,
    a_new_process_finds_what_the_last_one_left,
}

async fn begin(store: &Store, seen: &Environment, ttl: Duration) -> Guarded<Environment> {
    let change = Change {
        operation: OperationChange::Begin(OperationKind::Destroy, ttl),
        ..Change::default()
    };
    store
        .environment_update(seen, change)
        .await
        .expect("answers")
}

async fn an_operation_keeps_others_out_and_is_given_back(db: Db) {
    let Some((first, second)) = two_replicas(&db).await else {
        return;
    };
    let made = create(&first, "t", 1, &[]).await;
    let Guarded::Busy(operation) = begin(&second, &made, MINUTE).await else {
        panic!("the create is under way");
    };
    assert_eq!(
        (operation.kind, &operation.owner),
        (OperationKind::Create, first.replica_id())
    );
    assert_eq!(
        second.environment_list_interrupted(9).await.expect("lists"),
        []
    );
    let up = start(&first, &made).await;
    let mine = updated(begin(&second, &up, MINUTE).await);
    assert!(matches!(
        begin(&first, &mine, MINUTE).await,
        Guarded::Busy(_)
    ));
    assert!(
        second
            .environment_operation_renew(&up.id, MINUTE)
            .await
            .expect("renews")
    );
    assert!(
        !first
            .environment_operation_renew(&up.id, MINUTE)
            .await
            .expect("answers")
    );
}

async fn an_expired_operation_is_listed_and_can_be_taken(db: Db) {
    let store = db.open().await;
    let made = create(&store, "t", 1, &[]).await;
    let up = start(&store, &made).await;
    let held = updated(begin(&store, &up, Duration::ZERO).await);
    let interrupted = store.environment_list_interrupted(9).await.expect("lists");
    assert_eq!(interrupted, std::slice::from_ref(&held));
    assert!(
        store
            .environment_operation_renew(&up.id, MINUTE)
            .await
            .expect("renews")
    );
    assert_eq!(
        store.environment_list_interrupted(9).await.expect("lists"),
        []
    );
    assert!(held.operation.is_some());
}

async fn a_seized_operation_makes_its_owner_stale(db: Db) {
    let Some((first, second)) = two_replicas(&db).await else {
        return;
    };
    let made = create(&first, "t", 1, &[]).await;
    let change = Change {
        operation: OperationChange::Seize(OperationKind::Destroy, MINUTE),
        ..Change::default()
    };
    let trigger = Trigger::DestroyRequested;
    let seen = updated(
        second
            .environment_transition(&made, trigger, change)
            .await
            .expect("moves"),
    );
    assert_eq!(seen.state, State::Destroying);
    let late = first
        .environment_transition(&made, Trigger::Started, running())
        .await;
    assert_eq!(late.expect("answers"), Guarded::Stale);
}

async fn a_new_process_finds_what_the_last_one_left(db: Db) {
    if db.url().is_none() {
        return;
    }
    let first = db.open().await;
    let made = create(&first, "t", 1, &[]).await;
    let left = create(&first, "u", 1, &[]).await;
    start(&first, &left).await;
    let fleet = first.fleet_id().clone();
    first.close().await;
    let second = db.open().await;
    assert_eq!(second.fleet_id(), &fleet);
    assert_ne!(second.replica_id(), first.replica_id());
    // At once: the one left orderly, and on SQLite the lock proves it is gone.
    let interrupted = second.environment_list_interrupted(9).await.expect("lists");
    assert_eq!(interrupted, std::slice::from_ref(&made));
    updated(begin(&second, &made, MINUTE).await);
    check_invariants(&second).await;
}

/// Two stores on one database, which only PostgreSQL allows.
async fn two_replicas(db: &Db) -> Option<(Store, Store)> {
    db.server.as_ref()?;
    Some((db.open().await, db.open().await))
}
