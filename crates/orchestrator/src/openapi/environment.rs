//! Environments.

use fuse_wire_api::{
    CreateEnvironment, Environment, EnvironmentList, Event, ExecFrame, ExecRequest, ExecResponse,
    MAX_BODY_LARGE,
};
use serde_json::{Value, json};

use super::{
    operation::{Call, Operation},
    snapshot,
};

pub(super) const ENVIRONMENTS: (&str, &str) = ("Environments", "The environment's id.");
pub(super) const MISSING: &str = "no such environment";
pub(super) const SOURCE: &str = "`startup` (the default), `console` or `agent`.";
pub(super) const PHASE: &str = "Of the startup script only `build` or `run`; absent is both.";
const SAME_BY_QUERY: &str = "The same, for clients that cannot set headers.";

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            ("GET", "/v1/environments"),
            "listEnvironments",
            ENVIRONMENTS,
            Call::new("List environments")
                .about("By id. Filters are exact and combine; an empty value is none.")
                .json::<EnvironmentList>(200, "One page.", json!({"environments": [running()]})),
        )
        .query("task_id", "Only that of this task.")
        .query("state", "Only those in this state.")
        .query("host_id", "Only those on this host.")
        .paged(),
        Operation::new(
            ("POST", "/v1/environments"),
            "createEnvironment",
            ENVIRONMENTS,
            create(),
        )
        .header(
            "Prefer",
            "`respond-async`: answer once the request is accepted, with 202.",
        )
        .header(
            "Idempotency-Key",
            "1 to 255 visible ASCII characters. For 24 hours a repeat of the request with the \
             same key gets the first answer.",
        ),
        Operation::new(
            ("GET", "/v1/environments/{vmId}"),
            "getEnvironment",
            ENVIRONMENTS,
            Call::new("Read an environment")
                .about(
                    "One that was destroyed, or whose creation failed, is gone: ask for its task.",
                )
                .json::<Environment>(200, "The environment.", running())
                .error(404, "not_found", MISSING),
        ),
        Operation::actions(
            "/v1/environments/{vmId}",
            "actOnEnvironment",
            ENVIRONMENTS,
            actions(),
        )
        .query("stream", "`exec`: `1` for a stream of events."),
        Operation::new(
            ("DELETE", "/v1/environments/{vmId}"),
            "destroyEnvironment",
            ENVIRONMENTS,
            Call::new("Destroy an environment")
                .about(
                    "From any state. Once the host has confirmed, a repeat is a 404: take that for \
                     done.",
                )
                .empty(204, "Destroyed.")
                .error(404, "not_found", MISSING)
                .error(
                    500,
                    "internal",
                    "the host does not confirm; the environment stays `destroying` and is retried",
                )
                .calls_an_agent(),
        ),
    ]
}

/// The event streams.
pub(super) fn streams() -> Vec<Operation> {
    vec![
        Operation::new(
            ("GET", "/v1/environments/{vmId}/events"),
            "watchEnvironment",
            ENVIRONMENTS,
            events(),
        )
        .header(
            "Last-Event-ID",
            "Replay what came after this event instead of starting with the current state. An \
             unknown id counts as none.",
        )
        .query("last_event_id", SAME_BY_QUERY),
        Operation::new(
            ("GET", "/v1/environments/{vmId}/logs"),
            "readEnvironmentLogs",
            ENVIRONMENTS,
            logs(),
        )
        .query("source", SOURCE)
        .query("phase", PHASE)
        .query("follow", "`true`: go on with what comes."),
        Operation::new(
            ("GET", "/v1/events"),
            "watchFleet",
            ENVIRONMENTS,
            fleet_events(),
        )
        .header(
            "Last-Event-ID",
            "Start with what came after this event instead of with what comes next.",
        )
        .query("last_event_id", SAME_BY_QUERY),
    ]
}

fn create() -> Call {
    Call::new("Create an environment")
        .about(
            "Answers when the environment runs or its creation has failed, which the caller's \
             leaving does not change. Rules are checked in a fixed order and the first that is \
             broken is told. A creation that fails leaves nothing but its task.",
        )
        .body::<CreateEnvironment>(
            MAX_BODY_LARGE,
            json!({
                "task_id": "build-17",
                "spec": {"cpus": 2, "ram_mb": 2048, "labels": {"disk": "nvme"}},
                "startup_script": "make -C /work all",
                "startup_script_timeout_seconds": 45,
                "expose": [{"port": 8080, "as": "web"}],
            }),
        )
        .json::<Environment>(201, "It runs.", running())
        .header(
            "Idempotency-Replayed",
            "`true` on an answer that was given before.",
        )
        .json::<Environment>(202, "Accepted, with `Prefer: respond-async`.", accepted())
        .header("Preference-Applied", "`respond-async`.")
        .error(400, "invalid_argument", "a field breaks its rule")
        .error(
            400,
            "invalid_argument",
            "the startup script failed (`details.exit_code`, `details.phase`) or ran out of time",
        )
        .error(
            404,
            "not_found",
            "`spec.host_id` or `seed_snapshot_id` names nothing",
        )
        .error(
            409,
            "conflict",
            "the task has an environment (`details.vm_id`)",
        )
        .error(409, "conflict", "destroyed while it was being created")
        .error(
            409,
            "conflict",
            "the `Idempotency-Key` was used for another request",
        )
        .error(
            413,
            "payload_too_large",
            "`files` are over 524288 bytes, decoded",
        )
        .error(
            501,
            "unimplemented",
            "the backend cannot do what is asked for",
        )
        .calls_an_agent()
        .error(
            503,
            "unavailable",
            "no host can take it (`details` counts the hosts that each rule turned away)",
        )
}

