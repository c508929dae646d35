//! The verdict of an environment's probe: a fact beside the record, which does not count
//! as a change of it.

use fuse_model::{AuditEntry, EnvironmentId, Health, Probe};

use crate::sql::{Columns, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

/// The column of a probe without a verdict.
const WAITING: &str = "null";

impl Store {
    /// Keeps the verdict of a probed environment.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_set_health(
        &self,
        id: &EnvironmentId,
        health: Health,
        audit: Vec<AuditEntry>,
    ) -> Result<(), StoreError> {
        let id = id.clone();
        self.write(SetHealth { id, health, audit }).await
    }
}

/// The column of a new environment.
pub(super) fn initial(has_probe: bool) -> &'static str {
    if has_probe { WAITING } else { "" }
}

/// Reads `health`.
pub(super) fn probe(columns: &mut Columns<'_>) -> Result<Probe, StoreError> {
    let text = columns.text("health")?;
    Ok(match text.as_str() {
        "" => Probe::None,
        WAITING => Probe::Waiting,
        verdict => {
            let health = serde_json::from_str(verdict);
            Probe::Verdict(health.map_err(|e| columns.corrupt("health", e))?)
        }
    })
}

struct SetHealth {
    id: EnvironmentId,
    health: Health,
    audit: Vec<AuditEntry>,
}

impl Write for SetHealth {
    type Out = ();
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE environments SET health = $2 WHERE id = $1 AND health <> ''";
        let health = to_json("environments", "health", &self.health)?;
        let changed = tx
            .execute("keep a verdict", sql, binds![self.id.as_str(), health])
            .await?;
        if changed > 0 {
            tx.effects.audit(&self.audit);
        }
        Ok(Applied::Keep(()))
    }
}
