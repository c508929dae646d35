//! Environments: the use cases that make, move and end them, and reads.
//!
//! Every write is based on a record that the caller has read and is refused
//! when that has changed since; see [`Guarded`].

mod change;
mod cut_over;
mod health;
mod insert;
mod lease;
mod remove;

use fuse_model::{
    Environment, EnvironmentId, HostId, Operation, Redacted, ReplicaId, State, TaskId, Trigger,
    Version,
};
use jiff::{SignedDuration, Timestamp};
use sqlx::AssertSqlSafe;

use crate::presence::is_alive;
use crate::sql::{Bind, Columns, Row, binds, without_nul};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{
    Change, EnvironmentFilter, FailedCreate, Guarded, Inserted, Listing, MovedEnvironment,
    NewEnvironment, Page, Removal, SecretMap, Store, StoreError, VaultError,
};

/// What the vault binds secrets to, next to the environment's id.
pub(crate) const GUEST_TOKEN: &str = "environment-guest-token";
pub(crate) const SECRETS: &str = "environment-secrets";

macro_rules! select {
    ($rest:expr) => {
        concat!(
            "SELECT id, version, state, task_id, tenant, host_id, url, error, created_at, \
             updated_at, activity_at, op_kind, op_owner, op_expires_at, endpoints, spec, \
             boot_id, guest_version, health FROM environments ",
            $rest
        )
    };
}

impl Store {
    /// Stores an environment in `provisioning` with its task and first event,
    /// charges it to the first candidate that fits and gives this replica the
    /// operation that makes it.
    ///
    /// # Errors
    /// The database fails, or the secrets cannot be sealed.
    pub async fn environment_insert_and_reserve(
        &self,
        mut new: NewEnvironment,
    ) -> Result<Inserted, StoreError> {
        new.id = EnvironmentId::new(without_nul(new.id.into_string()));
        new.task_id = TaskId::new(without_nul(new.task_id.into_string()));
        let secrets = new.secrets.expose();
        let secrets = if secrets.is_empty() {
            None
        } else {
            let text = crate::sql::to_json("environments", "secrets", secrets)?;
            self.seal(SECRETS, &new.id, text.as_bytes())?
        };
        self.write(insert::Insert { new, secrets }).await
    }