fn events() -> Call {
    Call::new("Watch an environment")
        .about(
            "Server-sent events, each an `Event` as JSON on one line. The first is the current \
             state; after `destroyed` or `failed` the stream ends. A comment comes after 15 s of \
             silence. A reader that is too slow may miss states in between, never the last one.",
        )
        .events::<Event>("The stream.", event())
        .header("Cache-Control", "`no-cache`.")
        .header("X-Accel-Buffering", "`no`.")
        .error(404, "not_found", MISSING)
}

fn logs() -> Call {
    Call::new("Read what an environment prints")
        .about(
            "Text: what its startup script writes, the guest's console, or the guest agent's log; \
             of each the last 256 KiB, of the script that much of each phase. With `follow` the \
             answer goes on until the script has ended, or the VM has. Secret values are redacted. \
             Once the environment is gone ask for its task.",
        )
        .text("The text.", "text/plain", "cc -c main.c\n")
        .header("Cache-Control", "`no-cache`.")
        .header("X-Accel-Buffering", "`no`.")
        .error(
            400,
            "invalid_argument",
            "`source`, `phase` or `follow` is unknown",
        )
        .error(404, "not_found", MISSING)
        .error(
            409,
            "conflict",
            "its host does not have it yet, or any more",
        )
        .error(500, "internal", "the guest or its host does not answer")
        .error(
            501,
            "unimplemented",
            "there is no guest, or its host's agent is too old",
        )
        .error(503, "unavailable", "the guest is booting")
}

fn fleet_events() -> Call {
    Call::new("Watch all environments")
        .about(
            "As the stream of one environment, without a first record of the state and without an \
             end. Any orchestrator of the fleet goes on from an event of any other.",
        )
        .events::<Event>("The stream.", event())
        .header("Cache-Control", "`no-cache`.")
        .header("X-Accel-Buffering", "`no`.")
}

fn event() -> Value {
    json!({
        "id": "0123456789abcdef0123456789abcdef", "event": "state", "vm_id": "fuse-build-17",
        "state": "running", "url": "10.0.0.5:19551", "updated_at": "2026-01-15T10:00:04Z",
    })
}

fn actions() -> Vec<(&'static str, Call)> {
    let mut actions = snapshot::actions();
    actions.push((
        "exec",
        Call::new("Run a command in the guest")
            .about(
                "Exactly one of `cmd` and `shell`. Any exit status is a 200. Output is text: what \
                 is not UTF-8 is replaced, and what is over 8 MiB left out. With `stream=1` the \
                 answer is server-sent events, each an `ExecFrame` as JSON on one line: all output \
                 as it is produced, and `exit` as the last, or `error` when the guest, its host or \
                 the orchestrator went away before the command ended; a comment comes after 15 s \
                 of silence. With `Upgrade: fuse-attach/1` the connection itself is handed over: \
                 the frames of `attach` without a terminal, and the command's input stays open \
                 until an empty stdin frame. A caller that leaves ends the command.",
            )
            .scope("exec")
            .body::<ExecRequest>(
                MAX_BODY_LARGE,
                json!({"cmd": ["uname", "-r"], "timeout_ms": 5000}),
            )
            .json::<ExecResponse>(
                200,
                "It ended.",
                json!({"exit_code": 0, "stdout": "6.12.0\n", "stderr": ""}),
            )
            .events::<ExecFrame>(
                "With `stream=1`: what it writes, then how it ended.",
                json!({"event": "stdout", "data": "Ni4xMi4wCg=="}),
            )
            .empty(
                101,
                "With `Upgrade`: the connection speaks `fuse-attach/1` from here on.",
            )
            .error(400, "invalid_argument", "both or none of `cmd` and `shell`")
            .error(404, "not_found", MISSING)
            .error(409, "conflict", "the environment is not `running`")
            .error(500, "internal", "the guest or its host does not answer")
            .error(501, "unimplemented", "there is no guest")
            .calls_an_agent(),
    ));
    actions
}

pub(super) fn running() -> Value {
    json!({
        "id": "fuse-build-17", "state": "running", "task_id": "build-17", "host_id": "host-1",
        "url": "10.0.0.5:19551",
        "spec": {"cpus": 2, "ram_mb": 2048, "labels": {"disk": "nvme"}},
        "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:04Z",
        "endpoints": [{"as": "web", "url": "10.0.0.5:32000", "port": 8080}],
        "egress": {"mode": "direct"},
    })
}

fn accepted() -> Value {
    json!({
        "id": "fuse-build-17", "state": "provisioning", "task_id": "build-17", "host_id": "host-1",
        "url": "", "spec": {"cpus": 2, "ram_mb": 2048, "labels": {"disk": "nvme"}},
        "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z",
        "egress": {"mode": "direct"},
    })
}
