//! Making, moving and ending environments.

use fuse_model::{
    AuditKind, Endpoint, Evict, LogTail, OperationKind, State, TaskFailure, TaskId, TaskLog,
    TaskOutput, TaskStatus, Trigger,
};
use fuse_store::{
    Change, EnvironmentFilter, FailedCreate, Guarded, Inserted, Page, Removal, StoreError,
    TaskChange,
};

use crate::support::*;

contract! {
    a_create_reads_back,
    a_life_from_create_to_destroyed,
    a_task_has_one_tracked_environment,
    the_first_candidate_that_fits_is_charged,
    a_refused_create_leaves_nothing,
    a_create_without_a_host_is_remembered_by_its_task,
    a_failed_create_gives_everything_back,
    only_the_last_version_can_be_changed,
    the_table_of_states_is_obeyed,
    pages_and_filters,
    two_task_ids_of_one_name_do_not_share_it,
    the_default_backend_is_charged_nowhere,
    activity_only_goes_forward,
    any_text_can_be_kept,
    old_credentials_are_found_until_there_are_new_ones,
    a_script_s_output_stays_with_its_task,
    what_is_kept_of_a_failed_create_is_of_the_last_attempt,
}

async fn a_create_reads_back(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 8, 8).await;
    let made = create(&store, "t", 2, &["h"]).await;
    assert_eq!(made.state, State::Provisioning);
    let operation = made.operation.as_ref().expect("is being created");
    assert_eq!(
        (operation.kind, &operation.owner),
        (OperationKind::Create, store.replica_id())
    );
    assert_eq!(get(&store, &made.id).await.as_ref(), Some(&made));
    let host = store
        .host_get(&host_id("h"))
        .await
        .expect("reads")
        .expect("is");
    assert_eq!((host.allocated.cpus, host.allocated.vm_count), (2, 1));
    let task = task_of(&store, "t").await;
    assert_eq!(
        (task.status, &task.environment_id),
        (TaskStatus::Assigned, &made.id)
    );
    let request = store.environment_request(&made.id).await.expect("reads");
    assert_eq!(request.as_deref(), Some("{\"task_id\":\"t\"}"));
}

async fn a_life_from_create_to_destroyed(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 8, 8).await;
    let made = create(&store, "t", 2, &["h"]).await;
    let change = Change {
        endpoints: Some(vec![Endpoint {
            name: "web".to_owned(),
            url: "h:19600".to_owned(),
            port: 80,
            protocol: "tcp".to_owned(),
        }]),
        boot_id: Some("boot-1".to_owned()),
        guest_version: Some("1.2.3".to_owned()),
        ..running()
    };
    let up = store
        .environment_transition(&made, Trigger::Started, change)
        .await;
    let up = updated(up.expect("starts"));
    assert_eq!(
        (up.state, up.version),
        (State::Running, made.version.next())
    );
    assert_eq!(up.operation, None);
    assert_eq!((&*up.boot_id, &*up.guest_version), ("boot-1", "1.2.3"));
    assert_eq!(get(&store, &made.id).await.as_ref(), Some(&up));
    assert_eq!(task_of(&store, "t").await.status, TaskStatus::Running);

    destroy(&store, &up).await;
    assert_eq!(get(&store, &made.id).await, None);
    let task = task_of(&store, "t").await;
    assert_eq!(
        (task.status, task.last_error.as_str()),
        (TaskStatus::Failed, "vm force destroyed")
    );
    let host = store
        .host_get(&host_id("h"))
        .await
        .expect("reads")
        .expect("is");
    assert_eq!((host.allocated.cpus, host.allocated.vm_count), (0, 0));
    let states: Vec<_> = all_events(&store)
        .await
        .iter()
        .map(|event| event.state)
        .collect();
    let expected = [
        State::Provisioning,
        State::Running,
        State::Destroying,
        State::Destroyed,
    ];
    assert_eq!(states, expected);
    check_invariants(&store).await;
    store.close().await;
}

