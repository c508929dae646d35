//! Kills the orchestrator at every place of every operation, lets whoever is left, or the next one,
//! run a few cycles, and checks that nothing is lost, leaked, or there twice. On a file, where it is
//! started again; on PostgreSQL, where it is too; and there among three, where it is not, and the
//! other two go on.
//!
//! The places are the moments before and after each effect on the store or a host
//! (`control::fail_point`). They are counted, not listed: an operation is repeated, dying one place
//! later each time, until it comes to its end alive.

mod check;
mod fleet;
mod operation;

use std::{collections::BTreeMap, io::Write as _, sync::Arc};

use fuse_testkit::postgres::Postgres;
use tokio::sync::Semaphore;

use self::{check::check_answers, operation::Operation};
pub(crate) use self::{
    check::{check_hosts, check_store},
    fleet::Fleet,
};
use crate::{
    postgres::server,
    program::{KEY, Program, wait},
};

/// No operation has as many places.
const MOST: u64 = 60;
/// Operations at work side by side.
const PARALLEL: usize = 4;
/// The same where each is three processes.
const PARALLEL_OF_THREE: usize = 2;

/// Who dies, and who goes on.
#[derive(Debug, Clone)]
enum Replicas {
    /// The only one of a file, which is started again.
    File,
    /// The only one of a database, which is started again.
    One(Arc<Postgres>),
    /// One of three, and two go on.
    Three(Arc<Postgres>),
}

impl Replicas {
    async fn fleet(&self) -> Fleet {
        match self {
            Self::File => Fleet::new().await,
            Self::One(server) | Self::Three(server) => Fleet::on(server).await,
        }
    }

    /// Operations at work side by side.
    fn parallel(&self) -> usize {
        match self {
            Self::File | Self::One(_) => PARALLEL,
            Self::Three(_) => PARALLEL_OF_THREE,
        }
    }

    /// How many live through it.
    fn survivors(&self) -> usize {
        match self {
            Self::File | Self::One(_) => 0,
            Self::Three(_) => 2,
        }
    }
}

/// Runs the operation on an orchestrator that is to die at a place. Whether it did; if not, the
/// operation had no such place.
async fn run(fleet: &Fleet, operation: Operation, snapshot: &str, at: u64) -> bool {
    let mut orchestrator = fleet.orchestrator(Some((at, operation)));
    wait(&orchestrator, "/ready", |(status, _)| *status == 200).await;
    let (method, path, body) = operation.request(snapshot);
    let mut request = orchestrator
        .http
        .request(method, format!("{}{path}", orchestrator.base))
        .bearer_auth("master");
    if let Some(body) = body {
        request = request.json(&body);
    }
    if operation == Operation::Background {
        request = request.header("Prefer", "respond-async");
    }
    // A connection that breaks is what dying looks like from here. One that answered before its
    // last effect comes to that when it ends, which it does not before its work is done.
    let _answer = request.send().await;
    let died = orchestrator.end_or_die() == Some(9);
    if died {
        fleet.the_last_one_is_long_dead();
    }
    died
}

/// Kills, recovers, checks. `false` when the operation came to its end alive.
async fn die_at(replicas: &Replicas, operation: Operation, at: u64) -> bool {
    let fleet = replicas.fleet().await;
    let mut others: Vec<Program> = (0..replicas.survivors()).map(|_| fleet.start()).collect();
    let snapshot = match others.first() {
        Some(other) => fleet.furnish(other, operation).await,
        None => {
            let mut first = fleet.start();
            let snapshot = fleet.furnish(&first, operation).await;
            first.end();
            snapshot
        }
    };
    let died = run(&fleet, operation, &snapshot, at).await;
    let place = format!("{operation:?} at {at}, {replicas}");
    if others.is_empty() {
        others.push(fleet.start());
    }
    fleet.settle(&others[0]).await;
    // Whoever is asked.
    check_answers(&fleet, &others[others.len() - 1], operation, &place).await;
    for other in &mut others {
        other.end();
    }
    check_store(&fleet, &place).await;
    died
}

impl std::fmt::Display for Replicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File => "one on a file",
            Self::One(_) => "one on PostgreSQL",
            Self::Three(_) => "one of three on PostgreSQL",
        })
    }
}

async fn a_death_at_any_place_loses_and_leaks_nothing(replicas: Replicas) {
    let turns = Arc::new(Semaphore::new(replicas.parallel()));
    let mut places = tokio::task::JoinSet::new();
    for operation in Operation::ALL {
        let (turns, replicas) = (turns.clone(), replicas.clone());
        places.spawn(async move {
            for at in 1..=MOST {
                let _turn = turns.acquire().await.unwrap();
                if !die_at(&replicas, operation, at).await {
                    return (operation, at - 1);
                }
            }
            panic!("{operation:?} never comes to its end");
        });
    }
    let mut counts = BTreeMap::new();
    while let Some(counted) = places.join_next().await {
        let (operation, count) = counted.unwrap();
        assert!(count >= 4, "{operation:?} has effects");
        counts.insert(operation, count);
    }
    let each: Vec<String> = counts
        .iter()
        .map(|(operation, count)| format!("{operation:?} {count}"))
        .collect();
    let total: u64 = counts.values().sum();
    // Past the capture of the test harness.
    let line = format!(
        "recovery matrix of the orchestrator, {replicas}: died at {total} places, none left out \
         ({})\n",
        each.join(", ")
    );
    std::io::stderr().lock().write_all(line.as_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_on_a_file() {
    a_death_at_any_place_loses_and_leaks_nothing(Replicas::File).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_on_postgres() {
    let Some(server) = server() else { return };
    let replicas = Replicas::One(Arc::new(server));
    a_death_at_any_place_loses_and_leaks_nothing(replicas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_on_postgres() {
    let Some(server) = server() else { return };
    let replicas = Replicas::Three(Arc::new(server));
    a_death_at_any_place_loses_and_leaks_nothing(replicas).await;
}

/// The plan of a cycle is printed by a program of its own, beside nobody: the store has one process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plan_of_a_cycle_is_printed_and_not_carried_out() {
    let fleet = Fleet::new().await;
    let mut orchestrator = fleet.start();
    fleet.furnish(&orchestrator, Operation::Destroy).await;
    orchestrator.end();
    fleet.agents[0].lose_vm("fuse-bystander");
    fleet.agents[1].lose_vm("fuse-bystander");
    let env = [
        ("DATABASE_URL", fleet.database()),
        ("TOKEN_ENCRYPTION_KEY", KEY.to_owned()),
    ];
    let reconcile = |flags: &'static [&'static str]| {
        let mut command = crate::program::command();
        command.arg("reconcile").args(flags).envs(env.clone());
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let asked = reconcile(&["--dry-run"]).await.unwrap();
    let text = String::from_utf8(asked.stdout).unwrap();
    assert!(
        asked.status.success(),
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
    assert!(text.starts_with("missing      fuse-bystander "), "{text}");
    assert!(
        text.contains("2 environments, 0 VMs of others left alone, 1 things to do"),
        "{text}"
    );
    let refused = reconcile(&[]).await.unwrap();
    assert!(
        !refused.status.success(),
        "it has to be said that it is a preview"
    );
    let again = reconcile(&["--dry-run"]).await.unwrap();
    assert_eq!(
        String::from_utf8(again.stdout).unwrap(),
        text,
        "nothing was done"
    );
}
