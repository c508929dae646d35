//! What to do with the environments of a host that is being drained (lifecycle 13).

use fuse_model::{Environment, EnvironmentId, Evict, Host, HostState, State};

/// Something to do with one of them. Nothing here destroys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Eviction {
    /// Ask its workload to stop.
    Drain(EnvironmentId),
    /// Move it to another host.
    Migrate(EnvironmentId),
}

/// What is due on `host`. Only what runs and is not `busy` is touched, and of those that
/// are to be moved only the first, so that a fleet is not flooded with copies. One with
/// GPUs, or pinned to the host, cannot go elsewhere.
pub fn evictions<'a>(
    host: &Host,
    environments: impl Iterator<Item = &'a Environment>,
    busy: impl Fn(&Environment) -> bool,
) -> Vec<Eviction> {
    if host.state != HostState::Draining {
        return Vec::new();
    }
    let there = environments.filter(|one| {
        one.host_id.as_ref() == Some(&host.id) && one.state == State::Running && !busy(one)
    });
    let mut due: Vec<Eviction> = match host.evict {
        Evict::None => Vec::new(),
        Evict::Drain => there.map(|one| Eviction::Drain(one.id.clone())).collect(),
        Evict::Migrate => there
            .filter(|one| one.spec.gpus == 0 && one.spec.host_id.as_ref() != Some(&host.id))
            .map(|one| Eviction::Migrate(one.id.clone()))
            .min()
            .into_iter()
            .collect(),
    };
    due.sort();
    due
}

#[cfg(test)]
mod tests {
    use fuse_model::{
        Allocated, Backend, Capacity, EnvironmentSpec, HostId, Labels, Probe, Version, now,
    };

    use super::*;

    fn host(state: HostState, evict: Evict) -> Host {
        Host {
            id: HostId::new("h"),
            url: "http://h:8090".to_owned(),
            region: String::new(),
            backend: Backend::Firecracker,
            labels: Labels::new(),
            state,
            evict,
            capacity: Capacity::default(),
            allocated: Allocated::default(),
            last_seen: now(),
            created_at: now(),
            updated_at: now(),
            agent: None,
            failed_boots: None,
        }
    }

    fn on(host: &str, id: &str, state: State) -> Environment {
        Environment {
            id: EnvironmentId::new(id),
            version: Version::FIRST,
            spec: EnvironmentSpec::default(),
            tenant: String::new(),
            task_id: None,
            state,
            host_id: Some(HostId::new(host)),
            url: String::new(),
            endpoints: Vec::new(),
            boot_id: String::new(),
            guest_version: String::new(),
            probe: Probe::None,
            error: String::new(),
            operation: None,
            created_at: now(),
            updated_at: now(),
            activity_at: now(),
        }
    }

    fn fleet() -> Vec<Environment> {
        let mut pinned = on("h", "a-pinned", State::Running);
        pinned.spec.host_id = Some(HostId::new("h"));
        let mut gpu = on("h", "a-gpu", State::Running);
        gpu.spec.gpus = 1;
        vec![
            on("h", "z", State::Running),
            on("h", "b", State::Running),
            on("h", "busy", State::Running),
            on("h", "new", State::Provisioning),
            on("h", "old", State::Draining),
            on("h", "gone", State::Destroying),
            on("elsewhere", "a", State::Running),
            pinned,
            gpu,
        ]
    }

    fn due(state: HostState, evict: Evict) -> Vec<Eviction> {
        let busy = |one: &Environment| one.id.as_str() == "busy";
        evictions(&host(state, evict), fleet().iter(), busy)
    }

    #[test]
    fn each_mode_does_its_own_to_what_runs_there() {
        let drained = ["a-gpu", "a-pinned", "b", "z"].map(EnvironmentId::new);
        assert_eq!(
            due(HostState::Draining, Evict::Drain),
            drained.map(Eviction::Drain)
        );
        assert_eq!(
            due(HostState::Draining, Evict::Migrate),
            [Eviction::Migrate(EnvironmentId::new("b"))]
        );
        assert_eq!(due(HostState::Draining, Evict::None), []);
    }

    #[test]
    fn a_host_that_is_not_drained_keeps_what_it_has() {
        for state in [HostState::Active, HostState::Cordoned] {
            assert_eq!(due(state, Evict::Drain), []);
        }
    }
}