async fn a_task_has_one_tracked_environment(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 8, 8).await;
    let first = create(&store, "t", 1, &["h"]).await;
    let again = || store.environment_insert_and_reserve(new_environment("t", 1, &["h"]));
    assert_eq!(
        again().await.expect("answers"),
        Inserted::TaskAssigned(first.id.clone())
    );
    // Not free before the record is gone, whatever its state.
    let seen = updated(
        store
            .environment_transition(&first, Trigger::DestroyRequested, Change::default())
            .await
            .expect("moves"),
    );
    assert_eq!(seen.task_id, None);
    assert_eq!(get(&store, &first.id).await.expect("is").task_id, None);
    assert_eq!(
        again().await.expect("answers"),
        Inserted::TaskAssigned(first.id.clone())
    );
    let end = store
        .environment_remove(&seen, Trigger::DestroyConfirmed, Removal::default())
        .await;
    updated(end.expect("removes"));
    assert!(matches!(
        again().await.expect("answers"),
        Inserted::Created(_)
    ));
    check_invariants(&store).await;
}

async fn the_first_candidate_that_fits_is_charged(db: Db) {
    let store = db.open().await;
    for (host, cpus) in [("a", 1), ("b", 4), ("c", 4)] {
        add_host(&store, host, cpus, 8).await;
    }
    let made = create(&store, "t", 2, &["a", "c", "b"]).await;
    assert_eq!(made.host_id, Some(host_id("c")));
    // A host that was cordoned since placement chose it takes nothing either.
    let state = fuse_model::HostState::Cordoned;
    store
        .host_set_state(&host_id("c"), (state, Evict::None), Vec::new())
        .await
        .expect("sets");
    assert_eq!(
        create(&store, "u", 1, &["c", "b"]).await.host_id,
        Some(host_id("b"))
    );
    check_invariants(&store).await;
}

async fn a_refused_create_leaves_nothing(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 1).await;
    for (task, cpus) in [("too-big", 5), ("fits", 1), ("no-slot", 1)] {
        let new = new_environment(task, cpus, &["h", "unknown"]);
        let inserted = store
            .environment_insert_and_reserve(new)
            .await
            .expect("answers");
        if task == "fits" {
            assert!(matches!(inserted, Inserted::Created(_)));
            continue;
        }
        assert_eq!(inserted, Inserted::NoCapacity, "{task}");
        assert_eq!(
            store.task_get(&TaskId::new(task)).await.expect("reads"),
            None
        );
        assert_eq!(get(&store, &id(task)).await, None);
    }
    assert_eq!(all_events(&store).await.len(), 1);
    check_invariants(&store).await;
}

async fn old_credentials_are_found_until_there_are_new_ones(db: Db) {
    let store = db.open().await;
    let token = |text: &str| Change {
        guest_token: Some(fuse_model::Redacted::new(text.to_owned())),
        operation: fuse_store::OperationChange::End,
        ..Change::default()
    };
    let old = async |before| {
        let found = store.environments_to_renew(before, 9).await;
        found.expect("reads")
    };
    let is_due = async || old(store.now()).await;
    for (task, given) in [("a", token("first")), ("bare", Change::default())] {
        let made = create(&store, task, 1, &[]).await;
        assert!(!is_due().await.contains(&made.id), "{task} is being made");
        let up = store.environment_transition(&made, Trigger::Started, given);
        updated(up.await.expect("starts"));
    }
    assert_eq!(is_due().await, [id("a")]);
    let between = store.now();
    let seen = get(&store, &id("a")).await.expect("is there");
    let busy = Change {
        operation: fuse_store::OperationChange::Begin(
            OperationKind::Rotate,
            std::time::Duration::from_secs(60),
        ),
        ..Change::default()
    };
    let seen = updated(store.environment_update(&seen, busy).await.expect("begins"));
    assert_eq!(is_due().await, [], "somebody is at work on it");
    let renewed = store.environment_update(&seen, token("second")).await;
    let seen = updated(renewed.expect("ends"));
    assert_eq!(
        (old(between).await, is_due().await),
        (vec![], vec![id("a")])
    );
    // Nothing else makes them younger.
    let other = Change {
        url: Some("u".to_owned()),
        ..Change::default()
    };
    let seen = updated(
        store
            .environment_update(&seen, other)
            .await
            .expect("writes"),
    );
    assert_eq!(is_due().await, [id("a")]);
    let ended = store.environment_transition(&seen, Trigger::DestroyRequested, Change::default());
    updated(ended.await.expect("ends"));
    assert_eq!(is_due().await, []);
}

