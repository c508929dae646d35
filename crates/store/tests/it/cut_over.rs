//! One environment takes the place of another.

use std::time::Duration;

use fuse_model::{
    AuditEntry, AuditKind, Environment, OperationKind, Redacted, State, TaskStatus, Trigger,
};
use fuse_store::{
    Change, EnvironmentFilter, Guarded, MovedEnvironment, OperationChange, Page, Removal, Store,
    StoreError,
};

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

contract! {
    a_cut_over_moves_task_and_age_and_leaves_the_source_to_be_destroyed,
    what_a_source_gives_back_at_its_end_is_its_own,
    a_source_that_changed_keeps_its_place,
    a_target_that_is_gone_takes_no_place,
    only_what_runs_is_replaced_by_what_is_being_made,
    a_cut_over_is_whole_among_many_writes,
}

/// A running source on `a`, held for its migration, and its target on `b`.
async fn pair(store: &Store, task: &str) -> (Environment, Environment) {
    let source = create(store, task, 2, &["a"]).await;
    let source = start(store, &source).await;
    let hold = Change {
        operation: OperationChange::Begin(OperationKind::Migrate, MINUTE),
        ..Change::default()
    };
    let source = updated(
        store
            .environment_update(&source, hold)
            .await
            .expect("holds"),
    );
    let mut new = new_environment(&format!("mig-{task}"), 2, &["b"]);
    new.operation = OperationKind::Migrate;
    let target = created(
        store
            .environment_insert_and_reserve(new)
            .await
            .expect("inserts"),
    );
    let kind = target.operation.as_ref().map(|operation| operation.kind);
    assert_eq!(kind, Some(OperationKind::Migrate));
    (source, target)
}

async fn cut(
    store: &Store,
    source: &Environment,
    target: &Environment,
) -> Result<Guarded<MovedEnvironment>, StoreError> {
    let leaving = Change {
        operation: OperationChange::Seize(OperationKind::Destroy, MINUTE),
        ..Change::default()
    };
    let arrived = Change {
        url: Some("10.0.0.2:19551".to_owned()),
        guest_token: Some(Redacted::new("new-token".to_owned())),
        operation: OperationChange::End,
        audit: vec![AuditEntry::new(AuditKind::VmMigrated, target.id.as_str())],
        ..Change::default()
    };
    store
        .environment_cut_over((source, leaving), (target, arrived))
        .await
}

async fn host_vms(store: &Store, id: &str) -> i32 {
    let host = store.host_get(&host_id(id)).await.expect("reads");
    host.expect("is there").allocated.vm_count
}

async fn a_cut_over_moves_task_and_age_and_leaves_the_source_to_be_destroyed(db: Db) {
    let store = db.open().await;
    add_host(&store, "a", 8, 8).await;
    add_host(&store, "b", 8, 8).await;
    let (source, target) = pair(&store, "t").await;
    let used = fuse_model::now();
    store
        .environment_touch(&source.id, used)
        .await
        .expect("touches");
    let moved = updated(cut(&store, &source, &target).await.expect("cuts over"));

    assert_eq!(get(&store, &target.id).await.as_ref(), Some(&moved.target));
    let stored = get(&store, &source.id).await.expect("is there");
    assert_eq!(
        (stored.version, stored.state),
        (moved.source.version, State::Destroying)
    );
    assert_eq!(
        (moved.target.state, moved.source.state),
        (State::Running, State::Destroying)
    );
    assert_eq!(moved.target.task_id, source.task_id);
    assert_eq!(moved.target.created_at, source.created_at);
    assert_eq!(moved.target.activity_at, used);
    assert_eq!(moved.target.operation, None);
    assert_eq!(moved.source.task_id, None);
    let kind = moved
        .source
        .operation
        .as_ref()
        .map(|operation| operation.kind);
    assert_eq!(kind, Some(OperationKind::Destroy));
    let token = store
        .environment_guest_token(&target.id)
        .await
        .expect("opens");
    assert_eq!(token.expect("is kept").expose(), "new-token");

    let task = task_of(&store, "t").await;
    assert_eq!(
        (task.status, &task.environment_id),
        (TaskStatus::Running, &target.id)
    );
    let placeholder = target.task_id.clone().expect("has one");
    assert_eq!(store.task_get(&placeholder).await.expect("reads"), None);
    let filter = EnvironmentFilter {
        task_id: source.task_id.clone(),
        ..EnvironmentFilter::default()
    };
    let page = Page {
        after: None,
        limit: 9,
    };
    let listed = store
        .environment_list(&filter, &page)
        .await
        .expect("lists")
        .items;
    assert_eq!(listed, std::slice::from_ref(&moved.target));
    let of_source = states(&store, &source).await;
    assert_eq!(of_source[2..], [State::Draining, State::Destroying]);
    assert_eq!(
        states(&store, &target).await,
        [State::Provisioning, State::Running]
    );
}

