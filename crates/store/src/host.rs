//! Hosts: registration, listing, and the charges that environments make to
//! them. Free figures live in the host's row, so that one guarded update both
//! checks and takes.

mod boots;
mod charge;
mod check;
mod row;

use fuse_model::{AuditEntry, Capacity, EnvironmentId, Evict, Host, HostId, HostState, Redacted};

use crate::sql::{binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{
    AgentToken, HostRegistration, HostRemoval, Listing, Page, Registered, Store, StoreError,
};

use row::{Inventory, from_row, select};

pub use boots::Breaker;
pub(crate) use charge::{bind_in_tx, charge_in_tx, credit_in_tx};

/// What the vault binds a host's token to, next to the host's id.
pub(crate) const TOKEN: &str = "host-token";

impl Store {
    /// Registers a host, or registers it anew: state, `created_at` and what its
    /// environments take are kept.
    ///
    /// # Errors
    /// The database fails, or the token cannot be sealed.
    pub async fn host_upsert(
        &self,
        host: HostRegistration,
        audit: Vec<AuditEntry>,
    ) -> Result<Registered, StoreError> {
        let token = host.token.expose().as_bytes();
        // Without a key the token is kept as it is: fit for development only.
        let sealed = self.vault().has_key();
        let token = if sealed {
            self.vault()
                .seal(TOKEN, host.id.as_str(), token)
                .map_err(|source| StoreError::Secret {
                    entity: "host",
                    id: host.id.to_string(),
                    source,
                })?
        } else {
            token.to_vec()
        };
        let upsert = Upsert {
            host,
            sealed,
            token,
            audit,
        };
        self.write(upsert).await
    }

    /// One host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_get(&self, id: &HostId) -> Result<Option<Host>, StoreError> {
        let sql = select!("WHERE h.id = $1");
        let rows = self.read("read a host", sql, binds![id.as_str()]).await?;
        Ok(self.with_bound_gpus(&rows).await?.pop())
    }

    /// A page of hosts by id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_list(
        &self,
        page: &Page<HostId>,
    ) -> Result<Listing<Host, HostId>, StoreError> {
        let sql = select!("WHERE h.id > $1 ORDER BY h.id LIMIT $2");
        let after = page.after.as_ref().map_or("", HostId::as_str);
        let limit = i64::from(page.limit) + 1;
        let rows = self.read("list hosts", sql, binds![after, limit]).await?;
        let hosts = self.with_bound_gpus(&rows).await?;
        Ok(Listing::cut(hosts, page.limit, |host: &Host| {
            host.id.clone()
        }))
    }

    /// All hosts, by id: what placement chooses from.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_list_all(&self) -> Result<Vec<Host>, StoreError> {
        let rows = self
            .read("list all hosts", select!("ORDER BY h.id"), Vec::new())
            .await?;
        self.with_bound_gpus(&rows).await
    }

    /// What the operator declared of a host's capacity: zero and empty mean "take what
    /// its agent says". `None` for an unknown host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_declared(&self, id: &HostId) -> Result<Option<Capacity>, StoreError> {
        let sql = "SELECT declared FROM hosts WHERE id = $1";
        let rows = self
            .read("read what a host was declared as", sql, binds![id.as_str()])
            .await?;
        rows.first()
            .map(|row| row.columns("hosts").json("declared"))
            .transpose()
    }

    /// The token of a host's agent; `None` for an unknown host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_token(&self, id: &HostId) -> Result<Option<AgentToken>, StoreError> {
        let sql = "SELECT token_sealed, token FROM hosts WHERE id = $1";
        let rows = self
            .read("read a host's token", sql, binds![id.as_str()])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut columns = row.columns("hosts");
        let sealed = columns.int("token_sealed")? == 1;
        let stored = columns.bytes("token")?;
        let plain = if sealed {
            self.vault().open(TOKEN, id.as_str(), &stored).ok()
        } else {
            Some(stored)
        };
        let token = plain.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(Some(token.map_or(AgentToken::Undecryptable, |token| {
            AgentToken::Known(Redacted::new(token))
        })))
    }

    /// Sets whether a host takes placements, and what is done with its environments when
    /// it is drained; `None` for an unknown host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_set_state(
        &self,
        id: &HostId,
        (state, evict): (HostState, Evict),
        audit: Vec<AuditEntry>,
    ) -> Result<Option<Host>, StoreError> {
        let set = SetState {
            id: id.clone(),
            state,
            evict,
            audit,
        };
        self.write(set).await
    }

    /// Sets what a host offers, as its agent was asked anew; `None` for an unknown host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_set_capacity(
        &self,
        id: &HostId,
        capacity: Capacity,
        check: fuse_model::AgentCheck,
        audit: Vec<AuditEntry>,
    ) -> Result<Option<Host>, StoreError> {
        let set = SetCapacity {
            id: id.clone(),
            capacity,
            check,
            audit,
        };
        self.write(set).await
    }

    /// Removes a host that no environment is assigned to.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_remove(
        &self,
        id: &HostId,
        audit: Vec<AuditEntry>,
    ) -> Result<HostRemoval, StoreError> {
        let remove = Remove {
            id: id.clone(),
            audit,
        };
        self.write(remove).await
    }
}