async fn a_create_without_a_host_is_remembered_by_its_task(db: Db) {
    let store = db.open().await;
    let failed = |task: &str| FailedCreate {
        id: id(task),
        task_id: TaskId::new(task),
        tenant: "ak_1".to_owned(),
        error: "no hosts registered".to_owned(),
        audit: Vec::new(),
    };
    let answer = store
        .environment_insert_failed(failed("t"))
        .await
        .expect("writes");
    assert_eq!(answer, None);
    let task = task_of(&store, "t").await;
    assert_eq!(
        (task.status, task.last_error.as_str(), task.owner.as_str()),
        (TaskStatus::Failed, "no hosts registered", "ak_1")
    );
    let events = all_events(&store).await;
    assert_eq!(
        (events[0].state, events[0].error.as_str()),
        (State::Failed, "no hosts registered")
    );
    // The task can be tried again, and a tracked one is not overwritten.
    let made = create(&store, "t", 1, &[]).await;
    let answer = store
        .environment_insert_failed(failed("t"))
        .await
        .expect("answers");
    assert_eq!(answer, Some(made.id));
    let task = task_of(&store, "t").await;
    assert_eq!(task.status, TaskStatus::Assigned);
}

async fn a_failed_create_gives_everything_back(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 4).await;
    let made = create(&store, "t", 4, &["h"]).await;
    let removal = Removal {
        error: "boot failed".to_owned(),
        task: TaskChange::Failed("boot failed".to_owned()),
        audit: Vec::new(),
    };
    let end = store
        .environment_remove(&made, Trigger::CreateFailed, removal.clone())
        .await;
    updated(end.expect("removes"));
    let again = store
        .environment_remove(&made, Trigger::CreateFailed, removal)
        .await;
    assert_eq!(again.expect("answers"), Guarded::Missing);
    let last = all_events(&store).await.pop().expect("has events");
    assert_eq!(
        (last.state, last.error.as_str()),
        (State::Failed, "boot failed")
    );
    create(&store, "u", 4, &["h"]).await;
    check_invariants(&store).await;
}

async fn only_the_last_version_can_be_changed(db: Db) {
    let store = db.open().await;
    let made = create(&store, "t", 1, &[]).await;
    let up = start(&store, &made).await;
    let stale = store.environment_transition(&made, Trigger::DestroyRequested, Change::default());
    assert_eq!(stale.await.expect("answers"), Guarded::Stale);
    let stale = store.environment_remove(&made, Trigger::CreateFailed, Removal::default());
    assert_eq!(stale.await.expect("answers"), Guarded::Stale);
    assert_eq!(get(&store, &made.id).await, Some(up.clone()));
    let change = Change {
        error: Some("drain command: exit 1".to_owned()),
        ..Change::default()
    };
    let noted = updated(
        store
            .environment_update(&up, change)
            .await
            .expect("updates"),
    );
    assert_eq!(
        (noted.state, noted.error.as_str()),
        (State::Running, "drain command: exit 1")
    );
    assert_eq!(
        all_events(&store).await.len(),
        2,
        "an update is no transition"
    );
    let gone = create(&store, "u", 1, &[]).await;
    destroy(&store, &gone).await;
    let missing = store.environment_update(&gone, Change::default()).await;
    assert_eq!(missing.expect("answers"), Guarded::Missing);
}

async fn the_table_of_states_is_obeyed(db: Db) {
    let store = db.open().await;
    let made = create(&store, "t", 1, &[]).await;
    let drain = store.environment_transition(&made, Trigger::DrainRequested, Change::default());
    assert!(matches!(drain.await, Err(StoreError::Illegal(_))));
    // A trigger that ends the record is no mere transition, and the reverse.
    let failed = store.environment_transition(&made, Trigger::CreateFailed, Change::default());
    assert!(matches!(failed.await, Err(StoreError::Illegal(_))));
    let removed = store.environment_remove(&made, Trigger::Started, Removal::default());
    assert!(matches!(removed.await, Err(StoreError::Illegal(_))));
    assert_eq!(get(&store, &made.id).await, Some(made));
}

