//! Many writers at once: nothing is oversold, lost or told out of order.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use fuse_model::{Environment, EnvironmentId, State, Trigger};
use fuse_store::{Change, Guarded, Inserted, Removal, Store};
use fuse_testkit::postgres::Durability;
use tokio::task::JoinSet;

use crate::support::*;

contract! {
    no_slot_is_sold_twice,
    one_of_many_equal_tasks_wins,
    a_host_is_not_removed_under_a_create,
}

/// Stores to spread work over: three replicas where the engine allows it.
async fn replicas(db: &Db) -> Vec<Store> {
    let mut stores = vec![db.open().await];
    if db.server.is_some() {
        stores.extend([db.open().await, db.open().await]);
    }
    stores
}

/// 120 clients want one of 40 slots on three hosts; some give theirs back.
async fn no_slot_is_sold_twice(db: Db) {
    let stores = replicas(&db).await;
    for (host, slots) in [("a", 25), ("b", 10), ("c", 5)] {
        add_host(&stores[0], host, 1000, slots).await;
    }
    let sold = Arc::new(AtomicI32::new(0));
    let mut clients = JoinSet::new();
    for n in 0..120usize {
        let (store, sold) = (stores[n % stores.len()].clone(), Arc::clone(&sold));
        clients.spawn(async move {
            let hosts = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]][n % 3];
            let new = new_environment(&format!("t{n}"), 2, &hosts);
            match store
                .environment_insert_and_reserve(new)
                .await
                .expect("answers")
            {
                Inserted::Created(made) => {
                    let now = sold.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= 40, "{now} slots are sold");
                    if n % 4 == 0 {
                        sold.fetch_sub(1, Ordering::SeqCst);
                        destroy(&store, &made).await;
                    }
                }
                Inserted::NoCapacity => {}
                other @ (Inserted::TaskAssigned(_) | Inserted::KeyTaken) => panic!("{other:?}"),
            }
        });
    }
    clients.join_all().await;
    check_invariants(&stores[0]).await;
    let left = all_environments(&stores[0]).await.len();
    assert_eq!(
        i32::try_from(left).expect("fits"),
        sold.load(Ordering::SeqCst)
    );
    assert!(left <= 40);
}

async fn one_of_many_equal_tasks_wins(db: Db) {
    let stores = replicas(&db).await;
    add_host(&stores[0], "h", 1000, 1000).await;
    let mut clients = JoinSet::new();
    for n in 0..48 {
        let store = stores[n % stores.len()].clone();
        clients.spawn(async move {
            let new = new_environment(&format!("t{}", n / 12), 1, &["h"]);
            store
                .environment_insert_and_reserve(new)
                .await
                .expect("answers")
        });
    }
    let answers = clients.join_all().await;
    let made = answers
        .iter()
        .filter(|answer| matches!(answer, Inserted::Created(_)))
        .count();
    assert_eq!(made, 4);
    for answer in answers {
        if let Inserted::TaskAssigned(holder) = answer {
            assert!(get(&stores[0], &holder).await.is_some());
        }
    }
    check_invariants(&stores[0]).await;
}

async fn a_host_is_not_removed_under_a_create(db: Db) {
    let stores = replicas(&db).await;
    let (creator, remover) = (stores[0].clone(), stores[stores.len() - 1].clone());
    for round in 0..20 {
        let host = format!("h{round}");
        add_host(&creator, &host, 8, 8).await;
        let new = new_environment(&format!("t{round}"), 1, &[&host]);
        let id = host_id(&host);
        let (created, _removed) = tokio::join!(
            creator.environment_insert_and_reserve(new),
            remover.host_remove(&id, Vec::new())
        );
        let there = creator.host_get(&id).await.expect("reads").is_some();
        assert_eq!(
            matches!(created.expect("answers"), Inserted::Created(_)),
            there
        );
    }
    check_invariants(&creator).await;
}