    /// Records a create that found no host: the task is `failed`, and the stream
    /// of the id that it would have had gets a `failed` event.
    /// Answers `Some` when the task belongs to a tracked environment instead.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_insert_failed(
        &self,
        mut failed: FailedCreate,
    ) -> Result<Option<EnvironmentId>, StoreError> {
        failed.task_id = TaskId::new(without_nul(failed.task_id.into_string()));
        self.write(insert::InsertFailed(failed)).await
    }

    /// One environment.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_get(
        &self,
        id: &EnvironmentId,
    ) -> Result<Option<Environment>, StoreError> {
        let sql = select!("WHERE id = $1");
        let rows = self
            .read("read an environment", sql, binds![id.as_str()])
            .await?;
        rows.first().map(from_row).transpose()
    }

    /// A page of environments by id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_list(
        &self,
        filter: &EnvironmentFilter,
        page: &Page<EnvironmentId>,
    ) -> Result<Listing<Environment, EnvironmentId>, StoreError> {
        let (sql, values) = list_sql(filter, page);
        let rows = self
            .read("list environments", AssertSqlSafe(sql), values)
            .await?;
        let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        Ok(Listing::cut(items, page.limit, |item: &Environment| {
            item.id.clone()
        }))
    }

    /// Environments whose operation was interrupted: it expired, or the replica
    /// that did it is dead. At most `limit`, by id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_list_interrupted(
        &self,
        limit: u32,
    ) -> Result<Vec<Environment>, StoreError> {
        let sql = select!(concat!(
            "WHERE op_kind IS NOT NULL AND (op_expires_at <= $1 OR NOT ",
            is_alive!("environments.op_owner", "$2"),
            ") ORDER BY id LIMIT $3"
        ));
        let now = self.now();
        let values = binds![now, self.core().pulse.alive_since(now), limit];
        let rows = self
            .read("list interrupted operations", sql, values)
            .await?;
        rows.iter().map(from_row).collect()
    }

    /// Moves an environment on, based on `seen`. Writes an event if the state
    /// changes. Not for triggers that end it: those are [`Store::environment_remove`].
    ///
    /// # Errors
    /// The state does not allow the trigger, or the database fails.
    pub async fn environment_transition(
        &self,
        seen: &Environment,
        trigger: Trigger,
        change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        let to = change::next_stored(seen.state, trigger)?;
        self.change(seen, to, change).await
    }

    /// Changes an environment without moving it on, based on `seen`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_update(
        &self,
        seen: &Environment,
        change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        self.change(seen, seen.state, change).await
    }

    async fn change(
        &self,
        seen: &Environment,
        to: State,
        change: Change,
    ) -> Result<Guarded<Environment>, StoreError> {
        let write = self.prepare(seen, to, change)?;
        self.write(write).await
    }

    fn prepare(
        &self,
        seen: &Environment,
        to: State,
        change: Change,
    ) -> Result<change::Update, StoreError> {
        let token = match &change.guest_token {
            Some(token) => self.seal(GUEST_TOKEN, &seen.id, token.expose().as_bytes())?,
            None => None,
        };
        Ok(change::Update {
            seen: seen.clone(),
            to,
            change,
            token,
        })
    }

    /// Lets `target` take the place of `source`, in one transaction: the target runs and has
    /// the source's task and age from then on, and the source is `destroying`, by this
    /// replica. An answer other than `Updated` means that one of them has changed and that
    /// nothing was written. Neither change touches a task.
    ///
    /// # Errors
    /// The source does not run or the target is not being made, or the database fails.
    pub async fn environment_cut_over(
        &self,
        source: (&Environment, Change),
        target: (&Environment, Change),
    ) -> Result<Guarded<MovedEnvironment>, StoreError> {
        let (from, change) = source;
        let drained = change::next_stored(from.state, Trigger::DrainRequested)?;
        let to = change::next_stored(drained, Trigger::DestroyRequested)?;
        let source = self.prepare(from, to, change)?;
        let (record, change) = target;
        let to = change::next_stored(record.state, Trigger::Started)?;
        let target = self.prepare(record, to, change)?;
        self.write(cut_over::CutOver { source, target }).await
    }

    /// Ends an environment, based on `seen`: gives back its capacity, removes
    /// the record and writes the terminal event.
    ///
    /// # Errors
    /// The state does not allow the trigger, or the database fails.
    pub async fn environment_remove(
        &self,
        seen: &Environment,
        trigger: Trigger,
        removal: Removal,
    ) -> Result<Guarded<()>, StoreError> {
        let end = remove::next_terminal(seen.state, trigger)?;
        let remove = remove::Remove {
            id: seen.id.clone(),
            version: seen.version,
            url: seen.url.clone(),
            end,
            removal,
        };
        self.write(remove).await
    }

    /// Sets the activity clock, unless it is already later. One that is later by more than
    /// replicas disagree was set by a clock that has been put back since, and follows it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_touch(
        &self,
        id: &EnvironmentId,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.write(Touch { id: id.clone(), at }).await
    }

    /// The create request as it was given to the insert.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_request(
        &self,
        id: &EnvironmentId,
    ) -> Result<Option<String>, StoreError> {
        let sql = "SELECT request FROM environments WHERE id = $1";
        let rows = self
            .read("read a create request", sql, binds![id.as_str()])
            .await?;
        rows.first()
            .map(|row| row.columns("environments").text("request"))
            .transpose()
    }

    /// The secrets; `None` when none are stored.
    ///
    /// # Errors
    /// The database fails, or they do not open with the keys at hand.
    pub async fn environment_secrets(
        &self,
        id: &EnvironmentId,
    ) -> Result<Option<Redacted<SecretMap>>, StoreError> {
        let sql = "SELECT secrets FROM environments WHERE id = $1";
        let Some(plain) = self.opened(SECRETS, "secrets", sql, id).await? else {
            return Ok(None);
        };
        let map = serde_json::from_slice(&plain).map_err(|_| StoreError::Corrupt {
            table: "environments",
            column: "secrets",
            // The parser's own text could quote a secret.
            reason: "it is no map of strings".to_owned(),
        })?;
        Ok(Some(Redacted::new(map)))
    }

    /// The guest agent's token; `None` when none is stored.
    ///
    /// # Errors
    /// The database fails, or it does not open with the keys at hand.
    pub async fn environment_guest_token(
        &self,
        id: &EnvironmentId,
    ) -> Result<Option<Redacted<String>>, StoreError> {
        let sql = "SELECT guest_token FROM environments WHERE id = $1";
        let plain = self.opened(GUEST_TOKEN, "guest_token", sql, id).await?;
        let token = plain
            .map(String::from_utf8)
            .transpose()
            .map_err(|_| StoreError::Corrupt {
                table: "environments",
                column: "guest_token",
                reason: "it is no text".to_owned(),
            })?;
        Ok(token.map(Redacted::new))
    }

    /// Running environments that nobody is at work on, and whose guest got its credentials at
    /// `before` or earlier; the oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environments_to_renew(
        &self,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<EnvironmentId>, StoreError> {
        let sql = "SELECT id FROM environments WHERE state = 'running' AND op_kind IS NULL \
                   AND guest_token IS NOT NULL AND COALESCE(credentials_at, created_at) <= $1 \
                   ORDER BY COALESCE(credentials_at, created_at), id LIMIT $2";
        let binds = binds![before, i64::from(limit)];
        let rows = self.read("find old credentials", sql, binds).await?;
        rows.iter()
            .map(|row| Ok(EnvironmentId::new(row.columns("environments").text("id")?)))
            .collect()
    }

    /// Seals a secret of an environment; `None` without a key: then it is not kept.
    fn seal(
        &self,
        entity: &'static str,
        id: &EnvironmentId,
        plain: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self.vault().seal(entity, id.as_str(), plain) {
            Ok(blob) => Ok(Some(blob)),
            Err(VaultError::NoKey) => Ok(None),
            Err(source) => Err(secret_error(id, source)),
        }
    }

    async fn opened(
        &self,
        entity: &'static str,
        column: &'static str,
        sql: &'static str,
        id: &EnvironmentId,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let rows = self.read("read a secret", sql, binds![id.as_str()]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let Some(blob) = row.columns("environments").opt_bytes(column)? else {
            return Ok(None);
        };
        let plain = self.vault().open(entity, id.as_str(), &blob);
        plain.map(Some).map_err(|source| secret_error(id, source))
    }
}