struct Upsert {
    host: HostRegistration,
    sealed: bool,
    token: Vec<u8>,
    audit: Vec<AuditEntry>,
}

impl Write for Upsert {
    type Out = Registered;
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Registered>, StoreError> {
        let host = &self.host;
        let sql = "INSERT INTO hosts (id, url, region, backend, labels, state, arch, gpu_kind, \
             cpus_total, cpus_allocated, ram_mb_total, ram_mb_allocated, storage_gb_total, \
             storage_gb_allocated, vms_total, vms_allocated, gpus_total, gpus_allocated, \
             last_seen, created_at, updated_at, token_sealed, token, declared, gpu_inventory) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, $10, 0, $11, 0, $12, 0, $13, 0, \
             $14, $14, $14, $15, $16, $17, $18) \
             ON CONFLICT (id) DO UPDATE SET url = excluded.url, region = excluded.region, \
             backend = excluded.backend, labels = excluded.labels, arch = excluded.arch, \
             gpu_kind = excluded.gpu_kind, cpus_total = excluded.cpus_total, \
             ram_mb_total = excluded.ram_mb_total, storage_gb_total = excluded.storage_gb_total, \
             vms_total = excluded.vms_total, gpus_total = excluded.gpus_total, \
             last_seen = excluded.last_seen, updated_at = excluded.updated_at, \
             token_sealed = excluded.token_sealed, token = excluded.token, \
             declared = excluded.declared, gpu_inventory = excluded.gpu_inventory \
             WHERE hosts.backend = excluded.backend OR hosts.vms_allocated = 0";
        let capacity = &host.capacity;
        let values = binds![
            host.id.as_str(),
            host.url.as_str(),
            host.region.as_str(),
            host.backend.as_str(),
            to_json("hosts", "labels", &host.labels)?,
            HostState::Active.as_str(),
            capacity.arch.map_or("", fuse_model::Arch::as_str),
            capacity.gpu_kind.as_str(),
            capacity.cpus,
            capacity.ram_mb,
            capacity.storage_gb,
            capacity.vm_count,
            capacity.gpus,
            tx.now,
            i64::from(self.sealed),
            self.token.clone(),
            to_json("hosts", "declared", &host.declared)?,
            Inventory::of(capacity).to_json()?
        ];
        if tx.execute("store a host", sql, values).await? == 0 {
            let (count, _) = assigned(tx, &host.id).await?;
            return Ok(Applied::Keep(Registered::BackendInUse(count)));
        }
        charge::recount_in_tx(tx, &host.id).await?;
        check::store_in_tx(tx, vec![(host.id.clone(), host.check.clone())]).await?;
        tx.effects.audit(&self.audit);
        match get_in_tx(tx, &host.id).await? {
            Some(host) => Ok(Applied::Keep(Registered::Stored(Box::new(host)))),
            None => Ok(Applied::Undo(Registered::BackendInUse(0))),
        }
    }
}

