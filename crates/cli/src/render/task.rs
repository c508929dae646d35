//! Tasks as text.

use fuse_wire_api::Task;

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
    block.row_if_some("error", &task.last_error);
    block.render()
}
