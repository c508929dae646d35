//! Migrations and who may open a database.

use fuse_store::{Engine, OpenError, Store, Vault};
use fuse_testkit::postgres::Durability;

use crate::support::*;

contract! {
    a_store_opens_again_with_what_it_had,
    a_newer_schema_is_refused,
}

async fn a_store_opens_again_with_what_it_had(db: Db) {
    let store = db.open().await;
    store.ping().await.expect("answers");
    let made = create(&store, "t", 1, &[]).await;
    store.close().await;
    assert!(store.ping().await.is_err());
    assert!(
        store
            .environment_insert_and_reserve(new_environment("u", 1, &[]))
            .await
            .is_err()
    );
    if !store.engine().is_durable() {
        return;
    }
    let store = db.open().await;
    assert_eq!(get(&store, &made.id).await, Some(made));
    assert_eq!(all_events(&store).await.len(), 1);
}

async fn a_newer_schema_is_refused(db: Db) {
    let Some(server) = &db.server else { return };
    let url = db.url().expect("has one");
    db.open().await.close().await;
    server
        .query(
            url,
            "INSERT INTO schema_migrations VALUES ('9999_future', '', 0)",
        )
        .expect("writes");
    let error = Store::open(db.url(), Vault::none())
        .await
        .expect_err("is refused");
    assert!(matches!(error, OpenError::Newer(name) if name == "9999_future"));
    server
        .query(
            url,
            "DELETE FROM schema_migrations WHERE name = '9999_future'; \
             UPDATE schema_migrations SET digest = 'another'",
        )
        .expect("writes");
    let error = Store::open(db.url(), Vault::none())
        .await
        .expect_err("is refused");
    assert!(matches!(error, OpenError::Changed("0001_base")));
}

#[tokio::test]
async fn a_file_is_opened_by_one_process_at_a_time() {
    let db = Db::file();
    let store = db.open().await;
    assert_eq!(store.engine(), Engine::File);
    let error = Store::open(db.url(), vault())
        .await
        .expect_err("is refused");
    assert!(
        error
            .to_string()
            .contains(&format!("in use by process {}", std::process::id()))
    );
    store.close().await;
    drop(store);
    db.open().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_at_once_migrate_once() {
    let test = "store::schema::replicas_that_start_at_once_migrate_once";
    let Some(server) = start_postgres(test, Durability::Careless) else {
        return;
    };
    let db = Db::postgres(&server);
    let opened = tokio::join!(db.open(), db.open(), db.open(), db.open());
    assert_eq!(opened.0.fleet_id(), opened.3.fleet_id());
    let count = server.query(
        db.url().expect("has one"),
        "SELECT COUNT(*) FROM schema_migrations",
    );
    let migrations = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"));
    let migrations = migrations.expect("lists").count();
    assert_eq!(count.expect("counts"), migrations.to_string());
}

#[tokio::test]
async fn a_database_that_is_not_there_is_said_without_the_password() {
    let url = "postgres://fuse:hunter2@127.0.0.1:1/none";
    let error = Store::open(Some(url), Vault::none())
        .await
        .expect_err("fails");
    assert!(matches!(error, OpenError::Connect(_)));
    assert!(!format!("{error:?} {error}").contains("hunter2"));
}
