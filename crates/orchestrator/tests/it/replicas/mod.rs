//! Any number of orchestrators on one database: three real processes, one real
//! PostgreSQL, agents that speak the real wire, and things that go wrong.

mod fleet;
mod follow;
mod load;
mod verdict;

use fuse_testkit::postgres::Durability;
use tokio::sync::watch;

use self::{
    fleet::Fleet,
    follow::Followers,
    load::{Faults, Progress, run},
    verdict::check,
};

/// Ten tasks of each client: 500 creates, 450 destroys.
const TASKS: usize = 10;
/// As many as keep the fleet busy while things are restarted one after the other.
const FEWER_TASKS: usize = 6;

fn progress() -> (Progress, watch::Receiver<usize>) {
    watch::channel(0)
}

async fn reached(progress: &mut watch::Receiver<usize>, count: usize) {
    progress.wait_for(|done| *done >= count).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_are_never_oversold_and_no_event_is_lost() {
    let Some(fleet) = Fleet::start(Durability::Careless).await else {
        return;
    };
    let readers = Followers::start(&fleet);
    let (progress, _) = progress();
    let book = run(&fleet, Faults::Refusals, TASKS, progress).await;
    assert_eq!(book.alive.len() + book.gone.len(), 500);
    check(&fleet, &book).await;
    readers.saw_everything(&fleet).await;
    // Every host was full at some time, or nothing was at stake.
    assert!(fleet.agents.iter().all(|agent| agent.peak() == 50));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_request() {
    let Some(fleet) = Fleet::start(Durability::Careless).await else {
        return;
    };
    let readers = Followers::start(&fleet);
    let (progress, mut watched) = progress();
    let load = run(&fleet, Faults::Refusals, FEWER_TASKS, progress);
    let restarts = async {
        for replica in 0..fleet.replicas() {
            reached(&mut watched, 60 + 130 * replica).await;
            fleet.roll(replica).await;
        }
    };
    let (book, ()) = tokio::join!(load, restarts);
    assert_eq!(book.alive.len() + book.gone.len(), 300);
    check(&fleet, &book).await;
    readers.saw_everything(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replicas_lose_nothing_acknowledged() {
    let Some(fleet) = Fleet::start(Durability::Careless).await else {
        return;
    };
    let readers = Followers::start(&fleet);
    let (progress, mut watched) = progress();
    let load = run(&fleet, Faults::Lost, TASKS, progress);
    let kills = async {
        for replica in 0..fleet.replicas() {
            reached(&mut watched, 100 + 100 * replica).await;
            fleet.kill(replica).await;
        }
    };
    let (book, ()) = tokio::join!(load, kills);
    check(&fleet, &book).await;
    readers.saw_everything(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_makes_nobody_lie() {
    let Some(fleet) = Fleet::start(Durability::Durable).await else {
        return;
    };
    let readers = Followers::start(&fleet);
    let (progress, mut watched) = progress();
    let load = run(&fleet, Faults::Store, FEWER_TASKS, progress);
    let crashes = async {
        for done in [80, 240] {
            reached(&mut watched, done).await;
            let fleet = fleet.clone();
            let crash = tokio::task::spawn_blocking(move || fleet.crash_database());
            crash.await.unwrap();
        }
    };
    let (book, ()) = tokio::join!(load, crashes);
    check(&fleet, &book).await;
    readers.saw_everything(&fleet).await;
}