fn secret_error(id: &EnvironmentId, source: VaultError) -> StoreError {
    StoreError::Secret {
        entity: "environment",
        id: id.to_string(),
        source,
    }
}

/// The statement of a listing: only the filters that are set, so that each
/// combination gets a plan of its own.
fn list_sql(filter: &EnvironmentFilter, page: &Page<EnvironmentId>) -> (String, Vec<Bind>) {
    let after = page.after.as_ref().map_or("", EnvironmentId::as_str);
    let mut sql = select!("WHERE id > $1").to_owned();
    let mut values = binds![after, i64::from(page.limit) + 1];
    let mut and = |condition: &str, value: &str| {
        values.push(Bind::from(value));
        sql.push_str(&condition.replace('?', &format!("${}", values.len())));
    };
    if let Some(task) = &filter.task_id {
        // By the task's key; and the task has left once teardown started.
        let condition = " AND state <> 'destroying' AND id = \
             (SELECT environment_id FROM tasks WHERE tasks.id = ? AND active = 1)";
        and(condition, task.as_str());
    }
    if let Some(state) = filter.state {
        and(" AND state = ?", state.as_str());
    }
    if let Some(host) = &filter.host_id {
        and(" AND host_id = ?", host.as_str());
    }
    if let Some(tenant) = &filter.tenant {
        and(" AND tenant = ?", tenant);
    }
    sql.push_str(" ORDER BY id LIMIT $2");
    (sql, values)
}

/// More than the clocks of replicas differ by, and than a write is late.
const DISAGREEMENT: SignedDuration = SignedDuration::from_secs(30);

struct Touch {
    id: EnvironmentId,
    at: Timestamp,
}

impl Write for Touch {
    type Out = ();
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE environments SET activity_at = $2 \
             WHERE id = $1 AND (activity_at < $2 OR activity_at > $3)";
        let impossible = self.at.checked_add(DISAGREEMENT).unwrap_or(self.at);
        let values = binds![self.id.as_str(), self.at, impossible];
        tx.execute("note activity", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

fn from_row(row: &Row) -> Result<Environment, StoreError> {
    let mut columns = row.columns("environments");
    let id = EnvironmentId::new(columns.text("id")?);
    let version = Version(columns.int("version")?);
    let state = columns.parsed("state")?;
    let task = TaskId::new(columns.text("task_id")?);
    Ok(Environment {
        id,
        version,
        state,
        task_id: (state != State::Destroying).then_some(task),
        tenant: columns.text("tenant")?,
        host_id: columns.opt_text("host_id")?.map(HostId::new),
        url: columns.text("url")?,
        error: columns.text("error")?,
        created_at: columns.time("created_at")?,
        updated_at: columns.time("updated_at")?,
        activity_at: columns.time("activity_at")?,
        operation: operation(&mut columns)?,
        endpoints: columns.json("endpoints")?,
        spec: columns.json("spec")?,
        boot_id: columns.text("boot_id")?,
        guest_version: columns.text("guest_version")?,
        probe: health::probe(&mut columns)?,
    })
}

/// Reads `op_kind, op_owner, op_expires_at`.
fn operation(columns: &mut Columns<'_>) -> Result<Option<Operation>, StoreError> {
    let kind = columns.opt_text("op_kind")?;
    let owner = columns.opt_text("op_owner")?;
    let expires_at = columns.opt_time("op_expires_at")?;
    let (Some(kind), Some(owner), Some(expires_at)) = (kind, owner, expires_at) else {
        return Ok(None);
    };
    Ok(Some(Operation {
        kind: kind
            .parse()
            .map_err(|error| columns.corrupt("op_kind", error))?,
        owner: ReplicaId::new(owner),
        expires_at,
    }))
}
