//! Which ids, numbers and ports are taken. All locks here are held for a few instructions.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse_wire_host::start_agent::Protocol;

use super::error::CreateError;
use super::meta::Meta;
use super::vm::Vm;
use crate::gpu::{Claim, PickError, Used};
use crate::net::{Index, NetPlan};

/// A port of the host.
pub(super) type HostPort = (u16, Protocol);

#[derive(Debug, Default)]
pub(super) struct Tables(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    vms: HashMap<String, Arc<Vm>>,
    indices: BTreeSet<Index>,
    ports: HashSet<HostPort>,
    /// Ids of directories that are damaged: neither VMs nor free.
    damaged: HashSet<String>,
}

impl Tables {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is a single insert or remove, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the id, the lowest free number and the devices that `claim` picks of those that nobody
    /// has, for a new VM that `make` makes of them.
    pub(super) fn reserve<T>(
        &self,
        id: &str,
        plan: &NetPlan,
        claim: impl FnOnce(&Used) -> Result<Claim, PickError>,
        make: impl FnOnce(Index, Claim) -> (Arc<Vm>, T),
    ) -> Result<T, CreateError> {
        let mut inner = self.lock();
        if inner.vms.contains_key(id) || inner.damaged.contains(id) {
            return Err(CreateError::Exists { id: id.to_owned() });
        }
        let free = plan.indices().find(|index| !inner.indices.contains(index));
        let index = free.ok_or(CreateError::Full {
            max: plan.max_vms(),
        })?;
        let mut used = Used::default();
        for (id, vm) in &inner.vms {
            used.add(id, &vm.gpus);
        }
        let claim = claim(&used).map_err(CreateError::Gpus)?;
        let (vm, rest) = make(index, claim);
        inner.indices.insert(index);
        inner.vms.insert(id.to_owned(), vm);
        Ok(rest)
    }

    /// Enters a VM that was found in the state.
    pub(super) fn enter(&self, meta: &Meta, vm: Arc<Vm>) {
        let mut inner = self.lock();
        inner.indices.insert(meta.slot.index);
        inner.ports.extend(ports(meta));
        inner.vms.insert(meta.vm_id.clone(), vm);
    }

    pub(super) fn mark_damaged(&self, id: String) {
        self.lock().damaged.insert(id);
    }

    /// Frees everything that a VM had taken.
    pub(super) fn forget(&self, meta: &Meta) {
        let mut inner = self.lock();
        inner.vms.remove(&meta.vm_id);
        inner.indices.remove(&meta.slot.index);
        for port in ports(meta) {
            inner.ports.remove(&port);
        }
    }

    /// Takes the lowest free port of the range that `usable` agrees to.
    pub(super) fn take_port(
        &self,
        range: RangeInclusive<u16>,
        protocol: Protocol,
        usable: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let mut inner = self.lock();
        let mut range = range;
        let port = range.find(|port| !inner.ports.contains(&(*port, protocol)) && usable(*port))?;
        inner.ports.insert((port, protocol));
        Some(port)
    }

    pub(super) fn give_back(&self, port: HostPort) {
        self.lock().ports.remove(&port);
    }

    /// Whether something has this id, damaged or not.
    pub(super) fn has(&self, id: &str) -> bool {
        let inner = self.lock();
        inner.vms.contains_key(id) || inner.damaged.contains(id)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Vm>> {
        self.lock().vms.get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Vm>> {
        self.lock().vms.values().cloned().collect()
    }
}

fn ports(meta: &Meta) -> impl Iterator<Item = HostPort> + '_ {
    meta.expose_endpoints
        .iter()
        .map(|p| (p.host_port, p.protocol))
}
