//! Hosts.

use fuse_wire_api::{
    ExplainPlacement, Host, HostList, MAX_BODY_LARGE, MAX_BODY_SMALL, PlacementExplanation,
    RegisterHost,
};
use serde_json::{Value, json};

use super::operation::{Call, Operation};

const HOSTS: (&str, &str) = ("Hosts", "The host's id.");

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            ("GET", "/v1/hosts"),
            "listHosts",
            HOSTS,
            Call::new("List hosts").about("By id.").json::<HostList>(
                200,
                "One page.",
                json!({"hosts": [host()]}),
            ),
        )
        .paged(),
        Operation::new(("POST", "/v1/hosts"), "registerHost", HOSTS, register()),
        Operation::new(
            ("GET", "/v1/hosts/{hostId}"),
            "getHost",
            HOSTS,
            Call::new("Read a host")
                .json::<Host>(200, "The host; never its token.", host())
                .error(404, "not_found", "no such host"),
        ),
        Operation::actions("/v1/hosts/{hostId}", "actOnHost", HOSTS, actions()),
        Operation::new(
            ("DELETE", "/v1/hosts/{hostId}"),
            "removeHost",
            HOSTS,
            Call::new("Forget a host")
                .about("Only once no environment is assigned to it.")
                .empty(204, "Removed.")
                .error(404, "not_found", "no such host")
                .error(
                    409,
                    "conflict",
                    "environments are assigned to it (`details.vm_count` says how many)",
                ),
        ),
    ]
}

fn actions() -> Vec<(&'static str, Call)> {
    vec![
        (
            "cordon",
            Call::new("Place nothing new on a host")
                .about("Environments that are there stay.")
                .empty(204, "Cordoned.")
                .error(404, "not_found", "no such host"),
        ),
        (
            "uncordon",
            Call::new("Let a host have environments again")
                .about("Also ends `draining`, and forgets boots that failed there.")
                .empty(204, "Active.")
                .error(404, "not_found", "no such host"),
        ),
        (
            "drain",
            Call::new("Take a host out of placement for good")
                .about(
                    "`evict` says what is done with its environments: `none` (also when it is \
                     absent) leaves them until they end, `migrate` moves them to other hosts, one \
                     at a time, `drain` asks each workload to stop. None is destroyed.",
                )
                .empty(204, "Draining.")
                .error(400, "invalid_argument", "an unknown `evict`")
                .error(
                    501,
                    "unimplemented",
                    "`migrate`, and its backend cannot move environments",
                )
                .error(404, "not_found", "no such host"),
        ),
        (
            "probe",
            Call::new("Ask a host's agent again what the host has")
                .about("What was declared stays; `warnings` says where it is more.")
                .json::<Host>(200, "The host as it is now.", host())
                .error(404, "not_found", "no such host")
                .error(502, "unauthorized", "the agent does not take the token")
                .error(502, "internal", "the agent does not answer"),
        ),
    ]
}

pub(super) fn placement() -> Vec<Operation> {
    let example = json!({
        "policy": "spread", "host_id": "host-1", "rejected": {"state": 1},
        "hosts": [
            {"host_id": "host-1", "state": "active", "eligible": true, "rank": 1,
             "score": 431_072, "free_cpus": 30, "free_ram_mb": 131_072,
             "free_storage_gb": 890, "free_vms": 39},
            {"host_id": "host-2", "state": "cordoned", "eligible": false,
             "score": 431_072, "free_cpus": 30, "free_ram_mb": 131_072,
             "free_storage_gb": 890, "free_vms": 39,
             "gate": "state", "reason": "is cordoned, not active"},
        ],
    });
    vec![Operation::new(
        ("POST", "/v1/placement/explain"),
        "explainPlacement",
        HOSTS,
        Call::new("Where an environment would go, and why not elsewhere")
            .about(
                "Nothing is created. The body of a create may be sent as it is: all but `spec` \
                 and `seed_snapshot_id` is passed over. Hosts that have the seed come first. A \
                 request that no host takes is answered with 200 and `error`.",
            )
            .body::<ExplainPlacement>(MAX_BODY_LARGE, json!({"spec": {"cpus": 2}}))
            .json::<PlacementExplanation>(200, "Every host with its verdict.", example)
            .error(400, "invalid_argument", "the spec breaks a rule")
            .error(
                404,
                "not_found",
                "the pinned host is not registered, or there is no such seed",
            )
            .error(
                409,
                "conflict",
                "the seed is not `ready`, or of no use as one",
            ),
    )]
}

fn register() -> Call {
    Call::new("Register a host")
        .about(
            "Asks the agent for its capacity, which also checks the token. What is declared wins \
             over what the agent says, with a warning when it is more; a host whose agent does not \
             answer is taken only when `cpus`, `ram_mb` and `storage_gb` are all declared. \
             Registering a known id replaces what was declared and keeps state, creation time and \
             what is allocated.",
        )
        .body::<RegisterHost>(
            MAX_BODY_SMALL,
            json!({
                "id": "host-1", "url": "http://10.0.0.5:8090", "token": "the-agents-token",
                "labels": {"disk": "nvme"}, "capacity": {"vm_count": 40},
            }),
        )
        .json::<Host>(
            201,
            "Registered; `warnings` is in this answer only.",
            host(),
        )
        .error(
            400,
            "invalid_argument",
            "a field breaks its rule, or contradicts the agent",
        )
        .error(
            409,
            "conflict",
            "another backend while environments are assigned",
        )
        .error(502, "unauthorized", "the agent does not take the token")
        .error(
            502,
            "internal",
            "the agent does not answer and the capacity is not declared",
        )
}

fn host() -> Value {
    json!({
        "id": "host-1", "url": "http://10.0.0.5:8090", "backend": "firecracker",
        "labels": {"disk": "nvme"}, "state": "active",
        "capacity": {"cpus": 32, "ram_mb": 131_072, "storage_gb": 900, "vm_count": 40, "arch": "amd64"},
        "allocated": {"cpus": 2, "ram_mb": 2048, "storage_gb": 10, "vm_count": 1},
        "last_seen": "2026-01-15T09:00:00Z", "created_at": "2026-01-15T09:00:00Z",
        "updated_at": "2026-01-15T10:00:00Z",
        "agent": {"reachable": true, "checked_at": "2026-01-15T10:00:00Z"},
    })
}