async fn pages_and_filters(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 100, 100).await;
    for task in ["a", "b", "c", "d", "e"] {
        create(&store, task, 1, if task < "c" { &["h"] } else { &[] }).await;
    }
    start(&store, &get(&store, &id("b")).await.expect("is")).await;
    let list = async |filter: EnvironmentFilter, after: Option<&str>, limit: u32| {
        let page = Page {
            after: after.map(id),
            limit,
        };
        let listing = store.environment_list(&filter, &page).await.expect("lists");
        let names: Vec<_> = listing
            .items
            .iter()
            .map(|e| e.id.as_str().replace("fuse-", ""))
            .collect();
        (names.concat(), listing.next)
    };
    let any = EnvironmentFilter::default;
    assert_eq!(list(any(), None, 2).await, ("ab".to_owned(), Some(id("b"))));
    assert_eq!(
        list(any(), Some("b"), 2).await,
        ("cd".to_owned(), Some(id("d")))
    );
    assert_eq!(list(any(), Some("d"), 2).await, ("e".to_owned(), None));
    assert_eq!(list(any(), None, 5).await, ("abcde".to_owned(), None));
    // A cursor works although its record is gone.
    assert_eq!(list(any(), Some("bb"), 9).await.0, "cde");
    let on_host = EnvironmentFilter {
        host_id: Some(host_id("h")),
        ..any()
    };
    assert_eq!(list(on_host.clone(), None, 9).await.0, "ab");
    let both = EnvironmentFilter {
        state: Some(State::Provisioning),
        ..on_host
    };
    assert_eq!(list(both, None, 9).await.0, "a");
    let of_task = |task: &str| EnvironmentFilter {
        task_id: Some(TaskId::new(task)),
        ..any()
    };
    assert_eq!(list(of_task("c"), None, 9).await.0, "c");
    assert_eq!(list(of_task("x"), None, 9).await.0, "");
    let seen = get(&store, &id("c")).await.expect("is");
    let down = store.environment_transition(&seen, Trigger::DestroyRequested, Change::default());
    updated(down.await.expect("moves"));
    assert_eq!(list(of_task("c"), None, 9).await.0, "", "the task has left");
}

async fn two_task_ids_of_one_name_do_not_share_it(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 4).await;
    create(&store, "t", 1, &["h"]).await;
    let mut other = new_environment("u", 1, &["h"]);
    other.id = id("t");
    let inserted = store
        .environment_insert_and_reserve(other)
        .await
        .expect("answers");
    assert_eq!(inserted, Inserted::TaskAssigned(id("t")));
    assert_eq!(
        store.task_get(&TaskId::new("u")).await.expect("reads"),
        None
    );
    check_invariants(&store).await;
}

async fn the_default_backend_is_charged_nowhere(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 4).await;
    let mut new = new_environment("t", 100, &[]);
    new.audit
        .retain(|entry| entry.kind == AuditKind::VmScheduled);
    let inserted = store
        .environment_insert_and_reserve(new)
        .await
        .expect("inserts");
    let Inserted::Created(made) = inserted else {
        panic!("{inserted:?}");
    };
    assert_eq!(made.host_id, None);
    destroy(&store, &made).await;
    check_invariants(&store).await;
}

async fn activity_only_goes_forward(db: Db) {
    let store = db.open().await;
    let made = create(&store, "t", 1, &[]).await;
    let later = made.activity_at + jiff::SignedDuration::from_secs(10);
    store
        .environment_touch(&made.id, later)
        .await
        .expect("writes");
    store
        .environment_touch(&made.id, made.activity_at)
        .await
        .expect("writes");
    let seen = get(&store, &made.id).await.expect("is");
    assert_eq!((seen.activity_at, seen.version), (later, made.version));
    // A clock that was an hour ahead and has been put back is no reason to miss activity.
    let hour = jiff::SignedDuration::from_hours(1);
    for at in [made.activity_at + hour, made.activity_at] {
        store.environment_touch(&made.id, at).await.expect("writes");
        let seen = get(&store, &made.id).await.expect("is");
        assert_eq!(seen.activity_at, at);
    }
}

