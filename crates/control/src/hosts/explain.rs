//! Where an environment would go, and why not elsewhere. Nothing is made.

use fuse_model::{EnvironmentSpec, Host, HostId};
use fuse_planner::{Gate, Policy, Verdict, explain, place};
use fuse_wire_api::ExplainPlacement;

use crate::{
    Control, Error,
    create::{SEEDED, Seed, domain_spec},
};

/// What placement thinks of a request.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// What the order follows.
    pub policy: Policy,
    /// The refusal that a create would get; `None` when it would be placed.
    pub refusal: Option<String>,
    /// Whether the fleet has no hosts and the default backend takes it.
    pub default_backend: bool,
    /// Every host, in the order of preference, then those that do not take it.
    pub hosts: Vec<ExplainedHost>,
}

/// One host of an explanation.
#[derive(Debug, Clone)]
pub struct ExplainedHost {
    /// The host.
    pub host: Host,
    /// Whether it has the seed.
    pub artifact_local: bool,
    /// Free room as placement counts it.
    pub score: i64,
    /// What became of it.
    pub verdict: HostVerdict,
}

/// What became of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostVerdict {
    /// What placement says of it.
    Placement(Verdict),
    /// The seed keeps it from there; why, to stand after the host's name.
    Seed(&'static str),
}

impl Control {
    /// Explains where a request of `tenant` would go.
    ///
    /// # Errors
    /// The seed does not exist or is not usable, or the store fails.
    pub async fn placement_explain(
        &self,
        request: &ExplainPlacement,
        tenant: &str,
    ) -> Result<Explanation, Error> {
        let spec = self.accounted(&domain_spec(&request.spec));
        let seed = self.find_seed(&request.seed_snapshot_id, tenant).await?;
        let hosts = self.placeable_hosts().await?;
        let policy = self.inner.settings.placement_policy;
        if let Some(seed) = seed {
            return Ok(explain_seeded(&spec, hosts, policy, &seed));
        }
        if hosts.is_empty() {
            let refusal = self.default_backend(&spec).err();
            return Ok(Explanation {
                policy,
                default_backend: refusal.is_none(),
                refusal: refusal.map(|refusal| refusal.to_string()),
                hosts: Vec::new(),
            });
        }
        Ok(Explanation {
            policy,
            refusal: place(&spec, &hosts, policy, &[])
                .err()
                .map(|e| e.to_string()),
            default_backend: false,
            hosts: verdicts(&spec, &hosts, policy, &[]),
        })
    }
}

/// As the create with this seed is placed.
fn explain_seeded(
    spec: &EnvironmentSpec,
    hosts: Vec<Host>,
    policy: Policy,
    seed: &Seed,
) -> Explanation {
    let (able, unable): (Vec<Host>, Vec<Host>) =
        hosts.into_iter().partition(|host| host.backend == SEEDED);
    let narrowed = seed.narrow(spec);
    let refusal = match &narrowed {
        Ok(narrowed) => {
            let refused = place(narrowed, &able, policy, seed.holders()).err();
            refused.map(|e| seed.refuse_placement(&e, &unable).to_string())
        }
        Err(refused) => Some(refused.to_string()),
    };
    let wanted = narrowed.as_ref().unwrap_or(spec);
    let mut explained = verdicts(wanted, &able, policy, seed.holders());
    for one in &mut explained {
        let is_pinned_by_seed =
            spec.host_id.is_none() && one.verdict == HostVerdict::Placement(Verdict::NotPinned);
        if is_pinned_by_seed {
            one.verdict = HostVerdict::Seed("does not have the seed snapshot, which cannot move");
        } else if narrowed.is_err() && is_eligible(one) {
            one.verdict = HostVerdict::Seed("cannot start from the seed snapshot");
        }
    }
    let mut others = verdicts(spec, &unable, policy, &[]);
    for one in others.iter_mut().filter(|one| is_eligible(one)) {
        one.verdict = HostVerdict::Placement(Verdict::Rejected {
            gate: Gate::Backend,
            reason: format!(
                "has backend \"{}\", seed snapshots require \"{SEEDED}\"",
                one.host.backend
            ),
        });
    }
    explained.append(&mut others);
    Explanation {
        policy,
        refusal,
        default_backend: false,
        hosts: explained,
    }
}

fn is_eligible(one: &ExplainedHost) -> bool {
    matches!(
        one.verdict,
        HostVerdict::Placement(Verdict::Eligible { .. })
    )
}

fn verdicts(
    spec: &EnvironmentSpec,
    hosts: &[Host],
    policy: Policy,
    holders: &[HostId],
) -> Vec<ExplainedHost> {
    explain(spec, hosts, policy, holders)
        .into_iter()
        .map(|explained| ExplainedHost {
            host: explained.host.clone(),
            artifact_local: holders.contains(&explained.host.id),
            score: explained.score,
            verdict: HostVerdict::Placement(explained.verdict),
        })
        .collect()
}
