//! Readers of the fleet's event stream, one at each replica, which go to the next one
//! whenever their connection ends and ask for what is newer than the last event.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fuse_testkit::until;
use tokio::task::JoinSet;

use super::fleet::Fleet;

const PAUSE: Duration = Duration::from_millis(50);
const CATCHES_UP_WITHIN: Duration = Duration::from_secs(30);

/// The ids of events, as they came.
type Seen = Arc<Mutex<Vec<String>>>;

/// See the module. They stop when dropped.
pub(super) struct Followers {
    seen: Vec<Seen>,
    _tasks: JoinSet<()>,
}

impl Followers {
    pub(super) fn start(fleet: &Arc<Fleet>) -> Self {
        let mut tasks = JoinSet::new();
        let mut seen = Vec::new();
        for replica in 0..fleet.replicas() {
            let mine = Seen::default();
            tasks.spawn(follow(fleet.clone(), replica, mine.clone()));
            seen.push(mine);
        }
        Self {
            seen,
            _tasks: tasks,
        }
    }

    /// Each of them was told everything since its first event, in order and once.
    pub(super) async fn saw_everything(&self, fleet: &Fleet) {
        let all = fleet.sql("SELECT id FROM witness_events ORDER BY seq");
        let all: Vec<String> = all.lines().map(str::to_owned).collect();
        for seen in &self.seen {
            let caught_up = || async {
                let last = seen.lock().unwrap().last().cloned();
                anyhow::ensure!(last.as_ref() == all.last(), "it is at {last:?}");
                Ok(())
            };
            let what = "a reader that was told the last event";
            until(what, CATCHES_UP_WITHIN, caught_up).await.unwrap();
            let seen = seen.lock().unwrap();
            let start = all.iter().position(|id| *id == seen[0]).unwrap();
            assert!(start < all.len() / 2, "it came too late to tell");
            assert_eq!(*seen, all[start..]);
        }
    }
}

async fn follow(fleet: Arc<Fleet>, mut replica: usize, seen: Seen) {
    loop {
        let last = seen.lock().unwrap().last().cloned();
        if let Ok(response) = fleet.open_events(replica, last.as_deref()).await {
            read(response, &seen).await;
        }
        replica += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads to the end of the connection, whole records only.
async fn read(mut response: reqwest::Response, seen: &Seen) {
    let mut text = String::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some(end) = text.find("\n\n") {
            let record: String = text.drain(..end + 2).collect();
            if let Some(id) = record
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("id: "))
            {
                seen.lock().unwrap().push(id.to_owned());
            }
        }
    }
}