async fn any_text_can_be_kept(db: Db) {
    let store = db.open().await;
    let task = "nul \0 quote ' \" backslash \\ $1 %s \u{1f980} \u{7f}";
    let made = create(&store, task, 1, &[]).await;
    let change = Change {
        error: Some("a guest printed \0".to_owned()),
        ..Change::default()
    };
    updated(
        store
            .environment_update(&made, change)
            .await
            .expect("updates"),
    );
    let kept = get(&store, &made.id).await.expect("is");
    assert_eq!(kept.error, "a guest printed \u{2400}");
    assert_eq!(task_of(&store, task).await.environment_id, kept.id);
    destroy(&store, &kept).await;
    assert_eq!(task_of(&store, task).await.status, TaskStatus::Failed);
    check_invariants(&store).await;
}

async fn a_script_s_output_stays_with_its_task(db: Db) {
    let store = db.open().await;
    let made = create(&store, "t", 0, &[]).await;
    let task = TaskId::new("t");
    let output = || async { store.task_output(&task).await.expect("reads") };
    assert_eq!(output().await, None);
    let wrote = TaskOutput {
        exit_code: 3,
        stdout: "out".to_owned(),
        stderr: "é\n".to_owned(),
    };
    let log = |run: &str, written, ended| TaskLog {
        build: LogTail::default(),
        run: LogTail {
            text: run.to_owned(),
            written,
        },
        ended,
    };
    let kept = || async { store.task_log(&task).await.expect("reads") };
    let begun = store.task_set_log(&task, &made.id, log("ou", 2, false), None);
    begun.await.expect("writes");
    assert_eq!(kept().await, Some(log("ou", 2, false)), "while it runs");
    assert_eq!(output().await, None, "it has not ended");
    let set = |environment| {
        let all = log("out\u{e9}\n", 300_000, false);
        store.task_set_log(&task, environment, all, Some(wrote.clone()))
    };
    let another = id("another");
    set(&another).await.expect("writes");
    assert_eq!(output().await, None, "of an environment that lost the task");
    set(&made.id).await.expect("writes");
    let removal = Removal {
        task: TaskChange::Failed("script".to_owned()),
        ..Removal::default()
    };
    let removed = store.environment_remove(&made, Trigger::CreateFailed, removal);
    assert_eq!(removed.await.expect("removes"), Guarded::Updated(()));
    assert_eq!(output().await, Some(wrote), "outlives the environment");
    assert_eq!(kept().await, Some(log("out\u{e9}\n", 300_000, true)));
    create(&store, "t", 0, &[]).await;
    assert_eq!(output().await, None, "a new run starts without");
    assert_eq!(kept().await, None);
}

async fn what_is_kept_of_a_failed_create_is_of_the_last_attempt(db: Db) {
    let store = db.open().await;
    let task = TaskId::new("t");
    let failure = |report: &str, hours: i64| TaskFailure {
        report: report.to_owned(),
        console: "console".to_owned(),
        agent: String::new(),
        kept_until: fuse_model::truncate_to_micros(
            store.now() + jiff::SignedDuration::from_hours(hours),
        ),
    };
    let kept = || async { store.task_failure(&task).await.expect("reads") };
    let fail = async |failure: &TaskFailure| {
        let made = create(&store, "t", 0, &[]).await;
        assert_eq!(kept().await, None, "a new attempt starts without");
        let set = store.task_set_failure(&task, &made.id, failure.clone());
        set.await.expect("writes");
        assert_eq!(kept().await, None, "it has not failed yet");
        let removal = Removal {
            task: TaskChange::Failed("boot".to_owned()),
            ..Removal::default()
        };
        let removed = store.environment_remove(&made, Trigger::CreateFailed, removal);
        assert_eq!(removed.await.expect("removes"), Guarded::Updated(()));
    };
    let first = failure("{}", 24);
    fail(&first).await;
    assert_eq!(kept().await, Some(first));
    let another = id("another");
    let set = store.task_set_failure(&task, &another, failure("no", 24));
    set.await.expect("writes");
    assert_eq!(kept().await.expect("is").report, "{}");
    fail(&failure("{\"step\":\"boot\"}", 24)).await;
    assert_eq!(kept().await.expect("is").report, "{\"step\":\"boot\"}");
    assert_eq!(store.task_failure_prune(10).await.expect("prunes"), 0);
    fail(&failure("old", -1)).await;
    assert_eq!(kept().await, None, "its time is over");
    assert_eq!(store.task_failure_prune(10).await.expect("prunes"), 1);
    assert_eq!(store.task_failure_prune(10).await.expect("prunes"), 0);
}
