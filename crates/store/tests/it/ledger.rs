//! The audit log read back, dead letters, idempotency keys.

use fuse_model::{AuditEntry, AuditKind};
use fuse_store::{
    AuditFilter, DeadLetter, IdempotentKey, Inserted, NewEnvironment, Page, Store, StoredAnswer,
};
use serde_json::Map;
use tokio::task::JoinSet;

use crate::support::*;

contract! {
    the_audit_log_is_read_newest_first,
    a_dead_letter_is_updated_by_its_repeat,
    a_key_belongs_to_one_create,
    a_refused_create_leaves_its_key,
    equal_creates_at_once_make_one,
    an_older_schema_is_brought_up_to_date,
}

async fn the_audit_log_is_read_newest_first(db: Db) {
    let store = db.open().await;
    let entry = |n: usize| {
        let kind = match n % 2 {
            0 => AuditKind::HostCordoned,
            _ => AuditKind::AuthFailed,
        };
        AuditEntry::new(kind, format!("e{n}")).with("n", n)
    };
    for n in 0..7 {
        let entries = vec![entry(n)];
        store.audit_insert(entries).await.expect("writes");
    }
    let hosts = AuditFilter {
        entity_type: Some("host".to_owned()),
        ..AuditFilter::default()
    };
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = Page { after, limit: 3 };
        let listing = store.audit_list(&hosts, &page).await.expect("reads");
        seen.extend(listing.items);
        match listing.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let ids: Vec<&str> = seen.iter().map(|record| &*record.entity_id).collect();
    assert_eq!(ids, ["e6", "e4", "e2", "e0"]);
    assert_eq!(
        (&*seen[0].kind, &seen[0].payload["n"]),
        ("host.cordoned", &6.into())
    );

    let filter = AuditFilter {
        entity_id: Some("e3".to_owned()),
        kind: Some("auth.failed".to_owned()),
        since: Some(seen[3].at),
        until: Some(seen[0].at + std::time::Duration::from_secs(1)),
        ..AuditFilter::default()
    };
    let page = Page {
        after: None,
        limit: 10,
    };
    let found = store.audit_list(&filter, &page).await.expect("reads").items;
    assert_eq!(found.len(), 1);
    let never = AuditFilter {
        until: Some(seen[3].at),
        ..hosts
    };
    assert!(
        store
            .audit_list(&never, &page)
            .await
            .expect("reads")
            .items
            .is_empty()
    );
}

async fn a_dead_letter_is_updated_by_its_repeat(db: Db) {
    let store = db.open().await;
    let letter = |kind: &str, entity: &str, retry_count| DeadLetter {
        kind: kind.to_owned(),
        entity_id: entity.to_owned(),
        task_id: String::new(),
        reason: "why".to_owned(),
        retry_count,
        payload: Map::new(),
    };
    for letter in [
        letter("stuck_task", "a", 0),
        letter("orphan_destroy", "b", 5),
        letter("orphan_destroy", "a", 5),
    ] {
        store.dead_letter_put(letter).await.expect("writes");
    }
    let all = |after| {
        let store = store.clone();
        async move {
            let page = Page { after, limit: 2 };
            store.dead_letter_list(&page).await.expect("reads")
        }
    };
    let first = all(None).await;
    let ids: Vec<&str> = first.items.iter().map(|r| &*r.letter.entity_id).collect();
    assert_eq!(ids, ["a", "b"]);
    let before = first.items[1].clone();
    let rest = all(first.next).await;
    assert_eq!((rest.items.len(), rest.next), (1, None));
    assert_eq!(rest.items[0].letter.kind, "stuck_task");

    let again = letter("orphan_destroy", "b", 6);
    store.dead_letter_put(again).await.expect("writes");
    let after = all(None).await.items.remove(1);
    assert_eq!(after.letter.retry_count, 6);
    assert_eq!(after.first_seen_at, before.first_seen_at);
    assert!(after.last_seen_at >= before.last_seen_at);
}

