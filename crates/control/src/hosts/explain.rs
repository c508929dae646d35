//! Where an environment would go, and why not elsewhere. Nothing is made.

use fuse_model::Host;
use fuse_planner::{Policy, Verdict, explain, place};
use fuse_wire_api::Spec;

use crate::{Control, Error, create::domain_spec};

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
    /// Free room as placement counts it.
    pub score: i64,
    /// What became of it.
    pub verdict: Verdict,
}

impl Control {
    /// Explains where `spec` would go.
    ///
    /// # Errors
    /// The store fails.
    pub async fn placement_explain(&self, spec: &Spec) -> Result<Explanation, Error> {
        let spec = &self.accounted(&domain_spec(spec));
        let policy = self.inner.settings.placement_policy;
        let hosts = self.placeable_hosts().await?;
        if hosts.is_empty() {
            let refusal = self.default_backend(spec).err();
            return Ok(Explanation {
                policy,
                default_backend: refusal.is_none(),
                refusal: refusal.map(|refusal| refusal.to_string()),
                hosts: Vec::new(),
            });
        }
        let explained = explain(spec, &hosts, policy, &[])
            .into_iter()
            .map(|explained| ExplainedHost {
                host: explained.host.clone(),
                score: explained.score,
                verdict: explained.verdict,
            })
            .collect();
        Ok(Explanation {
            policy,
            refusal: place(spec, &hosts, policy, &[])
                .err()
                .map(|e| e.to_string()),
            default_backend: false,
            hosts: explained,
        })
    }
}
