//! The layer plan.

use fuse_fusefile::layers::{Plan, PlanStep, Status};

use super::block::Block;
use super::table::{table, text};

/// Bytes of a step that are shown.
const STEP_BYTES: usize = 48;
/// Digits of a key that are shown.
const KEY_DIGITS: usize = 12;

/// Details, and a table when there are steps.
pub(crate) fn render(plan: &Plan) -> String {
    let mut block = Block::new();
    block
        .row("base key", plan.base_key.as_str())
        .row_if_some("arch", &plan.arch)
        .row(
            "cache",
            if plan.cache_enabled {
                "enabled"
            } else {
                "disabled"
            },
        );
    let mut out = block.render();
    if !plan.steps.is_empty() {
        let rows = plan.steps.iter().map(row).collect();
        out += &table(&["#", "STATUS", "KEY", "STEP", "NOTE"], rows);
    }
    out
}

fn row(step: &PlanStep) -> Vec<super::table::TableCell> {
    let status = match step.status {
        Status::Hit => "hit",
        Status::Miss => "miss",
        Status::Skip => "skip",
    };
    // Keys are hexadecimal, so bytes are digits.
    let key = step.key.get(..KEY_DIGITS).unwrap_or(&step.key);
    vec![
        text(&step.index.to_string()),
        text(status),
        text(key),
        text(&shorten(&step.script)),
        text(step.reason),
    ]
}

/// One line of at most [`STEP_BYTES`] bytes.
fn shorten(script: &str) -> String {
    let line = script.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() <= STEP_BYTES {
        return line;
    }
    let mut end = STEP_BYTES - 3;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_cut_between_characters() {
        assert_eq!(shorten("a\n  b"), "a b");
        let exact = "x".repeat(48);
        assert_eq!(shorten(&exact), exact);
        assert_eq!(shorten(&"x".repeat(49)), format!("{}...", "x".repeat(45)));
        let wide = format!("{}ä{}", "x".repeat(44), "y".repeat(9));
        assert_eq!(shorten(&wide), format!("{}...", "x".repeat(44)));
    }
}