fn keyed(task: &str, key: &str, digest: u8) -> NewEnvironment {
    NewEnvironment {
        idempotency: Some(IdempotentKey {
            key: key.to_owned(),
            fingerprint: [digest; 32],
        }),
        ..new_environment(task, 1, &[])
    }
}

async fn insert(store: &Store, new: NewEnvironment) -> Inserted {
    store
        .environment_insert_and_reserve(new)
        .await
        .expect("inserts")
}

async fn a_key_belongs_to_one_create(db: Db) {
    let store = db.open().await;
    assert_eq!(store.idempotency_get("", "k").await.expect("reads"), None);
    assert!(matches!(
        insert(&store, keyed("a", "k", 1)).await,
        Inserted::Created(_)
    ));
    assert_eq!(insert(&store, keyed("b", "k", 2)).await, Inserted::KeyTaken);
    assert_eq!(get(&store, &id("b")).await, None);
    let found = store
        .idempotency_get("", "k")
        .await
        .expect("reads")
        .expect("is");
    assert_eq!(
        (found.fingerprint, &found.environment_id),
        ([1; 32], &id("a"))
    );
    assert_eq!(found.answer, None);
    // Keys are a tenant's own.
    assert_eq!(
        store.idempotency_get("ak_1", "k").await.expect("reads"),
        None
    );

    let answer = |status| StoredAnswer {
        status,
        body: "{}".to_owned(),
    };
    for status in [201, 500] {
        store
            .idempotency_answer("", "k", answer(status))
            .await
            .expect("writes");
    }
    let found = store
        .idempotency_get("", "k")
        .await
        .expect("reads")
        .expect("is");
    assert_eq!(found.answer, Some(answer(201)));
    assert_eq!(store.idempotency_prune(10).await.expect("writes"), 0);
}

async fn a_refused_create_leaves_its_key(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 1, 1).await;
    let mut big = keyed("a", "k", 1);
    big.candidates = vec![host_id("h")];
    big.spec = spec(2);
    big.charge = big.spec.resources();
    assert_eq!(insert(&store, big).await, Inserted::NoCapacity);
    assert_eq!(store.idempotency_get("", "k").await.expect("reads"), None);
    insert(&store, new_environment("t", 1, &[])).await;
    assert_eq!(
        insert(&store, keyed("t", "k", 1)).await,
        Inserted::TaskAssigned(id("t"))
    );
    assert_eq!(store.idempotency_get("", "k").await.expect("reads"), None);
}

async fn equal_creates_at_once_make_one(db: Db) {
    let store = db.open().await;
    let mut creates = JoinSet::new();
    for n in 0..32u8 {
        let store = store.clone();
        // Half of them are the same request, the others use its key for something else.
        let task = if n % 2 == 0 {
            "a".to_owned()
        } else {
            format!("b{n}")
        };
        creates.spawn(async move { insert(&store, keyed(&task, "k", n % 2)).await });
    }
    let outcomes = creates.join_all().await;
    let made = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Inserted::Created(_)))
        .count();
    assert_eq!(made, 1);
    assert_eq!(all_environments(&store).await.len(), 1);
}

async fn an_older_schema_is_brought_up_to_date(db: Db) {
    let Some(server) = &db.server else { return };
    let url = db.url().expect("has one");
    let store = db.open().await;
    let made = create(&store, "t", 1, &[]).await;
    store.close().await;
    for statement in [
        "DROP TABLE dead_letters",
        "DROP TABLE idempotency_keys",
        "DELETE FROM schema_migrations WHERE name = '0002_dead_letters_idempotency'",
    ] {
        server.query(url, statement).expect("goes back");
    }
    let store = db.open().await;
    assert_eq!(get(&store, &made.id).await, Some(made));
    assert!(matches!(
        insert(&store, keyed("a", "k", 1)).await,
        Inserted::Created(_)
    ));
}
