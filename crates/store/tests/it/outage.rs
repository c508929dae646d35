//! PostgreSQL goes away under load: requests fail as unavailable or succeed,
//! nothing acknowledged is lost, and the store works again without help.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fuse_model::{ErrorKind, TaskId};
use fuse_store::Inserted;
use fuse_testkit::postgres::Durability;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_nothing_acknowledged() {
    let test = "store::outage::a_crash_of_the_server_loses_nothing_acknowledged";
    let Some(server) = start_postgres(test, Durability::Durable) else {
        return;
    };
    let db = Db::postgres(&server);
    let store = db.open().await;
    add_host(&store, "h", 1_000_000, 1_000_000).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        clients.spawn(async move {
            let mut acknowledged = Vec::new();
            for n in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let task = format!("c{client}-{n}");
                let new = new_environment(&task, 1, &["h"]);
                match store.environment_insert_and_reserve(new).await {
                    Ok(Inserted::Created(_)) => acknowledged.push(task),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                        tokio::task::yield_now().await;
                    }
                }
            }
            acknowledged
        });
    }
    let mut watch = store.event_watch();
    for _ in 0..3 {
        let crash = Arc::clone(&server);
        tokio::task::spawn_blocking(move || crash.crash_and_restart())
            .await
            .expect("runs")
            .expect("comes back");
        // It works again when there is a new event.
        let before = timeout(Duration::from_secs(30), async {
            loop {
                if let Ok(head) = store.event_head().await {
                    break head;
                }
            }
        });
        let before = before.await.expect("answers again");
        while store.event_head().await.expect("answers") == before {
            watch.changed().await;
        }
    }
    stop.store(true, Ordering::SeqCst);
    let acknowledged: Vec<String> = clients.join_all().await.concat();
    assert!(!acknowledged.is_empty());
    for task in &acknowledged {
        let found = store.task_get(&TaskId::new(task)).await.expect("reads");
        assert!(found.is_some(), "{task} was acknowledged and is gone");
    }
    check_invariants(&store).await;
}