async fn what_a_source_gives_back_at_its_end_is_its_own(db: Db) {
    let store = db.open().await;
    add_host(&store, "a", 8, 8).await;
    add_host(&store, "b", 8, 8).await;
    let (source, target) = pair(&store, "t").await;
    let moved = updated(cut(&store, &source, &target).await.expect("cuts over"));
    // Both take their share until the source is gone, and nothing of the task goes with it.
    assert_eq!(
        (host_vms(&store, "a").await, host_vms(&store, "b").await),
        (1, 1)
    );
    let gone = store
        .environment_remove(&moved.source, Trigger::DestroyConfirmed, Removal::default())
        .await;
    updated(gone.expect("removes"));
    assert_eq!(
        (host_vms(&store, "a").await, host_vms(&store, "b").await),
        (0, 1)
    );
    let task = task_of(&store, "t").await;
    assert_eq!(
        (task.status, &task.environment_id),
        (TaskStatus::Running, &target.id)
    );
    // The name of the task is taken for as long as the target has it.
    let again = store
        .environment_insert_and_reserve(new_environment("t", 1, &["a"]))
        .await;
    assert!(matches!(again, Ok(fuse_store::Inserted::TaskAssigned(holder)) if holder == target.id));
    destroy(&store, &moved.target).await;
    create(&store, "t", 1, &["a"]).await;
}

async fn states(store: &Store, of: &Environment) -> Vec<State> {
    let events = store.event_list_of(&of.id, 0, 100).await.expect("lists");
    events.into_iter().map(|event| event.state).collect()
}

async fn a_source_that_changed_keeps_its_place(db: Db) {
    let store = db.open().await;
    add_host(&store, "a", 8, 8).await;
    add_host(&store, "b", 8, 8).await;
    let (seen, target) = pair(&store, "t").await;
    // Somebody destroys it, or took over what they thought was interrupted.
    let other = Change {
        operation: OperationChange::Seize(OperationKind::Recover, MINUTE),
        ..Change::default()
    };
    let now = updated(
        store
            .environment_update(&seen, other)
            .await
            .expect("changes"),
    );
    let refused = cut(&store, &seen, &target).await.expect("answers");
    assert_eq!(refused, Guarded::Stale);
    assert_eq!(get(&store, &now.id).await, Some(now.clone()));
    assert_eq!(get(&store, &target.id).await, Some(target.clone()));
    assert_eq!(task_of(&store, "t").await.environment_id, now.id);
    assert_eq!(
        states(&store, &now).await,
        [State::Provisioning, State::Running]
    );
    destroy(&store, &now).await;
    let refused = cut(&store, &now, &target).await.expect("answers");
    assert_eq!(refused, Guarded::Missing);
}

async fn a_target_that_is_gone_takes_no_place(db: Db) {
    let store = db.open().await;
    add_host(&store, "a", 8, 8).await;
    add_host(&store, "b", 8, 8).await;
    let (source, target) = pair(&store, "t").await;
    destroy(&store, &target).await;
    let refused = cut(&store, &source, &target).await.expect("answers");
    assert_eq!(refused, Guarded::Missing);
    assert_eq!(get(&store, &source.id).await, Some(source.clone()));
    assert_eq!(task_of(&store, "t").await.environment_id, source.id);
}

async fn only_what_runs_is_replaced_by_what_is_being_made(db: Db) {
    let store = db.open().await;
    add_host(&store, "a", 8, 8).await;
    add_host(&store, "b", 8, 8).await;
    let (source, target) = pair(&store, "t").await;
    let swapped = cut(&store, &target, &source).await;
    assert!(
        matches!(swapped, Err(StoreError::Illegal(_))),
        "{swapped:?}"
    );
    let moved = updated(cut(&store, &source, &target).await.expect("cuts over"));
    let again = cut(&store, &moved.source, &moved.target).await;
    assert!(matches!(again, Err(StoreError::Illegal(_))), "{again:?}");
}

async fn a_cut_over_is_whole_among_many_writes(db: Db) {
    let store = db.open().await;
    add_host(&store, "a", 64, 64).await;
    add_host(&store, "b", 64, 64).await;
    let mut pairs = Vec::new();
    for n in 0..8 {
        pairs.push(pair(&store, &format!("t{n}")).await);
    }
    // Every other source has changed since: those are refused, and spoil nobody else's.
    for (source, _) in pairs.iter().step_by(2) {
        let change = Change {
            error: Some("changed".to_owned()),
            ..Change::default()
        };
        updated(
            store
                .environment_update(source, change)
                .await
                .expect("changes"),
        );
    }
    let mut cuts = tokio::task::JoinSet::new();
    for (n, (source, target)) in pairs.iter().cloned().enumerate() {
        let store = store.clone();
        cuts.spawn(async move { (n, cut(&store, &source, &target).await) });
    }
    while let Some(ended) = cuts.join_next().await {
        let (n, answer) = ended.expect("ends");
        let (source, target) = &pairs[n];
        let holder = match answer.expect("answers") {
            Guarded::Updated(_) if n % 2 == 1 => target,
            Guarded::Stale if n % 2 == 0 => source,
            other => panic!("{n}: {other:?}"),
        };
        let task = task_of(&store, &format!("t{n}")).await;
        assert_eq!(task.environment_id, holder.id);
    }
}
