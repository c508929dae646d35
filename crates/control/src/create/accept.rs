//! Accepts a create request: bound, placement, and the one transaction that stores the
//! environment with its task, its reservation and its first event.

use fuse_model::{
    Arch, Environment, EnvironmentId, EnvironmentSpec, Host, HostId, OperationKind, Redacted,
    TaskId,
};
use fuse_planner::{Placement, PlacementError, place};
use fuse_store::{FailedCreate, IdempotentKey, Inserted, NewEnvironment};
use fuse_wire_api::{CheckedCreate, Spec, TaskPlacement};

use super::{
    StoredRequest,
    boot::script_limit,
    seed::{SEEDED, Seed},
};
use crate::{
    Control, Error,
    audit::{self, Scheduled},
    control::OPERATION_TTL,
    error::PlacementRefusal,
    provider::Place,
};

/// How often a request is placed anew after other requests took what it was offered.
pub(super) const PLACEMENT_ATTEMPTS: u32 = 4;

/// Where a request may go.
pub(crate) struct Choice {
    pub(super) candidates: Vec<HostId>,
    pub(super) scheduled: Scheduled,
}

impl Choice {
    pub(super) fn of(placement: &Placement<'_>) -> Self {
        let candidates = placement.candidates.iter();
        Self {
            scheduled: Scheduled {
                policy: placement.policy.as_str(),
                eligible: placement.eligible,
            },
            candidates: candidates
                .map(|candidate| candidate.host.id.clone())
                .collect(),
        }
    }
}

impl Control {
    pub(super) async fn accept(
        &self,
        request: &CheckedCreate,
        tenant: String,
        key: Option<IdempotentKey>,
    ) -> Result<(Environment, TaskPlacement), Error> {
        let seed = self.seed_of(request, &tenant).await?;
        self.check_script_bound(request)?;
        let task = TaskId::new(request.task_id.clone());
        let id = EnvironmentId::for_task(&self.inner.settings.vm_prefix, &task);
        let spec = domain_spec(&request.spec);
        let sized = self.accounted(&spec);
        let mut refusal = None;
        for _ in 0..PLACEMENT_ATTEMPTS {
            let choice = match self.choose_for(&sized, seed.as_ref()).await? {
                Ok(choice) => choice,
                Err(refused) => {
                    refusal = Some(refused);
                    break;
                }
            };
            let new = NewEnvironment {
                id: id.clone(),
                task_id: task.clone(),
                tenant: tenant.clone(),
                spec: spec.clone(),
                charge: sized.resources(),
                candidates: choice.candidates,
                seed_holders: seed.iter().flat_map(Seed::holders).cloned().collect(),
                has_probe: request.healthcheck.is_some(),
                overcommit: false,
                request: StoredRequest::of(request).to_json(),
                secrets: Redacted::new(request.secrets.clone()),
                operation: OperationKind::Create,
                operation_ttl: OPERATION_TTL,
                audit: audit::accepted(&id, &task, &choice.scheduled),
                idempotency: key.clone(),
            };
            match self.record_insert(new).await? {
                Inserted::Created(record) => {
                    let placement = placement(&record, &choice.scheduled);
                    return Ok((record, placement));
                }
                Inserted::TaskAssigned(existing) => {
                    return Err(Error::TaskAssigned { task, existing });
                }
                Inserted::KeyTaken => return Err(Error::KeyTaken),
                Inserted::NoCapacity => self.inner.fleet.forget(),
            }
        }
        let refusal = refusal.unwrap_or_else(|| PlacementRefusal::contended(&sized));
        Err(self.refuse(id, task, tenant, refusal).await?)
    }

    fn check_script_bound(&self, request: &CheckedCreate) -> Result<(), Error> {
        let requested = script_limit(&self.inner.settings, request);
        let max = self.inner.settings.max_script_timeout;
        if requested > max {
            return Err(Error::ScriptBound { requested, max });
        }
        Ok(())
    }

    /// The spec as placement and accounting take it.
    pub(crate) fn accounted(&self, spec: &EnvironmentSpec) -> EnvironmentSpec {
        if self.inner.settings.account_default_size {
            spec.with_default_size()
        } else {
            spec.clone()
        }
    }

    /// As [`Control::choose`], where the seed is or can be brought to.
    async fn choose_for(
        &self,
        spec: &EnvironmentSpec,
        seed: Option<&Seed>,
    ) -> Result<Result<Choice, PlacementRefusal>, Error> {
        let Some(seed) = seed else {
            return self.choose(spec, &[]).await;
        };
        let narrowed = match seed.narrow(spec) {
            Ok(narrowed) => narrowed,
            Err(refused) => return Ok(Err(refused)),
        };
        let policy = self.inner.settings.placement_policy;
        let hosts = self.placeable_hosts().await?.into_iter();
        // Agents of the other backend neither have artifacts nor take any.
        let (hosts, without): (Vec<_>, Vec<_>) = hosts.partition(|host| host.backend == SEEDED);
        let placed = place(&narrowed, &hosts, policy, seed.holders());
        Ok(match placed {
            Ok(placement) => Ok(Choice::of(&placement)),
            Err(refused) => Err(seed.refuse_placement(&refused, &without)),
        })
    }

