//! A host's row, with what checks and boots say about it and which GPU units are bound.

use std::collections::BTreeMap;

use fuse_model::{
    AgentCheck, Allocated, Capacity, FailedBoots, GpuDevice, Host, HostId, MigInstance,
};
use serde::{Deserialize, Serialize};

use crate::sql::{Columns, Row, binds, to_json};
use crate::{Store, StoreError};

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT h.id, h.url, h.region, h.backend, h.labels, h.state, h.evict, h.arch, h.gpu_kind, \
             h.gpu_inventory, h.cpus_total, h.cpus_allocated, h.ram_mb_total, \
             h.ram_mb_allocated, h.storage_gb_total, h.storage_gb_allocated, h.vms_total, \
             h.vms_allocated, h.gpus_total, h.gpus_allocated, h.last_seen, h.created_at, \
             h.updated_at, c.checked_at, c.changed_at, c.reachable, c.error, c.version, \
             c.guests, c.disk_free_gb, b.count, b.last_error, b.quarantined_at, b.retry_at, \
             b.retries FROM hosts h LEFT JOIN host_checks c ON c.host_id = h.id \
             LEFT JOIN host_failed_boots b ON b.host_id = h.id ",
            $rest
        )
    };
}
pub(super) use select;

/// GPU units of environments, of one host.
pub(super) const BOUND_OF_ONE: &str = "SELECT host_id, gpu_profile, mig_count, gpu_uuids \
     FROM reservations WHERE (gpus > 0 OR mig_count > 0) AND host_id = $1";

/// The same, of the hosts from `$1` to `$2`.
const BOUND_OF_MANY: &str = "SELECT host_id, gpu_profile, mig_count, gpu_uuids \
     FROM reservations WHERE (gpus > 0 OR mig_count > 0) AND host_id >= $1 AND host_id <= $2";

/// What of a capacity is kept as a document.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Inventory {
    mig_profiles: BTreeMap<String, i32>,
    mig_instances: Vec<MigInstance>,
    gpu_devices: Vec<GpuDevice>,
}

impl Inventory {
    pub(super) fn of(capacity: &Capacity) -> Self {
        Self {
            mig_profiles: capacity.mig_profiles.clone(),
            mig_instances: capacity.mig_instances.clone(),
            gpu_devices: capacity.gpu_devices.clone(),
        }
    }

    pub(super) fn to_json(&self) -> Result<String, StoreError> {
        to_json("hosts", "gpu_inventory", self)
    }
}

impl Store {
    /// Hosts, in the order of `rows`, which are sorted by id.
    pub(super) async fn with_bound_gpus(&self, rows: &[Row]) -> Result<Vec<Host>, StoreError> {
        let mut hosts: Vec<Host> = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        if !hosts.iter().any(|host| host.capacity.has_gpus()) {
            return Ok(hosts);
        }
        if let (Some(first), Some(last)) = (hosts.first(), hosts.last()) {
            let range = binds![first.id.as_str(), last.id.as_str()];
            let bound = self.read("read bound GPUs", BOUND_OF_MANY, range).await?;
            add_bound(&mut hosts, &bound)?;
        }
        Ok(hosts)
    }
}

/// Adds rows of bound GPU units to their hosts, which are sorted by id.
pub(super) fn add_bound(hosts: &mut [Host], rows: &[Row]) -> Result<(), StoreError> {
    for row in rows {
        let mut columns = row.columns("reservations");
        let id = HostId::new(columns.text("host_id")?);
        let profile = columns.text("gpu_profile")?;
        let count = columns.small("mig_count")?;
        let uuids = columns.json("gpu_uuids")?;
        if let Ok(at) = hosts.binary_search_by(|host| host.id.cmp(&id))
            && let Some(host) = hosts.get_mut(at)
        {
            host.allocated.bound.add(&profile, count, uuids);
        }
    }
    Ok(())
}

