//! A process that is killed at any moment loses nothing that it was told is
//! done, and leaves no half of a transaction.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use fuse_store::Store;

use crate::support::*;

/// Names the database of the process to be killed; unset in the test itself.
const VICTIM: &str = "FUSE_STORE_CRASH_URL";
/// Acknowledged environments before the kill, in one round after another.
const ROUNDS: [usize; 4] = [1, 7, 40, 150];

#[test]
fn a_killed_process_keeps_what_it_acknowledged() {
    if let Ok(url) = std::env::var(VICTIM) {
        return work_until_killed(&url);
    }
    let db = Db::file();
    for (round, acknowledged) in ROUNDS.into_iter().enumerate() {
        let told = kill_after(db.url().expect("has one"), round, acknowledged);
        assert!(told.len() >= acknowledged, "the process ended early");
        block_on(async {
            let store = db.open().await;
            check_invariants(&store).await;
            for task in told {
                let found = store
                    .task_get(&fuse_model::TaskId::new(&task))
                    .await
                    .expect("reads");
                assert!(found.is_some(), "{task} was acknowledged and is gone");
            }
            store.close().await;
        });
    }
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().expect("builds");
    runtime.block_on(work);
}

/// Runs this test again as another process and kills it once it has said that
/// many environments are done. Answers all that it said.
fn kill_after(url: &str, round: usize, acknowledged: usize) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("has a path"))
        .args([
            "--exact",
            "crash::a_killed_process_keeps_what_it_acknowledged",
            "--nocapture",
        ])
        .env(VICTIM, format!("{round} {url}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let mut told = Vec::new();
    while told.len() < acknowledged
        && let Some(Ok(line)) = lines.next()
    {
        told.extend(done(&line));
    }
    child.kill().expect("kills");
    child.wait().expect("ends");
    // What it had written to the pipe before it was killed counts, too.
    told.extend(lines.map_while(Result::ok).filter_map(|line| done(&line)));
    told
}

fn say(task: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "DONE {task}").expect("prints");
    out.flush().expect("prints");
}

/// The task in a line that says that one is done.
fn done(line: &str) -> Option<String> {
    line.split_once("DONE ").map(|(_, task)| task.to_owned())
}

/// Creates and ends environments, several at a time, and says each one that the
/// store acknowledged.
fn work_until_killed(round_and_url: &str) {
    let (round, url) = round_and_url.split_once(' ').expect("has both");
    block_on(async {
        let store = Store::open(Some(url), vault()).await.expect("opens");
        add_host(&store, "h", 1_000_000, 1_000_000).await;
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..8 {
            let (store, round) = (store.clone(), round.to_owned());
            workers.spawn(async move {
                for n in 0.. {
                    let task = format!("r{round}-w{worker}-{n}");
                    let made = create(&store, &task, 1, &["h"]).await;
                    say(&task);
                    if n % 3 == 0 {
                        destroy(&store, &start(&store, &made).await).await;
                    }
                }
            });
        }
        workers.join_all().await;
    });
}
