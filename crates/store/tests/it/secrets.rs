//! Secrets at rest: sealed with a key, not kept without one.

use std::collections::BTreeMap;

use fuse_model::{Redacted, Trigger};
use fuse_store::{AgentToken, Change, Store, StoreError, Vault};

use crate::support::*;

const SECRET: &str = "a-very-secret-value";

contract! {
    secrets_come_back_with_the_key,
    without_a_key_none_are_kept,
    another_key_is_told_apart,
}

async fn with_secrets(store: &Store) {
    let mut registration = registration("h", 4, 4);
    registration.token = Redacted::new(SECRET.to_owned());
    store
        .host_upsert(registration, Vec::new())
        .await
        .expect("stores");
    let mut new = new_environment("t", 1, &["h"]);
    let map = BTreeMap::from([("API_KEY".to_owned(), SECRET.to_owned())]);
    new.secrets = Redacted::new(map);
    store
        .environment_insert_and_reserve(new)
        .await
        .expect("inserts");
    let seen = get(store, &id("t")).await.expect("is");
    let change = Change {
        guest_token: Some(Redacted::new(SECRET.to_owned())),
        ..running()
    };
    let result = store
        .environment_transition(&seen, Trigger::Started, change)
        .await;
    let seen = updated(result.expect("starts"));
    // A later change that says nothing of the token leaves it.
    updated(
        store
            .environment_update(&seen, Change::default())
            .await
            .expect("updates"),
    );
}

async fn secrets_come_back_with_the_key(db: Db) {
    let store = db.open().await;
    with_secrets(&store).await;
    let token = AgentToken::Known(Redacted::new(SECRET.to_owned()));
    assert_eq!(
        store.host_token(&host_id("h")).await.expect("reads"),
        Some(token)
    );
    assert_eq!(store.host_token(&host_id("x")).await.expect("reads"), None);
    let secrets = store
        .environment_secrets(&id("t"))
        .await
        .expect("reads")
        .expect("is");
    assert_eq!(secrets.expose()["API_KEY"], SECRET);
    let token = store
        .environment_guest_token(&id("t"))
        .await
        .expect("reads")
        .expect("is");
    assert_eq!(token.expose(), SECRET);
    assert_eq!(
        store.environment_secrets(&id("x")).await.expect("reads"),
        None
    );
    store.close().await;
    if let Some(path) = db.url().and_then(|url| url.strip_prefix("sqlite://")) {
        for file in [path.to_owned(), format!("{path}-wal")] {
            let bytes = std::fs::read(&file).unwrap_or_default();
            let found = bytes
                .windows(SECRET.len())
                .any(|part| part == SECRET.as_bytes());
            assert!(!found, "{file} has the secret");
        }
    }
}

async fn without_a_key_none_are_kept(db: Db) {
    let store = Store::open(db.url(), Vault::none()).await.expect("opens");
    with_secrets(&store).await;
    assert_eq!(
        store.environment_secrets(&id("t")).await.expect("reads"),
        None
    );
    assert_eq!(
        store
            .environment_guest_token(&id("t"))
            .await
            .expect("reads"),
        None
    );
    // The agent's token is needed to reach the host at all; it is kept as it is.
    let token = AgentToken::Known(Redacted::new(SECRET.to_owned()));
    assert_eq!(
        store.host_token(&host_id("h")).await.expect("reads"),
        Some(token)
    );
}

async fn another_key_is_told_apart(db: Db) {
    if db.url().is_none() {
        return;
    }
    let store = db.open().await;
    with_secrets(&store).await;
    store.close().await;
    let (old, new) = (Redacted::new([7; 32]), Redacted::new([8; 32]));
    let store = Store::open(db.url(), Vault::new(&new, None))
        .await
        .expect("opens");
    let token = store.host_token(&host_id("h")).await.expect("reads");
    assert_eq!(token, Some(AgentToken::Undecryptable));
    let secrets = store.environment_secrets(&id("t")).await;
    let error = secrets.expect_err("does not open");
    assert!(matches!(error, StoreError::Secret { .. }));
    assert!(!format!("{error:?} {error}").contains(SECRET));
    store.close().await;
    let store = Store::open(db.url(), Vault::new(&new, Some(&old)))
        .await
        .expect("opens");
    assert!(
        store
            .environment_secrets(&id("t"))
            .await
            .expect("opens")
            .is_some()
    );
}
