//! Tasks as text.

use fuse_wire_api::{Task, TaskFailure};

use super::block::Block;
use super::{or_dash, style, time};

/// The detail block.
pub(crate) fn block(task: &Task) -> String {
    let mut block = Block::new();
    block
        .row("task id", task.task_id.as_str())
        .row("environment", or_dash(&task.vm_id))
        .row("status", style::state(&task.run_status))
        .row("assigned", time::stamp(task.assigned_at))
        .row("updated", time::stamp(task.updated_at));
    if let Some(output) = &task.output {
        block.row("script exit", output.exit_code.to_string());
    }
    if let Some(failure) = &task.failure {
        add_failure(&mut block, failure);
    }
    block.row_if_some("error", &task.last_error);
    block.render()
}

fn add_failure(block: &mut Block, failure: &TaskFailure) {
    let placement = &failure.placement;
    block.row_if_some("failed step", &failure.step);
    let chosen = match placement.candidates {
        0 => String::new(),
        count => format!(
            "{}, of {count} possible hosts ({})",
            placement.host_id, placement.policy
        ),
    };
    block.row_if_some("placed on", chosen.trim_start_matches(", "));
    let rejected: Vec<String> = placement
        .rejected
        .iter()
        .map(|(gate, count)| {
            format!(
                "{count} by {}",
                gate.strip_prefix("rejected_").unwrap_or(gate)
            )
        })
        .collect();
    block.row_if_some("hosts rejected", &rejected.join(", "));
    for timing in &failure.timings {
        let took = format!("{:.1} ms", timing.duration_ms);
        block.row(format!("  {}", timing.step), took);
    }
    for (what, bytes) in [
        ("console kept", failure.console_bytes),
        ("agent log kept", failure.agent_bytes),
    ] {
        if bytes > 0 {
            block.row(what, format!("{bytes} bytes"));
        }
    }
    if let Some(until) = failure.kept_until {
        block.row("kept until", time::stamp(until));
    }
}