struct SetState {
    id: HostId,
    state: HostState,
    evict: Evict,
    audit: Vec<AuditEntry>,
}

impl Write for SetState {
    type Out = Option<Host>;
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let sql = "UPDATE hosts SET state = $2, evict = $3, updated_at = $4 WHERE id = $1";
        let values = binds![
            self.id.as_str(),
            self.state.as_str(),
            self.evict.as_str(),
            tx.now
        ];
        if tx.execute("set a host's state", sql, values).await? == 0 {
            return Ok(Applied::Keep(None));
        }
        tx.effects.audit(&self.audit);
        if self.state == HostState::Active {
            boots::forget_in_tx(tx, &self.id).await?;
        }
        Ok(Applied::Keep(get_in_tx(tx, &self.id).await?))
    }
}

/// New figures from the agent; who is registered stays.
struct SetCapacity {
    id: HostId,
    capacity: Capacity,
    check: fuse_model::AgentCheck,
    audit: Vec<AuditEntry>,
}

impl Write for SetCapacity {
    type Out = Option<Host>;
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let sql = "UPDATE hosts SET arch = $2, gpu_kind = $3, cpus_total = $4, \
             ram_mb_total = $5, storage_gb_total = $6, vms_total = $7, gpus_total = $8, \
             gpu_inventory = $9, updated_at = $10 WHERE id = $1";
        let capacity = &self.capacity;
        let values = binds![
            self.id.as_str(),
            capacity.arch.map_or("", fuse_model::Arch::as_str),
            capacity.gpu_kind.as_str(),
            capacity.cpus,
            capacity.ram_mb,
            capacity.storage_gb,
            capacity.vm_count,
            capacity.gpus,
            Inventory::of(capacity).to_json()?,
            tx.now
        ];
        if tx.execute("store a host's capacity", sql, values).await? == 0 {
            return Ok(Applied::Keep(None));
        }
        check::store_in_tx(tx, vec![(self.id.clone(), self.check.clone())]).await?;
        tx.effects.audit(&self.audit);
        Ok(Applied::Keep(get_in_tx(tx, &self.id).await?))
    }
}

struct Remove {
    id: HostId,
    audit: Vec<AuditEntry>,
}

impl Write for Remove {
    type Out = HostRemoval;
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<HostRemoval>, StoreError> {
        let sql = "DELETE FROM hosts WHERE id = $1 AND vms_allocated = 0";
        if tx
            .execute("remove a host", sql, binds![self.id.as_str()])
            .await?
            > 0
        {
            tx.effects.audit(&self.audit);
            return Ok(Applied::Keep(HostRemoval::Removed));
        }
        Ok(Applied::Keep(match assigned(tx, &self.id).await? {
            (count, Some(lowest)) => HostRemoval::Assigned { lowest, count },
            (_, None) => HostRemoval::Missing,
        }))
    }
}

/// How many environments are charged to the host, and the lowest of their ids.
async fn assigned(
    tx: &mut Tx<'_>,
    id: &HostId,
) -> Result<(u64, Option<EnvironmentId>), StoreError> {
    let sql = "SELECT COUNT(*), MIN(environment_id) FROM reservations WHERE host_id = $1";
    let rows = tx
        .fetch("count a host's environments", sql, binds![id.as_str()])
        .await?;
    let Some(row) = rows.first() else {
        return Ok((0, None));
    };
    let mut columns = row.columns("reservations");
    let count = columns.small("count")?;
    Ok((
        count,
        columns.opt_text("environment_id")?.map(EnvironmentId::new),
    ))
}

pub(crate) async fn get_in_tx(tx: &mut Tx<'_>, id: &HostId) -> Result<Option<Host>, StoreError> {
    let sql = select!("WHERE h.id = $1");
    let rows = tx.fetch("read a host", sql, binds![id.as_str()]).await?;
    let Some(mut host) = rows.first().map(from_row).transpose()? else {
        return Ok(None);
    };
    let bound = tx
        .fetch("read bound GPUs", row::BOUND_OF_ONE, binds![id.as_str()])
        .await?;
    row::add_bound(std::slice::from_mut(&mut host), &bound)?;
    Ok(Some(host))
}