/// A reader on one replica follows the cursor while three write; it must see
/// every event, once, in the order of each stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_misses_nothing_while_replicas_write() {
    let test = "store::concurrency::a_reader_misses_nothing_while_replicas_write";
    let Some(server) = start_postgres(test, Durability::Careless) else {
        return;
    };
    let db = Db::postgres(&server);
    let stores = replicas(&db).await;
    let writing = Arc::new(AtomicUsize::new(30));
    let mut writers = JoinSet::new();
    for n in 0..30 {
        let (store, writing) = (stores[n % 3].clone(), Arc::clone(&writing));
        writers.spawn(async move {
            for round in 0..5 {
                let made = create(&store, &format!("t{n}-{round}"), 1, &[]).await;
                destroy(&store, &start(&store, &made).await).await;
            }
            writing.fetch_sub(1, Ordering::SeqCst);
        });
    }
    let reader = db.open().await;
    let mut watch = reader.event_watch();
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let done = writing.load(Ordering::SeqCst) == 0;
        let page = reader.event_list_after(cursor, 7).await.expect("lists");
        if let Some(last) = page.last() {
            cursor = last.id.sequence();
            seen.extend(page);
        } else if done {
            break;
        } else {
            watch.changed().await;
        }
    }
    writers.join_all().await;
    assert_eq!(seen.len(), 30 * 5 * 4);
    assert_eq!(seen, all_events(&reader).await);
    check_invariants(&reader).await;
}

/// Random walks of several clients over a few environments and one small host,
/// each step taken from whatever the client last saw of the record.
mod random {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Create,
        Start,
        Destroy,
        Confirm,
        Fail,
    }

    fn step() -> impl Strategy<Value = (u8, Step)> {
        let step = prop_oneof![
            3 => Just(Step::Create),
            2 => Just(Step::Start),
            2 => Just(Step::Destroy),
            2 => Just(Step::Confirm),
            1 => Just(Step::Fail),
        ];
        (0..6u8, step)
    }

    async fn walk(store: Store, steps: Vec<(u8, Step)>) {
        for (task, step) in steps {
            let task = format!("t{task}");
            let Some(seen) = get(&store, &EnvironmentId::new(format!("fuse-{task}"))).await else {
                if matches!(step, Step::Create) {
                    let new = new_environment(&task, 1, &["h"]);
                    store
                        .environment_insert_and_reserve(new)
                        .await
                        .expect("answers");
                }
                continue;
            };
            take(&store, &seen, step).await;
        }
    }

    async fn take(store: &Store, seen: &Environment, step: Step) {
        let change = Change::default();
        let moved = match step {
            Step::Create => return,
            Step::Start => {
                store
                    .environment_transition(seen, Trigger::Started, change)
                    .await
            }
            Step::Destroy => {
                store
                    .environment_transition(seen, Trigger::DestroyRequested, change)
                    .await
            }
            Step::Confirm | Step::Fail => {
                let trigger = match seen.state {
                    State::Destroying => Trigger::DestroyConfirmed,
                    _ => Trigger::CreateFailed,
                };
                let removed = store
                    .environment_remove(seen, trigger, Removal::default())
                    .await;
                removed.map(|guarded| match guarded {
                    Guarded::Updated(()) | Guarded::Missing => Guarded::Missing,
                    Guarded::Stale => Guarded::Stale,
                    Guarded::Busy(operation) => Guarded::Busy(operation),
                })
            }
        };
        match moved {
            Ok(_) | Err(fuse_store::StoreError::Illegal(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn run(db: &Db, walks: Vec<Vec<(u8, Step)>>) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("builds");
        runtime.block_on(async {
            let stores = replicas(db).await;
            add_host(&stores[0], "h", 3, 3).await;
            let mut clients = JoinSet::new();
            for (n, steps) in walks.into_iter().enumerate() {
                clients.spawn(walk(stores[n % stores.len()].clone(), steps));
            }
            clients.join_all().await;
            check_invariants(&stores[0]).await;
            for store in &stores {
                store.close().await;
            }
        });
    }

    fn walks() -> impl Strategy<Value = Vec<Vec<(u8, Step)>>> {
        proptest::collection::vec(proptest::collection::vec(step(), 1..20), 1..8)
    }

    #[test]
    fn on_sqlite() {
        proptest!(ProptestConfig::with_cases(64), |(walks in walks())| {
            run(&Db::memory(), walks);
        });
    }

    #[test]
    fn on_postgres() {
        let test = "store::concurrency::random::on_postgres";
        let Some(server) = start_postgres(test, Durability::Careless) else {
            return;
        };
        proptest!(ProptestConfig::with_cases(12), |(walks in walks())| {
            run(&Db::postgres(&server), walks);
        });
    }
}