    /// Candidates for `spec`, or why there are none. `holders` have what it starts from.
    async fn choose(
        &self,
        spec: &EnvironmentSpec,
        holders: &[HostId],
    ) -> Result<Result<Choice, PlacementRefusal>, Error> {
        let policy = self.inner.settings.placement_policy;
        let kept = self.inner.fleet.choose(spec, |hosts| {
            let choice = Choice::of(&place(spec, hosts, policy, holders).ok()?);
            Some((choice.candidates.first()?.clone(), choice))
        });
        self.follow_fleet();
        if let Some(choice) = kept {
            return Ok(Ok(choice));
        }
        let hosts = self.placeable_hosts().await?;
        if hosts.is_empty() {
            return Ok(self.default_backend(spec));
        }
        let outcome = match place(spec, &hosts, policy, holders) {
            Ok(placement) => Ok(Choice::of(&placement)),
            Err(refused) => Err(refused.into()),
        };
        self.inner.fleet.keep(hosts);
        Ok(outcome)
    }

    /// Has the next picture of a large fleet read, if that is due.
    fn follow_fleet(&self) {
        if !self.inner.fleet.is_due() {
            return;
        }
        let control = self.clone();
        self.spawn(async move {
            let Some(_reader) = control.inner.fleet.reader() else {
                return;
            };
            match control.placeable_hosts().await {
                Ok(hosts) => control.inner.fleet.keep(hosts),
                Err(e) => {
                    tracing::debug!(error = %crate::error::chain(&e), "cannot read the fleet");
                }
            }
        });
    }

    /// The hosts as placement is to see them.
    pub(crate) async fn placeable_hosts(&self) -> Result<Vec<Host>, Error> {
        let mut hosts = self.inner.store.host_list_all().await?;
        if !self.inner.settings.exclude_unreachable_hosts {
            for host in &mut hosts {
                host.agent = None;
            }
        }
        Ok(hosts)
    }

    /// Without any host the default backend takes everything that names no host.
    pub(crate) fn default_backend(
        &self,
        spec: &EnvironmentSpec,
    ) -> Result<Choice, PlacementRefusal> {
        if let Some(pin) = &spec.host_id {
            return Err(PlacementError::PinUnknown(pin.clone()).into());
        }
        if spec.gpus > 0 {
            return Err(PlacementRefusal::GpuHost);
        }
        if !spec.labels.is_empty() {
            return Err(PlacementRefusal::NeedsHosts);
        }
        let policy = self.inner.settings.placement_policy.as_str();
        Ok(Choice {
            candidates: Vec::new(),
            scheduled: Scheduled {
                policy,
                eligible: 1,
            },
        })
    }

    /// Stores that the task failed for want of a host, and answers with why.
    async fn refuse(
        &self,
        id: EnvironmentId,
        task: TaskId,
        tenant: String,
        refusal: PlacementRefusal,
    ) -> Result<Error, Error> {
        let text = refusal.to_string();
        let failed = FailedCreate {
            audit: audit::refused(&id, &task, &text),
            error: text,
            id: id.clone(),
            task_id: task.clone(),
            tenant,
        };
        match self.inner.store.environment_insert_failed(failed).await? {
            Some(existing) => Ok(Error::TaskAssigned { task, existing }),
            None => {
                let refused = Error::from(refusal);
                self.keep_refusal(&task, &id, refused.details()).await;
                Ok(refused)
            }
        }
    }

    /// Whether environments on the default backend exist in the store only.
    #[must_use]
    pub fn has_stub_backend(&self) -> bool {
        *self.inner.providers.default_place() == Place::Stub
    }
}

fn placement(record: &Environment, scheduled: &Scheduled) -> TaskPlacement {
    TaskPlacement {
        host_id: record
            .host_id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        policy: scheduled.policy.to_owned(),
        candidates: scheduled.eligible as u64,
        ..TaskPlacement::default()
    }
}

/// A spec that was checked, as the planner and the store take it.
pub(crate) fn domain_spec(spec: &Spec) -> EnvironmentSpec {
    EnvironmentSpec {
        cpus: spec.cpus,
        ram_mb: spec.ram_mb,
        storage_gb: spec.storage_gb,
        region: spec.region.clone(),
        // Normalised by validation, so it parses.
        arch: spec.arch.parse::<Arch>().ok(),
        max_runtime_seconds: spec.max_runtime_seconds,
        idle_timeout_seconds: spec.idle_timeout_seconds,
        image: spec.image.clone(),
        gpus: spec.gpus,
        gpu_kind: spec.gpu_kind.clone(),
        gpu_profile: spec.gpu_profile.clone(),
        host_id: (!spec.host_id.is_empty()).then(|| HostId::new(spec.host_id.clone())),
        labels: spec.labels.clone(),
        huge_pages: spec.huge_pages,
    }
}
