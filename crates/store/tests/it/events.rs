//! The event stream: cursors, wake-ups, pruning.

use std::time::Duration;

use fuse_model::{
    EventId, GuestReport, LogTail, ServiceReport, ServiceStatus, State, StepReport, TaskId, TaskLog,
};
use jiff::SignedDuration;
use tokio::time::timeout;

use crate::support::*;

/// Far longer than a wake takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

contract! {
    a_cursor_sees_every_event_once_and_in_order,
    an_event_id_is_a_cursor,
    reports_are_told_while_it_is_made,
    a_watch_fires_on_commit_and_ends_with_the_store,
    other_replicas_are_woken,
    what_a_script_writes_wakes_everybody,
    ended_streams_are_forgotten_and_others_kept,
}

async fn a_cursor_sees_every_event_once_and_in_order(db: Db) {
    let store = db.open().await;
    assert_eq!(store.event_head().await.expect("reads"), 0);
    for task in ["a", "b"] {
        let made = create(&store, task, 1, &[]).await;
        start(&store, &made).await;
    }
    let all = all_events(&store).await;
    assert_eq!(all.len(), 4);
    let mut paged = Vec::new();
    let mut cursor = 0;
    loop {
        let page = store.event_list_after(cursor, 1).await.expect("lists");
        let Some(event) = page.into_iter().next() else {
            break;
        };
        cursor = event.id.sequence();
        paged.push(event);
    }
    assert_eq!(paged, all);
    let of_b = store.event_list_of(&id("b"), 0, 9).await.expect("lists");
    assert_eq!(of_b, all[2..]);
    let newer = store
        .event_list_of(&id("b"), of_b[0].id.sequence(), 9)
        .await
        .expect("lists");
    assert_eq!(newer, of_b[1..]);
    assert!(store.event_head().await.expect("reads") >= cursor);
}

async fn reports_are_told_while_it_is_made(db: Db) {
    let store = db.open().await;
    let made = create(&store, "a", 1, &[]).await;
    let step = |index, exit_code| {
        GuestReport::Step(StepReport {
            index,
            total: 2,
            duration_ms: 10,
            exit_code,
        })
    };
    let service = GuestReport::Service(ServiceReport {
        service: "db".to_owned(),
        status: ServiceStatus::Healthy,
        duration_ms: 20,
        exit_code: 0,
    });
    let reports = vec![step(1, 0), step(2, 3), service.clone()];
    store
        .event_add_reports(&made.id, reports)
        .await
        .expect("adds");
    let told = store.event_list_of(&made.id, 0, 9).await.expect("lists");
    let told: Vec<_> = told.into_iter().map(|e| (e.state, e.report)).collect();
    assert_eq!(
        told,
        [
            (State::Provisioning, None),
            (State::Provisioning, Some(step(1, 0))),
            (State::Provisioning, Some(step(2, 3))),
            (State::Provisioning, Some(service)),
        ]
    );
    // Nothing follows once it runs, nor where there is nothing.
    start(&store, &made).await;
    for nobody in [made.id.clone(), id("nobody")] {
        let reports = vec![step(1, 0)];
        store
            .event_add_reports(&nobody, reports)
            .await
            .expect("adds");
    }
    assert_eq!(all_events(&store).await.len(), 5);
}

async fn an_event_id_is_a_cursor(db: Db) {
    let store = db.open().await;
    create(&store, "a", 1, &[]).await;
    let event = all_events(&store).await.remove(0);
    let id: EventId = event.id.to_string().parse().expect("parses");
    assert_eq!(store.event_get(id).await.expect("reads"), Some(event));
    // The same place in another store's stream is not this event.
    let other = EventId::at(id.sequence());
    assert_eq!(store.event_get(other).await.expect("reads"), None);
}

async fn a_watch_fires_on_commit_and_ends_with_the_store(db: Db) {
    let store = db.open().await;
    let mut watch = store.event_watch();
    create(&store, "a", 1, &[]).await;
    assert!(timeout(PATIENCE, watch.changed()).await.expect("fires"));
    let waiting = async { while watch.changed().await {} };
    let ((), closed) = tokio::join!(store.close(), timeout(PATIENCE, waiting));
    closed.expect("ends");
}

async fn other_replicas_are_woken(db: Db) {
    if db.server.is_none() {
        return;
    }
    let (first, second) = (db.open().await, db.open().await);
    let mut watch = second.event_watch();
    create(&first, "a", 1, &[]).await;
    let seen = async {
        while all_events(&second).await.is_empty() {
            watch.changed().await;
        }
    };
    timeout(PATIENCE, seen).await.expect("is woken");
}

async fn what_a_script_writes_wakes_everybody(db: Db) {
    let writer = db.open().await;
    let reader = match db.server {
        Some(_) => db.open().await,
        None => writer.clone(),
    };
    let made = create(&writer, "a", 1, &[]).await;
    let mut watch = reader.event_watch();
    let task = TaskId::new("a");
    let log = TaskLog {
        run: LogTail {
            text: "hello".to_owned(),
            written: 5,
        },
        ..TaskLog::default()
    };
    let wrote = writer.task_set_log(&task, &made.id, log.clone(), None);
    wrote.await.expect("keeps");
    assert!(timeout(PATIENCE, watch.changed()).await.expect("fires"));
    assert_eq!(reader.task_log(&task).await.expect("reads"), Some(log));
}

async fn ended_streams_are_forgotten_and_others_kept(db: Db) {
    let store = db.open().await;
    let ended = create(&store, "a", 1, &[]).await;
    destroy(&store, &ended).await;
    create(&store, "b", 1, &[]).await;
    // The id lives again; its new stream is kept.
    create(&store, "a", 1, &[]).await;
    let before = store.now() - SignedDuration::from_secs(60);
    assert_eq!(store.event_prune(before, 100).await.expect("prunes"), 0);
    let after = store.now() + SignedDuration::from_secs(60);
    // Little by little, but each stream at once: nothing would find the rest of one.
    let other = create(&store, "c", 1, &[]).await;
    destroy(&store, &other).await;
    let mut forgotten = Vec::new();
    while forgotten.last() != Some(&0) {
        forgotten.push(store.event_prune(after, 1).await.expect("prunes"));
    }
    assert_eq!(forgotten, [3, 3, 0]);
    let left = all_events(&store).await;
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|event| event.state == State::Provisioning));
}
