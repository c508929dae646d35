//! API keys.

use fuse_model::ApiKeyId;
use fuse_store::ApiKey;
use jiff::SignedDuration;

use crate::support::*;

contract! {
    a_key_is_found_by_its_hash_until_the_end,
}

async fn a_key_is_found_by_its_hash_until_the_end(db: Db) {
    let store = db.open().await;
    let key = |n: u8| ApiKey {
        id: ApiKeyId::new(format!("ak_{n}")),
        hash: [n; 32],
        label: "ci".to_owned(),
        scopes: vec!["exec".to_owned()],
        created_at: store.now() + SignedDuration::from_secs(i64::from(n)),
        last_used_at: None,
        revoked_at: None,
    };
    let (old, new) = (key(1), key(2));
    store.api_key_insert(old.clone()).await.expect("inserts");
    store.api_key_insert(new.clone()).await.expect("inserts");
    assert_eq!(
        store.api_key_list().await.expect("lists"),
        [new.clone(), old.clone()]
    );
    assert_eq!(store.api_key_by_hash(&[3; 32]).await.expect("reads"), None);

    store.api_key_touch(&old).await.expect("writes");
    let used = store
        .api_key_by_hash(&old.hash)
        .await
        .expect("reads")
        .expect("is");
    assert!(used.last_used_at.is_some());
    store.api_key_touch(&used).await.expect("answers");
    assert_eq!(
        store.api_key_by_hash(&old.hash).await.expect("reads"),
        Some(used)
    );

    assert!(store.api_key_revoke(&old.id).await.expect("revokes"));
    let revoked = store
        .api_key_by_hash(&old.hash)
        .await
        .expect("reads")
        .expect("stays");
    assert!(store.api_key_revoke(&old.id).await.expect("answers"));
    assert_eq!(
        store.api_key_by_hash(&old.hash).await.expect("reads"),
        Some(revoked)
    );
    assert!(
        !store
            .api_key_revoke(&ApiKeyId::new("ak_x"))
            .await
            .expect("answers")
    );
    // Two keys of one hash would be one key.
    assert!(
        store
            .api_key_insert(ApiKey {
                id: ApiKeyId::new("ak_y"),
                ..new
            })
            .await
            .is_err()
    );
}
