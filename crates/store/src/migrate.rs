//! The schema, brought up to date at boot.
//!
//! Migrations are append-only: a name that was released never changes. Each
//! runs in one transaction that also records its name and the digest of its
//! text, in the order of names: a database made by a development build whose
//! migration was still being written is refused, not half understood.
//! Two PostgreSQL replicas that start at once take turns by an advisory lock
//! that lives as long as the transaction.

use fuse_model::now;
use sha2::{Digest as _, Sha256};

use crate::sql::{Conn, binds};
use crate::{Engine, OpenError};

/// Every migration, in order.
const MIGRATIONS: &[(&str, &str)] = &[
    ("0001_base", include_str!("../migrations/0001_base.sql")),
    (
        "0002_dead_letters_idempotency",
        include_str!("../migrations/0002_dead_letters_idempotency.sql"),
    ),
    (
        "0003_step_events",
        include_str!("../migrations/0003_step_events.sql"),
    ),
    (
        "0004_snapshots_health",
        include_str!("../migrations/0004_snapshots_health.sql"),
    ),
    (
        "0005_gpus_liveness",
        include_str!("../migrations/0005_gpus_liveness.sql"),
    ),
    (
        "0006_owners_evict",
        include_str!("../migrations/0006_owners_evict.sql"),
    ),
    (
        "0007_task_logs",
        include_str!("../migrations/0007_task_logs.sql"),
    ),
    (
        "0008_artifacts",
        include_str!("../migrations/0008_artifacts.sql"),
    ),
    (
        "0009_guest_version",
        include_str!("../migrations/0009_guest_version.sql"),
    ),
    (
        "0010_credentials_at",
        include_str!("../migrations/0010_credentials_at.sql"),
    ),
];

/// The key of the advisory lock; any constant that is ours.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7310305820434786405)";

const CREATE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations \
     (name TEXT NOT NULL PRIMARY KEY, digest TEXT NOT NULL, applied_at BIGINT NOT NULL)";

/// A migration as the database remembers it.
struct Applied {
    name: String,
    digest: String,
}

/// Applies what is missing.
pub(crate) async fn run(conn: &mut Conn, engine: Engine) -> Result<(), OpenError> {
    // An error here usually means a database without any table yet; if it means
    // worse, the next statement says so.
    let applied = applied(conn).await.unwrap_or_default();
    if let Some(newer) = applied.iter().find(|done| !is_known(&done.name)) {
        return Err(OpenError::Newer(newer.name.clone()));
    }
    for (name, sql) in MIGRATIONS {
        if let Some(done) = applied.iter().find(|done| done.name == *name) {
            if done.digest != digest(sql) {
                return Err(OpenError::Changed(name));
            }
            continue;
        }
        if let Err(source) = apply(conn, engine, name, sql).await {
            // Best effort: the connection is given up anyway.
            if let Err(error) = conn.batch("ROLLBACK").await {
                tracing::debug!(%error, "rolling back a migration");
            }
            return Err(OpenError::Migrate { name, source });
        }
    }
    Ok(())
}

fn is_known(name: &str) -> bool {
    MIGRATIONS.iter().any(|(known, _)| *known == name)
}

fn digest(sql: &str) -> String {
    hex::encode(Sha256::digest(sql))
}

async fn applied(conn: &mut Conn) -> Result<Vec<Applied>, sqlx::Error> {
    let rows = conn
        .fetch(
            "SELECT name, digest FROM schema_migrations ORDER BY name",
            Vec::new(),
        )
        .await?;
    let read = |row: &crate::sql::Row| {
        let mut columns = row.columns("schema_migrations");
        Ok(Applied {
            name: columns.text("name")?,
            digest: columns.text("digest")?,
        })
    };
    rows.iter()
        .map(|row| read(row).map_err(|error: crate::StoreError| sqlx::Error::Decode(error.into())))
        .collect()
}

async fn apply(
    conn: &mut Conn,
    engine: Engine,
    name: &'static str,
    sql: &'static str,
) -> Result<(), sqlx::Error> {
    conn.batch("BEGIN").await?;
    if engine == Engine::Postgres {
        conn.batch(LOCK).await?;
    }
    conn.batch(CREATE).await?;
    // Another replica may have been first while we waited for the lock.
    if !applied(conn).await?.iter().any(|done| done.name == name) {
        conn.batch(sql).await?;
        let record = "INSERT INTO schema_migrations (name, digest, applied_at) VALUES ($1, $2, $3)";
        conn.execute(record, binds![name, digest(sql), now()])
            .await?;
        tracing::info!(migration = name, "schema migrated");
    }
    conn.batch("COMMIT").await
}
