//! The audit log. Most entries are written along with what they tell; none is ever
//! changed, and they go only by age.

use std::fmt::Write as _;

use fuse_model::AuditEntry;
use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use crate::sql::{Bind, Row, binds};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{AuditFilter, AuditRecord, Listing, Page, Store, StoreError};

impl Store {
    /// Writes entries that belong to no other write, such as a refused login.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audit_insert(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write(Insert(entries)).await
    }

    /// A page of the log, newest first; `page.after` is a place in it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audit_list(
        &self,
        filter: &AuditFilter,
        page: &Page<i64>,
    ) -> Result<Listing<AuditRecord, i64>, StoreError> {
        let (sql, values) = list_sql(filter, page);
        let rows = self
            .read("list audit entries", AssertSqlSafe(sql), values)
            .await?;
        let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        Ok(Listing::cut(items, page.limit, |item: &AuditRecord| {
            item.place
        }))
    }

    /// Forgets entries written before `before`, oldest first, at most `limit`. Answers
    /// how many were forgotten.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audit_prune(&self, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
        self.write(Prune { before, limit }).await
    }
}

fn list_sql(filter: &AuditFilter, page: &Page<i64>) -> (String, Vec<Bind>) {
    let mut sql = "SELECT seq, entity_type, entity_id, type, payload, at FROM audit_events \
         WHERE seq < $1"
        .to_owned();
    let mut values = binds![page.after.unwrap_or(i64::MAX)];
    let conditions = [
        (
            "entity_type =",
            filter.entity_type.as_deref().map(Bind::from),
        ),
        ("entity_id =", filter.entity_id.as_deref().map(Bind::from)),
        ("type =", filter.kind.as_deref().map(Bind::from)),
        ("at >=", filter.since.map(Bind::from)),
        ("at <", filter.until.map(Bind::from)),
    ];
    for (condition, value) in conditions {
        if let Some(value) = value {
            values.push(value);
            // Writing to a String cannot fail.
            let _infallible = write!(sql, " AND {condition} ${}", values.len());
        }
    }
    values.push(Bind::from(i64::from(page.limit) + 1));
    let _infallible = write!(sql, " ORDER BY seq DESC LIMIT ${}", values.len());
    (sql, values)
}

struct Insert(Vec<AuditEntry>);

impl Write for Insert {
    type Out = ();
    const ENTITY: &'static str = "audit";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        tx.effects.audit(&self.0);
        Ok(Applied::Keep(()))
    }
}

struct Prune {
    before: Timestamp,
    limit: u32,
}

impl Write for Prune {
    type Out = u64;
    const ENTITY: &'static str = "audit";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<u64>, StoreError> {
        // Places and times go up together, so that the oldest are found by the key.
        let sql = "DELETE FROM audit_events WHERE seq IN (SELECT seq FROM \
             (SELECT seq, at FROM audit_events ORDER BY seq LIMIT $2) oldest WHERE at < $1)";
        tx.execute("prune the audit log", sql, binds![self.before, self.limit])
            .await
            .map(Applied::Keep)
    }
}

fn from_row(row: &Row) -> Result<AuditRecord, StoreError> {
    let mut columns = row.columns("audit_events");
    Ok(AuditRecord {
        place: columns.int("seq")?,
        entity_type: columns.text("entity_type")?,
        entity_id: columns.text("entity_id")?,
        kind: columns.text("type")?,
        payload: columns.json("payload")?,
        at: columns.time("at")?,
    })
}
