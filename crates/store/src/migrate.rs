//! The schema, brought up to date at boot.
//!
//! Migrations are append-only: a name that was released never changes. Each
//! runs in one transaction that also records its name, in the order of names.
//! Two PostgreSQL replicas that start at once take turns by an advisory lock
//! that lives as long as the transaction.

use fuse_model::now;

use crate::sql::{Conn, binds};
use crate::{Engine, OpenError};

/// Every migration, in order.
const MIGRATIONS: &[(&str, &str)] = &[("0001_base", include_str!("../migrations/0001_base.sql"))];

/// The key of the advisory lock; any constant that is ours.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7310305820434786405)";

const CREATE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations \
     (name TEXT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL)";

/// Applies what is missing.
pub(crate) async fn run(conn: &mut Conn, engine: Engine) -> Result<(), OpenError> {
    // An error here usually means a database without any table yet; if it means
    // worse, the next statement says so.
    let applied = applied(conn).await.unwrap_or_default();
    if let Some(newer) = applied.iter().find(|name| !is_known(name)) {
        return Err(OpenError::Newer(newer.clone()));
    }
    for (name, sql) in MIGRATIONS {
        if applied.iter().any(|done| done == name) {
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

async fn applied(conn: &mut Conn) -> Result<Vec<String>, sqlx::Error> {
    let rows = conn
        .fetch(
            "SELECT name FROM schema_migrations ORDER BY name",
            Vec::new(),
        )
        .await?;
    let name = |row: &crate::sql::Row| row.columns("schema_migrations").text("name");
    rows.iter()
        .map(|row| name(row).map_err(|error| sqlx::Error::Decode(error.into())))
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
    if !applied(conn).await?.iter().any(|done| done == name) {
        conn.batch(sql).await?;
        let record = "INSERT INTO schema_migrations (name, applied_at) VALUES ($1, $2)";
        conn.execute(record, binds![name, now()]).await?;
        tracing::info!(migration = name, "schema migrated");
    }
    conn.batch("COMMIT").await
}
