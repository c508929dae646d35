//! Build steps on their way: where they stand in the script, and what to say when one fails.

use fuse_fusefile::{Compiled, Start};
use fuse_wire_api::StartupSteps;

use super::Error;
use crate::commands::by_hand;
use crate::error::Error as CliError;
use crate::wait::{self, View};

/// Where the steps stand in the script of this start; `None` when it holds none.
pub(super) fn places(compiled: &Compiled, start: &Start<'_>) -> Option<StartupSteps> {
    let done = match start {
        Start::Cold => 0,
        Start::Seeded(_) => return None,
        Start::Layer { steps, .. } => *steps,
    };
    let offsets: Result<Vec<u32>, _> = compiled
        .script
        .step_offsets(done)
        .into_iter()
        .map(u32::try_from)
        .collect();
    // A script beyond 4 GiB is refused by the API, with or without its places.
    let offsets = offsets.ok().filter(|offsets| !offsets.is_empty())?;
    Some(StartupSteps {
        first: u32::try_from(done + 1).ok()?,
        total: u32::try_from(compiled.steps.len()).ok()?,
        offsets,
    })
}

/// Names the step that failed and the command that shows it failing. The guest of a failed create is
/// gone, so it takes another one, up to the step before.
pub(super) fn explain(
    failure: wait::Error,
    view: &View,
    compiled: &Compiled,
    id: &str,
) -> CliError {
    let hint = view.failed_step().and_then(|event| {
        let index = (event.index as usize).checked_sub(1)?;
        let field = &compiled.steps.get(index)?.field;
        let command = by_hand::boot(&compiled.script, index, id)?;
        Some(format!(
            "{field} ended with exit code {}. nothing of it is left; to try it by hand, `fuse up` without {field} and \
             what follows, then:\n  {command}",
            event.exit_code
        ))
    });
    match hint {
        Some(hint) => Error::Step { failure, hint }.into(),
        None => failure.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(source: &str) -> Compiled {
        fuse_fusefile::check("F", source.as_bytes(), None)
            .compiled
            .unwrap()
    }

    #[test]
    fn steps_of_a_layer_are_counted_from_the_first_that_is_left() {
        let compiled = compiled("version: 1\nbuild: [a, b, c]\nrun: d\n");
        let all = places(&compiled, &Start::Cold).unwrap();
        assert_eq!((all.first, all.total, all.offsets.len()), (1, 3, 4));
        let layer = Start::Layer {
            snapshot: "s",
            steps: 2,
        };
        let left = places(&compiled, &layer).unwrap();
        assert_eq!((left.first, left.total, left.offsets.len()), (3, 3, 2));
        let all_done = Start::Layer {
            snapshot: "s",
            steps: 3,
        };
        assert_eq!(places(&compiled, &all_done), None);
        assert_eq!(places(&compiled, &Start::Seeded("s")), None);
    }
}
