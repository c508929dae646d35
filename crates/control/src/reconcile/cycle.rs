//! One cycle: read the table, ask every host, compare, act.
//!
//! The table is read before the hosts are asked; the planner relies on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use fuse_model::{Environment, EnvironmentId, Host, HostId, HostState, Probe, State};
use fuse_planner::{Listed, Listing, Plan, Tracked};
use fuse_store::{EnvironmentFilter, Page, StoreError};
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;

use super::State as Driver;
use crate::{
    Control,
    error::chain,
    provider::{Place, Provider},
};

/// Environments read at a time.
const PAGE: u32 = 1000;
/// How long a host may take to say what it has: an interval, within these bounds. One that hangs
/// must not keep the others from being looked after.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Hosts asked side by side.
const ASK_PARALLEL: usize = 64;

/// A place with what is there.
pub(super) struct Site {
    pub(super) provider: Arc<dyn Provider>,
    hosts: Vec<HostId>,
}

/// The places of a fleet, by key.
pub(super) type Sites = BTreeMap<String, Site>;

/// What a cycle looks at.
pub(super) struct Picture {
    /// When the table began to be read: what the clock said, and the moment itself.
    pub(super) read_at: (Timestamp, Instant),
    pub(super) records: BTreeMap<EnvironmentId, Environment>,
    pub(super) tracked: Vec<Tracked>,
    pub(super) sites: Sites,
    pub(super) listings: BTreeMap<String, Listing>,
    /// Hosts whose environments are to go.
    pub(super) draining: Vec<Host>,
}

impl Picture {
    /// Whether nobody has moved a record, or works on it, since the table was read.
    pub(super) fn still_shows(&self, now: &Environment) -> bool {
        now.operation.is_none()
            && self
                .records
                .get(&now.id)
                .is_some_and(|was| was.host_id == now.host_id && was.boot_id == now.boot_id)
    }
}

impl Control {
    /// Runs a cycle and answers whether another one soon is worth it. Hosts that do not
    /// answer are left out of it, no more. `recovery`: it is the first with the lease, which
    /// was asked for then.
    pub(super) async fn cycle(
        &self,
        state: &mut Driver,
        recovery: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        self.pick_up_interrupted().await?;
        let picture = self.picture().await?;
        self.show_counts(&picture);
        let fleet = self.inner.store.fleet_id();
        let retries = self.inner.settings.orphan_max_retries;
        let plan = state.memory.plan(
            fleet,
            &picture.tracked,
            &picture.listings,
            retries,
            state.strangers.as_mut(),
        );
        self.show_quarantined(&plan);
        self.show_foreign(&mut state.foreign, &plan);
        let is_recovery = recovery.is_some();
        self.carry_out(&mut state.memory, plan.actions, &picture, is_recovery)
            .await;
        let interval = self.inner.settings.reconcile_interval;
        // Cycles in quick succession must not make two strikes of one.
        if state
            .limits_at
            .is_none_or(|at| at.elapsed() >= interval / 2)
            || state.short_pause.is_none()
        {
            state.limits_at = Some(Instant::now());
            let Driver {
                stuck, idle, ages, ..
            } = state;
            self.enforce_limits(stuck, idle, ages, &picture).await;
        }
        self.evict(&picture);
        self.renew_credentials(&picture.records).await;
        self.watch_probes(picture.records.values());
        if let Some(asked_at) = recovery {
            self.note_recovered(&picture, asked_at);
            tracing::info!(environments = picture.records.len(), "recovery completed");
        }
        Ok(plan.unsettled)
    }

    fn show_quarantined(&self, plan: &Plan) {
        let passes = &self.inner.metrics.passes;
        let count = i64::try_from(plan.quarantined).unwrap_or(i64::MAX);
        if count > passes.quarantined.get() {
            tracing::warn!(
                count,
                "VMs from before this process are left alone, because the store in memory does \
                 not know whose they are; ORCH_DESTROY_UNKNOWN_ON_BOOT=true destroys them"
            );
        }
        passes.quarantined.set(count);
    }

    /// VMs that are not ours. Those that were not there in the last cycle are news.
    fn show_foreign(&self, known: &mut BTreeSet<(String, String)>, plan: &Plan) {
        let now: BTreeSet<_> = plan.foreign.iter().cloned().collect();
        for (agent, vm) in now.difference(known) {
            tracing::warn!(
                vm_id = vm,
                agent,
                "a VM of another fleet, or of nobody, has our prefix: it is left alone"
            );
        }
        let count = i64::try_from(now.len()).unwrap_or(i64::MAX);
        self.inner.metrics.passes.foreign.set(count);
        *known = now;
    }

