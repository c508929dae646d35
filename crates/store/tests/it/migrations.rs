//! From every earlier version of the schema to this one, with what a store of that
//! version had in it.
//!
//! `fixtures/<migration>.sql` holds the rows of a store whose newest migration that was;
//! the tables are those of the migrations up to it, which never change. To make the one
//! that a new migration needs: `FUSE_WRITE_FIXTURE=1 cargo test -p fuse-store --test it
//! migrations`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use fuse_model::{Redacted, State, TaskLog, TaskOutput, TaskStatus, Trigger};
use fuse_store::{
    AgentToken, Change, IdempotentKey, Page, Removal, Store, StoredAnswer, TaskChange,
};
use fuse_testkit::postgres::Durability;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

use crate::support::*;

const WRITE: &str = "FUSE_WRITE_FIXTURE";
/// Rows of processes, not of the fleet.
const TRANSIENT: [&str; 2] = ["replicas", "leases"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of all migrations, in order.
fn versions() -> Vec<String> {
    let files = std::fs::read_dir(root().join("migrations")).expect("lists");
    let name = |path: PathBuf| path.file_stem().expect("has a name").display().to_string();
    let mut names: Vec<String> = files
        .map(|file| name(file.expect("lists").path()))
        .collect();
    names.sort();
    names
}

fn fixture(version: &str) -> PathBuf {
    root().join(format!("tests/it/fixtures/{version}.sql"))
}

/// What makes a database as `version` left it, for either engine.
fn database_of(version: &str) -> String {
    let mut sql = "CREATE TABLE schema_migrations \
         (name TEXT NOT NULL PRIMARY KEY, digest TEXT NOT NULL, applied_at BIGINT NOT NULL);\n"
        .to_owned();
    for name in versions().iter().filter(|name| name.as_str() <= version) {
        let path = root().join(format!("migrations/{name}.sql"));
        sql += &std::fs::read_to_string(path).expect("reads");
    }
    sql + &std::fs::read_to_string(fixture(version)).expect("reads")
}

#[tokio::test]
async fn every_version_has_a_fixture() {
    let versions = versions();
    let newest = versions.last().expect("there are some");
    if std::env::var_os(WRITE).is_some() {
        let text = make_fixture().await;
        std::fs::write(fixture(newest), text).expect("writes");
    }
    for version in &versions {
        let path = fixture(version);
        assert!(
            path.is_file(),
            "{} is missing: run this test with {WRITE}=1",
            path.display()
        );
    }
}

#[tokio::test]
async fn sqlite_comes_from_every_version() {
    for version in versions() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("fuse.db");
        let mut conn = connect(&path).await;
        let sql = sqlx::raw_sql(AssertSqlSafe(database_of(&version)));
        sql.execute(&mut conn).await.expect("makes the database");
        conn.close().await.expect("closes");
        let url = format!("sqlite://{}", path.display());
        has_everything(&url, &version).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_comes_from_every_version() {
    let test = "store::migrations::postgres_comes_from_every_version";
    let Some(server) = start_postgres(test, Durability::Careless) else {
        return;
    };
    for version in versions() {
        let url = server.database().expect("makes a database");
        let sql = as_postgres(&database_of(&version));
        server.query(&url, &sql).expect("makes the database");
        has_everything(&url, &version).await;
    }
}

/// A release before this one may still write while another replica has migrated already: what it
/// writes fits, and the next release understands it.
#[tokio::test]
async fn sqlite_takes_what_earlier_releases_write() {
    for version in versions() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("fuse.db");
        let url = format!("sqlite://{}", path.display());
        let store = Store::open(Some(&url), vault()).await.expect("opens");
        store.close().await;
        let mut conn = connect(&path).await;
        let sql = sqlx::raw_sql(AssertSqlSafe(writes_of(&version)));
        let written = sql.execute(&mut conn).await;
        written.unwrap_or_else(|error| panic!("{version} cannot write any more: {error}"));
        conn.close().await.expect("closes");
        has_everything(&url, &version).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_takes_what_earlier_releases_write() {
    let test = "store::migrations::postgres_takes_what_earlier_releases_write";
    let Some(server) = start_postgres(test, Durability::Careless) else {
        return;
    };
    for version in versions() {
        let url = server.database().expect("makes a database");
        let store = Store::open(Some(&url), vault()).await.expect("opens");
        store.close().await;
        let sql = as_postgres(&writes_of(&version));
        let written = server.query(&url, &sql);
        written.unwrap_or_else(|error| panic!("{version} cannot write any more: {error}"));
        has_everything(&url, &version).await;
    }
}

/// The statements of a fixture but for those about the schema itself.
fn writes_of(version: &str) -> String {
    let text = std::fs::read_to_string(fixture(version)).expect("reads");
    let lines = text.lines();
    let rows = lines.filter(|line| !line.contains(" schema_migrations"));
    rows.fold(String::new(), |sql, line| sql + line + "\n")
}

/// The fixtures write bytes as SQLite does.
fn as_postgres(sql: &str) -> String {
    sql.replace("(X'", "('\\x").replace(", X'", ", '\\x")
}

/// What keeps the two tests above true for statements that no fixture has: nothing is renamed,
/// dropped or tightened, and a column that an earlier release does not write has a value.
#[test]
fn migrations_only_add() {
    for version in versions() {
        let path = root().join(format!("migrations/{version}.sql"));
        let text = std::fs::read_to_string(path).expect("reads");
        let code: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
            .collect();
        for statement in code.join(" ").split(';').map(str::trim) {
            let words: Vec<_> = statement.split_whitespace().collect();
            let adds = match words[..] {
                [] | ["CREATE", "TABLE" | "INDEX", ..] | ["UPDATE", ..] => true,
                // On tables of the same migration; the first made all of its own.
                ["CREATE", "UNIQUE", "INDEX", ..] | ["INSERT", ..] => version.starts_with("0001_"),
                ["ALTER", "TABLE", _, "ADD", "COLUMN", ..] => {
                    words.contains(&"DEFAULT") || !statement.contains("NOT NULL")
                }
                _ => false,
            };
            assert!(adds, "{version} does more than add: {statement}");
        }
    }
}

async fn connect(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path);
    let options = options.create_if_missing(true);
    options.connect().await.expect("connects")
}

/// A store with something of everything.
async fn fill(store: &Store) {
    add_host(store, "h", 100, 100).await;
    let mut new = new_environment("up", 2, &["h"]);
    new.secrets = Redacted::new(BTreeMap::from([("K".to_owned(), "it's".to_owned())]));
    new.idempotency = Some(IdempotentKey {
        key: "key-1".to_owned(),
        fingerprint: [3; 32],
    });
    let up = created(
        store
            .environment_insert_and_reserve(new)
            .await
            .expect("inserts"),
    );
    let change = Change {
        guest_token: Some(Redacted::new("guest-token".to_owned())),
        guest_version: Some("1.2.3".to_owned()),
        ..running()
    };
    let started = store.environment_transition(&up, Trigger::Started, change);
    updated(started.await.expect("starts"));
    let answer = StoredAnswer {
        status: 201,
        body: "{}".to_owned(),
    };
    store
        .idempotency_answer("", "key-1", answer)
        .await
        .expect("keeps");
    let output = TaskOutput {
        exit_code: 3,
        stdout: "out".to_owned(),
        stderr: "err".to_owned(),
    };
    let task = fuse_model::TaskId::new("up");
    store
        .task_set_log(&task, &id("up"), TaskLog::default(), Some(output))
        .await
        .expect("keeps");
    create(store, "booting", 1, &["h"]).await;
    let gone = create(store, "gone", 1, &["h"]).await;
    let removal = Removal {
        task: TaskChange::Failed("boot failed".to_owned()),
        error: "boot failed".to_owned(),
        ..Removal::default()
    };
    let removed = store.environment_remove(&gone, Trigger::CreateFailed, removal);
    updated(removed.await.expect("removes"));
}

async fn make_fixture() -> String {
    let dir = tempfile::tempdir().expect("makes a directory");
    let path = dir.path().join("fuse.db");
    let url = format!("sqlite://{}", path.display());
    let store = Store::open(Some(&url), vault()).await.expect("opens");
    fill(&store).await;
    store.close().await;
    let mut conn = connect(&path).await;
    let mut text = String::new();
    for table in names(
        &mut conn,
        "SELECT name FROM sqlite_master WHERE type = 'table'",
    )
    .await
    {
        if TRANSIENT.contains(&&*table) {
            continue;
        }
        let columns = format!("SELECT name FROM pragma_table_info('{table}')");
        let columns = names(&mut conn, &columns).await;
        let quoted: Vec<_> = columns
            .iter()
            .map(|name| format!("quote({name})"))
            .collect();
        let values = format!("SELECT {} FROM {table}", quoted.join(" || ', ' || "));
        let _infallible = writeln!(text, "DELETE FROM {table};");
        for row in names(&mut conn, &values).await {
            let columns = columns.join(", ");
            let _infallible = writeln!(text, "INSERT INTO {table} ({columns}) VALUES ({row});");
        }
    }
    text
}

async fn names(conn: &mut SqliteConnection, sql: &str) -> Vec<String> {
    let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
        .fetch_all(conn)
        .await;
    let rows = rows.expect("reads");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Opens a database of `version`, and finds what [`fill`] has put there.
async fn has_everything(url: &str, version: &str) {
    let store = Store::open(Some(url), vault()).await;
    let store = store.unwrap_or_else(|error| panic!("from {version}: {error:?}"));
    let up = get(&store, &id("up")).await.expect("is there");
    assert_eq!(
        (up.state, up.spec.cpus),
        (State::Running, 2),
        "from {version}"
    );
    assert_eq!(up.host_id, Some(host_id("h")));
    let secrets = store.environment_secrets(&up.id).await.expect("opens");
    assert_eq!(secrets.expect("are stored").expose()["K"], "it's");
    let token = store.environment_guest_token(&up.id).await.expect("opens");
    assert_eq!(token.expect("is stored").expose(), "guest-token");
    let token = store.host_token(&host_id("h")).await.expect("reads");
    assert!(matches!(token, Some(AgentToken::Known(_))));
    let task = task_of(&store, "gone").await;
    assert_eq!(
        (task.status, &*task.last_error),
        (TaskStatus::Failed, "boot failed")
    );
    let states: Vec<_> = all_events(&store)
        .await
        .iter()
        .map(|event| event.state)
        .collect();
    assert_eq!(states.len(), 5, "{states:?}");
    let page = Page {
        after: None,
        limit: 100,
    };
    let audit = store
        .audit_list(&fuse_store::AuditFilter::default(), &page)
        .await;
    assert!(!audit.expect("lists").items.is_empty());
    check_invariants(&store).await;

    // It goes on from there: capacity is taken and given back, places go up.
    create(&store, "new", 1, &["h"]).await;
    destroy(&store, &up).await;
    check_invariants(&store).await;
    store.close().await;
}
