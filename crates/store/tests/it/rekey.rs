//! Another key: what is stored under the old one opens, and is sealed anew.

use std::collections::BTreeMap;

use fuse_model::{Redacted, Trigger};
use fuse_store::{AgentToken, Change, HostRegistration, KeyReport, Store, Vault};

use crate::support::*;

contract! {
    secrets_move_to_another_key,
    a_token_that_was_stored_without_a_key_is_sealed,
    replicas_go_on_writing_meanwhile,
}

fn key(byte: u8) -> Redacted<[u8; 32]> {
    Redacted::new([byte; 32])
}

/// A vault that seals with the first key and opens with the second one, too.
fn keys(current: u8, previous: Option<u8>) -> Vault {
    Vault::new(&key(current), previous.map(key).as_ref())
}

async fn open(db: &Db, vault: Vault) -> Store {
    Store::open(db.url(), vault).await.expect("opens")
}

/// A host with a token, and an environment with a guest token and secrets.
async fn fill(store: &Store, task: &str) {
    add_host(store, "h", 100, 100).await;
    let mut new = new_environment(task, 1, &["h"]);
    new.secrets = Redacted::new(BTreeMap::from([("K".to_owned(), "v".to_owned())]));
    let made = created(
        store
            .environment_insert_and_reserve(new)
            .await
            .expect("inserts"),
    );
    let change = Change {
        guest_token: Some(Redacted::new("guest-token".to_owned())),
        ..running()
    };
    let started = store.environment_transition(&made, Trigger::Started, change);
    updated(started.await.expect("starts"));
}

async fn is_readable(store: &Store, task: &str) -> bool {
    let token = store.environment_guest_token(&id(task)).await;
    let secrets = store.environment_secrets(&id(task)).await;
    let host = store.host_token(&host_id("h")).await.expect("reads");
    token.is_ok_and(|token| token.expect("is stored").expose() == "guest-token")
        && secrets.is_ok_and(|secrets| secrets.expect("are stored").expose()["K"] == "v")
        && matches!(host, Some(AgentToken::Known(_)))
}

async fn secrets_move_to_another_key(db: Db) {
    if db.url().is_none() {
        return;
    }
    let store = open(&db, keys(1, None)).await;
    fill(&store, "a").await;
    let report = store.key_report().await.expect("reads");
    assert_eq!((report.current, report.outdated), (3, 0));
    store.close().await;

    // Under another key nothing opens, and that is told by name.
    let store = open(&db, keys(2, None)).await;
    assert!(!is_readable(&store, "a").await);
    let report = store.key_report().await.expect("reads");
    let unreadable: Vec<_> = report.unreadable.iter().map(String::as_str).collect();
    assert_eq!(unreadable, ["environment fuse-a", "host h"]);
    assert_eq!(report.hosts, [host_id("h")]);
    let done = store.rekey().await.expect("runs");
    assert_eq!((done.rewritten, done.report), (0, report));
    store.close().await;
    let store = open(&db, Vault::none()).await;
    assert_eq!(store.key_report().await.expect("reads").unreadable.len(), 2);
    store.close().await;

    let store = open(&db, keys(2, Some(1))).await;
    assert!(is_readable(&store, "a").await);
    let report = store.key_report().await.expect("reads");
    assert_eq!((report.current, report.outdated), (0, 3));
    assert_eq!(store.rekey().await.expect("runs").rewritten, 3);
    // Again, as after an interruption: there is nothing left to do.
    let done = store.rekey().await.expect("runs");
    assert_eq!((done.rewritten, done.report.current), (0, 3));
    assert!(is_readable(&store, "a").await);
    store.close().await;

    let store = open(&db, keys(2, None)).await;
    assert!(is_readable(&store, "a").await);
    check_invariants(&store).await;
}

async fn a_token_that_was_stored_without_a_key_is_sealed(db: Db) {
    if db.url().is_none() {
        return;
    }
    let store = open(&db, Vault::none()).await;
    let host = registration("h", 1, 1);
    let HostRegistration { token, .. } = &host;
    let token = token.expose().clone();
    store.host_upsert(host, Vec::new()).await.expect("stores");
    store.close().await;
    let store = open(&db, keys(1, None)).await;
    let report = store.key_report().await.expect("reads");
    assert_eq!((report.current, report.outdated), (0, 1));
    assert_eq!(store.rekey().await.expect("runs").rewritten, 1);
    let report = store.key_report().await.expect("reads");
    let current = KeyReport {
        current: 1,
        ..KeyReport::default()
    };
    assert_eq!(report, current);
    let found = store.host_token(&host_id("h")).await.expect("reads");
    assert!(matches!(found, Some(AgentToken::Known(found)) if *found.expose() == token));
    store.close().await;
}

async fn replicas_go_on_writing_meanwhile(db: Db) {
    if db.server.is_none() {
        return;
    }
    let old = open(&db, keys(1, None)).await;
    for task in ["a", "b", "c"] {
        fill(&old, task).await;
    }
    let (first, second) = (
        open(&db, keys(2, Some(1))).await,
        open(&db, keys(2, Some(1))).await,
    );
    let ((), one, two) = tokio::join!(
        async {
            for n in 0..20 {
                fill(&first, &format!("new-{n}")).await;
            }
        },
        first.rekey(),
        second.rekey(),
    );
    // Each value was rewritten once, whoever did it; the host's may have been stored anew
    // before anybody came to it.
    let rewritten = one.expect("runs").rewritten + two.expect("runs").rewritten;
    assert!((6..=7).contains(&rewritten), "{rewritten}");
    let only_new = open(&db, keys(2, None)).await;
    let report = only_new.key_report().await.expect("reads");
    assert_eq!((report.current, report.outdated), (23 * 2 + 1, 0));
    assert!(report.unreadable.is_empty(), "{report:?}");
}