    fn show_counts(&self, picture: &Picture) {
        let listed: usize = picture
            .listings
            .values()
            .map(|listing| match listing {
                Listing::Vms(vms) => vms.len(),
                Listing::NoInventory | Listing::Unknown => 0,
            })
            .sum();
        let show = |gauge: &prometheus::IntGauge, count: usize| {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        let probed = |accept: fn(&Probe) -> bool| {
            let running = |record: &&Environment| record.state == State::Running;
            let records = picture.records.values().filter(running);
            records.filter(|record| accept(&record.probe)).count()
        };
        let passes = &self.inner.metrics.passes;
        show(&passes.probed, probed(Probe::is_set));
        show(&passes.failing, probed(Probe::is_failing));
        show(&self.inner.metrics.cycle.tracked, picture.records.len());
        show(&self.inner.metrics.cycle.listed, listed);
    }

    pub(super) async fn picture(&self) -> Result<Picture, StoreError> {
        let read_at = (self.inner.store.now(), Instant::now());
        let records = self.read_table().await?;
        let mut sites = Sites::new();
        let mut listings = BTreeMap::new();
        let mut keys = BTreeMap::new();
        let mut draining = Vec::new();
        for host in self.inner.store.host_list_all().await? {
            let key = self
                .add_site(Some(&host.id), &mut sites, &mut listings)
                .await;
            keys.insert(Some(host.id.clone()), key);
            if host.state == HostState::Draining {
                draining.push(host);
            }
        }
        let on_default = records.values().any(|record| record.host_id.is_none());
        if on_default || !self.has_stub_backend() {
            let key = self.add_site(None, &mut sites, &mut listings).await;
            keys.insert(None, key);
        }
        listings.extend(self.ask(&sites).await);
        let tracked = records
            .values()
            .map(|record| Tracked {
                id: record.id.clone(),
                place: keys.get(&record.host_id).cloned().unwrap_or_default(),
                state: record.state,
                busy: self.is_busy(record),
                boot_id: record.boot_id.clone(),
                guest_version: record.guest_version.clone(),
            })
            .collect();
        Ok(Picture {
            read_at,
            records,
            tracked,
            sites,
            listings,
            draining,
        })
    }

    pub(crate) async fn read_table(
        &self,
    ) -> Result<BTreeMap<EnvironmentId, Environment>, StoreError> {
        let mut records = BTreeMap::new();
        let mut after = None;
        loop {
            let page = Page { after, limit: PAGE };
            let filter = EnvironmentFilter::default();
            let listing = self.inner.store.environment_list(&filter, &page).await?;
            records.extend(
                listing
                    .items
                    .into_iter()
                    .map(|record| (record.id.clone(), record)),
            );
            match listing.next {
                Some(next) => after = Some(next),
                None => return Ok(records),
            }
        }
    }

    /// Adds the place of a host and answers with its key. A host whose provider cannot
    /// be made is a place that does not answer.
    async fn add_site(
        &self,
        host: Option<&HostId>,
        sites: &mut Sites,
        listings: &mut BTreeMap<String, Listing>,
    ) -> String {
        match self.inner.providers.of(host).await {
            Ok((place, provider)) => {
                let key = match place {
                    Place::Stub => "stub".to_owned(),
                    Place::Agent(url) => url,
                };
                let site = sites.entry(key.clone()).or_insert_with(|| Site {
                    provider,
                    hosts: Vec::new(),
                });
                site.hosts.extend(host.cloned());
                key
            }
            Err(e) => {
                let key = host.map_or_else(|| "default".to_owned(), |id| format!("host:{id}"));
                if let Some(host) = host {
                    tracing::warn!(host_id = %host, error = %chain(&e), "cannot use a host");
                    self.count_list_error(host);
                }
                listings.insert(key.clone(), Listing::Unknown);
                key
            }
        }
    }

    /// Asks every place for its VMs, side by side.
    async fn ask(&self, sites: &Sites) -> BTreeMap<String, Listing> {
        let interval = self.inner.settings.reconcile_interval;
        let limit = interval.clamp(SHORTEST_WAIT, LONGEST_WAIT);
        let questions: Vec<_> = sites
            .iter()
            .map(|(key, site)| {
                let (key, provider) = (key.clone(), site.provider.clone());
                let prefix = self.inner.settings.vm_prefix.clone();
                async move {
                    // The other hosts wait for this answer.
                    let listed = tokio::time::timeout(limit, provider.list(&prefix)).await;
                    let late = || format!("no answer within {limit:?}");
                    let answer = match listed {
                        Ok(answer) => answer.map_err(|e| e.chain()),
                        Err(_) => Err(late()),
                    };
                    (key, answer)
                }
            })
            .collect();
        let mut answers = stream::iter(questions).buffer_unordered(ASK_PARALLEL);
        let mut listings = BTreeMap::new();
        while let Some((key, answer)) = answers.next().await {
            if let Err(e) = &answer {
                tracing::debug!(agent = key, error = e, "cannot list the VMs of a host");
                for host in sites.get(&key).into_iter().flat_map(|site| &site.hosts) {
                    self.count_list_error(host);
                }
            }
            let listing = match answer {
                Ok(Some(vms)) => Listing::Vms(
                    vms.into_iter()
                        .filter(|vm| !self.inner.retries.has_vm(&vm.id))
                        .map(|vm| Listed {
                            id: vm.id,
                            owner: vm.owner,
                            boot_id: vm.boot_id,
                            guest_version: vm.guest_version,
                            stopped: vm.stopped,
                        })
                        .collect(),
                ),
                Ok(None) => Listing::NoInventory,
                Err(_) => Listing::Unknown,
            };
            listings.insert(key, listing);
        }
        listings
    }

    /// The watch over hosts tells people; here it is counted.
    fn count_list_error(&self, host: &HostId) {
        let errors = &self.inner.metrics.list_errors;
        errors.with_label_values(&[host.as_str()]).inc();
    }
}
