//! Tasks, the audit log, dead letters.

use fuse_wire_api::{AuditEventList, DeadLetterList, Task};
use serde_json::json;

use super::{
    environment::{PHASE, SOURCE},
    operation::{Call, Operation},
};

pub(super) fn operations() -> Vec<Operation> {
    let records = ("Records", "");
    vec![
        Operation::new(
            ("GET", "/v1/tasks/{id}"),
            "getTask",
            ("Tasks", "The task's id, as its creator chose it."),
            task(),
        ),
        Operation::new(
            ("GET", "/v1/tasks/{id}/logs"),
            "readTaskLogs",
            ("Tasks", "The task's id, as its creator chose it."),
            task_logs(),
        )
        .query("source", SOURCE)
        .query("phase", PHASE),
        Operation::new(("GET", "/v1/audit"), "listAuditEvents", records, audit())
            .query("entity_type", "`vm`, `task`, `host` or `api`.")
            .query("entity_id", "Only what concerns this one.")
            .query("type", "Only this, such as `vm.running`.")
            .query("since", "From this time on (RFC 3339).")
            .query("until", "Before this time (RFC 3339).")
            .paged(),
        Operation::new(
            ("GET", "/v1/dead-letters"),
            "listDeadLetters",
            records,
            dead_letters(),
        )
        .paged(),
    ]
}

fn task() -> Call {
    Call::new("Read a task")
        .about(
            "The record outlives the environment: it says how the task ended, and keeps what a \
             startup script wrote, and for 24 hours what is known of a creation that failed. \
             Secret values are redacted.",
        )
        .json::<Task>(
            200,
            "The task.",
            json!({
                "task_id": "build-17", "vm_id": "fuse-build-17", "run_status": "failed",
                "last_error": "startup script failed in the run phase with exit status 2: no such file",
                "output": {"exit_code": 2, "stderr": "no such file\n"},
                "failure": {
                    "step": "script",
                    "placement": {"host_id": "host-1", "policy": "spread", "candidates": 3},
                    "timings": [
                        {"step": "boot", "duration_ms": 182.4},
                        {"step": "host.spawn", "duration_ms": 3.1},
                        {"step": "upload", "duration_ms": 6.2},
                        {"step": "script", "duration_ms": 4012.7},
                    ],
                    "console_bytes": 9120, "agent_bytes": 1411,
                    "kept_until": "2026-01-16T10:00:09Z",
                },
                "assigned_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:09Z",
            }),
        )
        .error(404, "not_found", "no such task")
}

fn task_logs() -> Call {
    Call::new("Read what a task printed")
        .about(
            "Also when its environment is gone: what its startup script wrote, and for 24 hours \
             after a creation that failed the end of the console and the guest agent's log. Secret \
             values are redacted.",
        )
        .text("The text.", "text/plain", "cc -c main.c\n")
        .error(400, "invalid_argument", "`source` or `phase` is unknown")
        .error(
            404,
            "not_found",
            "no such task, or nothing of that kind was kept",
        )
}

fn audit() -> Call {
    Call::new("Read the audit log")
        .about("Newest first. Payloads never hold secrets, tokens or keys.")
        .json::<AuditEventList>(
            200,
            "One page.",
            json!({"audit_events": [{
                "entity_type": "vm", "entity_id": "fuse-build-17", "type": "vm.running",
                "payload": {"host_id": "host-1"}, "created_at": "2026-01-15T10:00:04Z",
            }]}),
        )
        .error(400, "invalid_argument", "`since` or `until` is not a time")
}

fn dead_letters() -> Call {
    Call::new("Read what was given up on")
        .about("By kind, then entity.")
        .json::<DeadLetterList>(
            200,
            "One page.",
            json!({"dead_letters": [{
                "kind": "orphan_destroy", "entity_id": "fuse-old", "reason": "host host-1 is unreachable",
                "retry_count": 5, "payload": {},
                "first_seen_at": "2026-01-15T10:00:00Z", "last_seen_at": "2026-01-15T10:02:30Z",
            }]}),
        )
}
