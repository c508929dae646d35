//! Dead letters: what the fleet gave up on. They are for people; nothing reads them to
//! decide anything.

use crate::sql::{Row, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{DeadLetter, DeadLetterRecord, Listing, Page, Store, StoreError};

impl Store {
    /// Notes that something was given up on; a repeat keeps the time of the first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn dead_letter_put(&self, letter: DeadLetter) -> Result<(), StoreError> {
        self.write(Put(letter)).await
    }

    /// A page of dead letters by kind and entity.
    ///
    /// # Errors
    /// The database fails.
    pub async fn dead_letter_list(
        &self,
        page: &Page<(String, String)>,
    ) -> Result<Listing<DeadLetterRecord, (String, String)>, StoreError> {
        let sql = "SELECT kind, entity_id, task_id, reason, retry_count, payload, \
             first_seen_at, last_seen_at FROM dead_letters \
             WHERE (kind, entity_id) > ($1, $2) ORDER BY kind, entity_id LIMIT $3";
        let (kind, entity) = page.after.clone().unwrap_or_default();
        let values = binds![kind, entity, i64::from(page.limit) + 1];
        let rows = self.read("list dead letters", sql, values).await?;
        let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        Ok(Listing::cut(
            items,
            page.limit,
            |item: &DeadLetterRecord| (item.letter.kind.clone(), item.letter.entity_id.clone()),
        ))
    }
}

struct Put(DeadLetter);

impl Write for Put {
    type Out = ();
    const ENTITY: &'static str = "dead_letter";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let letter = &self.0;
        let sql = "INSERT INTO dead_letters \
             (kind, entity_id, task_id, reason, retry_count, payload, first_seen_at, last_seen_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $7) \
             ON CONFLICT (kind, entity_id) DO UPDATE SET task_id = excluded.task_id, \
             reason = excluded.reason, retry_count = excluded.retry_count, \
             payload = excluded.payload, last_seen_at = excluded.last_seen_at";
        let values = binds![
            letter.kind.as_str(),
            letter.entity_id.as_str(),
            letter.task_id.as_str(),
            letter.reason.as_str(),
            letter.retry_count,
            to_json("dead_letters", "payload", &letter.payload)?,
            tx.now
        ];
        tx.execute("write a dead letter", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

fn from_row(row: &Row) -> Result<DeadLetterRecord, StoreError> {
    let mut columns = row.columns("dead_letters");
    Ok(DeadLetterRecord {
        letter: DeadLetter {
            kind: columns.text("kind")?,
            entity_id: columns.text("entity_id")?,
            task_id: columns.text("task_id")?,
            reason: columns.text("reason")?,
            retry_count: columns.small("retry_count")?,
            payload: columns.json("payload")?,
        },
        first_seen_at: columns.time("first_seen_at")?,
        last_seen_at: columns.time("last_seen_at")?,
    })
}
