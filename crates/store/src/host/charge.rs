//! The charges that environments make to hosts, and the GPU units that they get.

use fuse_model::{EnvironmentId, EnvironmentSpec, HostId};

use super::get_in_tx;
use crate::effects::Charge;
use crate::sql::{Bind, binds};
use crate::tx::Tx;
use crate::{Store, StoreError};

impl Store {
    /// The GPU units that an environment was given: devices, or instances if it asked
    /// for a MIG profile. None on a host that only counts.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_gpu_uuids(
        &self,
        id: &EnvironmentId,
    ) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT gpu_uuids FROM reservations WHERE environment_id = $1";
        let rows = self
            .read("read an environment's GPUs", sql, binds![id.as_str()])
            .await?;
        match rows.first() {
            Some(row) => row.columns("reservations").json("gpu_uuids"),
            None => Ok(Vec::new()),
        }
    }
}

/// Takes amounts from a host that takes placements and has them.
pub(crate) async fn charge_in_tx(
    tx: &mut Tx<'_>,
    id: &HostId,
    charge: &Charge,
) -> Result<bool, StoreError> {
    let sql = "UPDATE hosts SET cpus_allocated = cpus_allocated + $2, \
         ram_mb_allocated = ram_mb_allocated + $3, \
         storage_gb_allocated = storage_gb_allocated + $4, \
         gpus_allocated = gpus_allocated + $5, vms_allocated = vms_allocated + $6 \
         WHERE id = $1 AND state = 'active' AND cpus_total - cpus_allocated >= $2 \
         AND ram_mb_total - ram_mb_allocated >= $3 \
         AND storage_gb_total - storage_gb_allocated >= $4 \
         AND gpus_total - gpus_allocated >= $5 AND vms_total - vms_allocated >= $6";
    Ok(tx
        .execute("charge a host", sql, charge_values(id, charge))
        .await?
        > 0)
}

/// Gives amounts back to a host.
pub(crate) async fn credit_in_tx(
    tx: &mut Tx<'_>,
    id: &HostId,
    credit: &Charge,
) -> Result<(), StoreError> {
    let sql = "UPDATE hosts SET cpus_allocated = cpus_allocated - $2, \
         ram_mb_allocated = ram_mb_allocated - $3, \
         storage_gb_allocated = storage_gb_allocated - $4, \
         gpus_allocated = gpus_allocated - $5, vms_allocated = vms_allocated - $6 WHERE id = $1";
    tx.execute("credit a host", sql, charge_values(id, credit))
        .await
        .map(drop)
}

fn charge_values(id: &HostId, charge: &Charge) -> Vec<Bind> {
    let Charge {
        cpus,
        ram_mb,
        storage_gb,
        gpus,
        vms,
    } = *charge;
    binds![id.as_str(), cpus, ram_mb, storage_gb, gpus, vms]
}

/// Finds the GPU units for an environment on a host that was charged for it in this
/// transaction: the charge locked the host's row, so nobody else gives the same units
/// away before the commit. `None` when the host does not have them after all.
pub(crate) async fn bind_in_tx(
    tx: &mut Tx<'_>,
    id: &HostId,
    spec: &EnvironmentSpec,
) -> Result<Option<Vec<String>>, StoreError> {
    let host = get_in_tx(tx, id).await?;
    Ok(host.and_then(|host| host.bind_gpus(spec)))
}

/// Makes a host's figures the sum of its reservations again.
pub(crate) async fn recount_in_tx(tx: &mut Tx<'_>, id: &HostId) -> Result<(), StoreError> {
    let sql = "UPDATE hosts SET cpus_allocated = r.cpus, ram_mb_allocated = r.ram_mb, \
         storage_gb_allocated = r.storage_gb, gpus_allocated = r.gpus, vms_allocated = r.vms \
         FROM (SELECT COALESCE(CAST(SUM(cpus) AS BIGINT), 0) AS cpus, \
         COALESCE(CAST(SUM(ram_mb) AS BIGINT), 0) AS ram_mb, \
         COALESCE(CAST(SUM(storage_gb) AS BIGINT), 0) AS storage_gb, \
         COALESCE(CAST(SUM(gpus) AS BIGINT), 0) AS gpus, COUNT(*) AS vms \
         FROM reservations WHERE host_id = $1) AS r WHERE hosts.id = $1";
    tx.execute("recount a host", sql, binds![id.as_str()])
        .await
        .map(drop)
}
