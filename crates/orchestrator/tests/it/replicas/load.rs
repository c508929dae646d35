//! Fifty clients that create more than there is room for and keep book of what they
//! were told.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use reqwest::Method;
use serde_json::json;
use tokio::{sync::watch, task::JoinSet};

use super::fleet::{Answer, Fleet};

const CLIENTS: usize = 50;
/// Environments that a client wants to have at a time: 300 in all, for room of 200.
const WANTED: usize = 6;
/// Pause before a full fleet, or a lost one, is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Which failures a test provokes. Any other one fails it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Faults {
    /// Connections are refused; nothing else.
    Refusals,
    /// Requests end without an answer.
    Lost,
    /// The store does not answer.
    Store,
}

/// What clients know in the end, by environment.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Acknowledged creates that nobody destroyed.
    pub(super) alive: BTreeSet<String>,
    /// Acknowledged destroys, and acknowledged failures.
    pub(super) gone: BTreeSet<String>,
    /// Nobody said how it ended.
    pub(super) unsure: BTreeSet<String>,
}

/// Counts the acknowledged requests, for those who break things in the middle.
pub(super) type Progress = watch::Sender<usize>;

/// Creates `tasks` environments per client and destroys all but the last of them.
pub(super) async fn run(
    fleet: &Arc<Fleet>,
    faults: Faults,
    tasks: usize,
    progress: Progress,
) -> Book {
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        let client = Client {
            fleet: fleet.clone(),
            faults,
            index,
            asked: index,
            mine: VecDeque::new(),
            book: Book::default(),
            progress: progress.clone(),
        };
        clients.spawn(client.run(tasks));
    }
    // With the last client the last sender goes, and nobody waits for progress in vain.
    drop(progress);
    let mut all = Book::default();
    for book in clients.join_all().await {
        all.alive.extend(book.alive);
        all.gone.extend(book.gone);
        all.unsure.extend(book.unsure);
    }
    all
}

struct Client {
    fleet: Arc<Fleet>,
    faults: Faults,
    index: usize,
    /// Requests so far; decides which replica is next.
    asked: usize,
    mine: VecDeque<String>,
    book: Book,
    progress: Progress,
}

enum Created {
    Running,
    Full,
    Failed,
    Unsure,
}

impl Client {
    async fn run(mut self, tasks: usize) -> Book {
        for n in 0..tasks {
            let task = format!("c{}-{n}", self.index);
            if self.mine.len() >= WANTED {
                self.destroy_oldest().await;
            }
            self.create(&task).await;
        }
        while self.mine.len() > 1 {
            self.destroy_oldest().await;
        }
        self.book.alive.extend(self.mine);
        self.book
    }

    async fn create(&mut self, task: &str) {
        let id = format!("fuse-{task}");
        loop {
            match self.try_create(task).await {
                Created::Running => {
                    self.mine.push_back(id);
                    self.progress.send_modify(|count| *count += 1);
                    return;
                }
                Created::Failed => {
                    self.book.gone.insert(id);
                    return;
                }
                Created::Unsure => {
                    self.book.unsure.insert(id);
                    return;
                }
                Created::Full if self.mine.is_empty() => tokio::time::sleep(PAUSE).await,
                Created::Full => self.destroy_oldest().await,
            }
        }
    }

    /// Every other client sends a key and asks again until it is told how it ended.
    async fn try_create(&mut self, task: &str) -> Created {
        let key = self.index.is_multiple_of(2).then(|| format!("key-{task}"));
        let spec = json!({"cpus": 1, "ram_mb": 256, "storage_gb": 1});
        let body = json!({"task_id": task, "spec": spec});
        loop {
            let answer = self.call(
                Method::POST,
                "/v1/environments",
                Some(&body),
                key.as_deref(),
            );
            let Some(answer) = answer.await else {
                if key.is_none() {
                    return Created::Unsure;
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            return match answer.status {
                201 => {
                    assert_eq!(answer.body["state"], "running", "{answer:?}");
                    Created::Running
                }
                503 if is_full(&answer) => Created::Full,
                // Its replica died in the middle, and another one undid it.
                500 if self.faults != Faults::Refusals && answer.message() == INTERRUPTED => {
                    Created::Failed
                }
                _ => panic!("create {task}: {answer:?}"),
            };
        }
    }

    async fn destroy_oldest(&mut self) {
        let Some(id) = self.mine.pop_front() else {
            return;
        };
        let path = format!("/v1/environments/{id}");
        match self.call(Method::DELETE, &path, None, None).await {
            None => self.book.unsure.insert(id),
            Some(answer) => {
                assert_eq!(answer.status, 204, "destroy {id}: {answer:?}");
                self.progress.send_modify(|count| *count += 1);
                self.book.gone.insert(id)
            }
        };
    }

    /// One request to the next replica; `None` when nobody knows what became of it.
    async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
        key: Option<&str>,
    ) -> Option<Answer> {
        loop {
            self.asked += 1;
            let answer = self
                .fleet
                .call(self.asked, method.clone(), path, body, key)
                .await;
            match answer {
                Ok(answer) if is_outage(&answer) => {
                    assert_eq!(self.faults, Faults::Store, "{method} {path}: {answer:?}");
                    tokio::time::sleep(PAUSE).await;
                    return None;
                }
                Ok(answer) => return Some(answer),
                // Nothing was sent, so that the next one may be asked.
                Err(error) if error.is_connect() && self.faults != Faults::Store => {}
                Err(error) => {
                    assert_eq!(self.faults, Faults::Lost, "{method} {path}: {error:?}");
                    return None;
                }
            }
        }
    }
}

const INTERRUPTED: &str = "provisioning interrupted by orchestrator crash";

fn is_full(answer: &Answer) -> bool {
    answer.message().contains("no host has sufficient capacity")
}

fn is_outage(answer: &Answer) -> bool {
    answer.status == 503
        && answer.message() == "the state store does not answer, try again in a moment"
}
