//! `dead-letters`: what was given up on and needs a person.

use clap::Args;
use fuse_wire_api::{DeadLetter, DeadLetterList};

use super::paging::{PageArgs, warn_of_more};
use crate::app::App;
use crate::error::Error;
use crate::render::table::{TableCell, table, text};
use crate::render::time;

const HEADER: [&str; 6] = ["KIND", "ENTITY", "TASK", "TRIES", "LAST SEEN", "REASON"];

/// `dead-letters`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  fuse dead-letters\n\n\
    `orphan_destroy` is a VM without a record that its host does not destroy, `stuck_task` and \
    `idle_timeout` are environments that were to end and did not. Needs the master token.")]
pub(crate) struct DeadLettersArgs {
    /// Paging.
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Lists.
pub(crate) async fn run(app: &App, args: &DeadLettersArgs) -> Result<(), Error> {
    let client = app.client()?;
    let mut all = DeadLetterList::default();
    let mut next = Some(args.page.first());
    while let Some(page) = next.take() {
        let list = client.dead_letters(&page).await?;
        next = args.page.following(list.next_cursor.as_ref());
        all.dead_letters.extend(list.dead_letters);
        all.next_cursor = list.next_cursor;
    }
    if app.io.is_json() {
        return Ok(app.io.json(&all)?);
    }
    if all.dead_letters.is_empty() {
        app.io.faint("nothing was given up on");
    } else {
        let rows: Vec<_> = all.dead_letters.iter().map(row).collect();
        app.io.data(&table(&HEADER, rows))?;
    }
    warn_of_more(app, all.next_cursor.as_ref());
    Ok(())
}

fn row(letter: &DeadLetter) -> Vec<TableCell> {
    vec![
        text(&letter.kind),
        text(&letter.entity_id),
        text(&letter.task_id),
        text(&letter.retry_count.to_string()),
        text(&time::stamp(letter.last_seen_at)),
        text(&letter.reason),
    ]
}