pub(super) fn from_row(row: &Row) -> Result<Host, StoreError> {
    let mut columns = row.columns("hosts");
    let id = HostId::new(columns.text("id")?);
    let url = columns.text("url")?;
    let region = columns.text("region")?;
    let backend = columns.parsed("backend")?;
    let labels = columns.json("labels")?;
    let state = columns.parsed("state")?;
    let evict = columns.parsed("evict")?;
    let (capacity, allocated) = amounts(&mut columns)?;
    Ok(Host {
        id,
        url,
        region,
        backend,
        labels,
        state,
        evict,
        capacity,
        allocated,
        last_seen: columns.time("last_seen")?,
        created_at: columns.time("created_at")?,
        updated_at: columns.time("updated_at")?,
        agent: agent(&mut columns)?,
        failed_boots: failed_boots(&mut columns)?,
    })
}

fn amounts(columns: &mut Columns<'_>) -> Result<(Capacity, Allocated), StoreError> {
    let arch = columns.text("arch")?;
    let arch = if arch.is_empty() {
        None
    } else {
        Some(
            arch.parse()
                .map_err(|error| columns.corrupt("arch", error))?,
        )
    };
    let gpu_kind = columns.text("gpu_kind")?;
    let inventory = columns.text("gpu_inventory")?;
    // Most hosts have no GPU, and a fleet is read at once.
    let inventory: Inventory = if inventory == "{}" {
        Inventory::default()
    } else {
        serde_json::from_str(&inventory).map_err(|e| columns.corrupt("gpu_inventory", e))?
    };
    let mut capacity = Capacity {
        arch,
        gpu_kind,
        mig_profiles: inventory.mig_profiles,
        mig_instances: inventory.mig_instances,
        gpu_devices: inventory.gpu_devices,
        ..Capacity::default()
    };
    let mut allocated = Allocated::default();
    capacity.cpus = columns.small("cpus_total")?;
    allocated.cpus = columns.small("cpus_allocated")?;
    capacity.ram_mb = columns.small("ram_mb_total")?;
    allocated.ram_mb = columns.small("ram_mb_allocated")?;
    capacity.storage_gb = columns.small("storage_gb_total")?;
    allocated.storage_gb = columns.small("storage_gb_allocated")?;
    capacity.vm_count = columns.small("vms_total")?;
    allocated.vm_count = columns.small("vms_allocated")?;
    capacity.gpus = columns.small("gpus_total")?;
    allocated.gpus = columns.small("gpus_allocated")?;
    Ok((capacity, allocated))
}

fn agent(columns: &mut Columns<'_>) -> Result<Option<AgentCheck>, StoreError> {
    let checked_at = columns.opt_time("checked_at")?;
    let changed_at = columns.opt_time("changed_at")?;
    let reachable = columns.opt_int("reachable")?;
    let error = columns.opt_text("error")?;
    let version = columns.opt_text("version")?.unwrap_or_default();
    let guests = columns.opt_int("guests")?;
    let disk_free_gb = columns.opt_int("disk_free_gb")?;
    let (Some(checked_at), Some(changed_at)) = (checked_at, changed_at) else {
        return Ok(None);
    };
    Ok(Some(AgentCheck {
        checked_at,
        changed_at,
        error: error.filter(|_| reachable == Some(0)),
        version,
        guests,
        disk_free_gb,
    }))
}

fn failed_boots(columns: &mut Columns<'_>) -> Result<Option<FailedBoots>, StoreError> {
    let count = columns.opt_int("count")?;
    let last_error = columns.opt_text("last_error")?.unwrap_or_default();
    let quarantined_at = columns.opt_time("quarantined_at")?;
    let retry_at = columns.opt_time("retry_at")?;
    let retries = columns.opt_int("retries")?.unwrap_or_default();
    let small = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
    Ok(count.map(|count| FailedBoots {
        count: small(count),
        last_error,
        quarantined_at,
        retry_at,
        retries: small(retries),
    }))
}
