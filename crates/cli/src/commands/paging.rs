//! `--limit`, `--cursor`, `--all-pages`, the same on every list.

use clap::Args;
use fuse_client::{Client, Error};
use fuse_wire_api::{Environment, ListEnvironments, MAX_PAGE, PageQuery};

use crate::app::App;

/// Which part of a list to show.
#[derive(Debug, Clone, Args)]
pub(crate) struct PageArgs {
    /// Rows of this page; 0 leaves it to the server (50, at most 200).
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) limit: u32,
    /// Start after this cursor, as printed with the previous page.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    /// Fetch every page.
    #[arg(long)]
    pub(crate) all_pages: bool,
}

impl PageArgs {
    /// The first page to ask for.
    pub(crate) fn first(&self) -> PageQuery {
        let limit = if self.all_pages { MAX_PAGE } else { self.limit };
        PageQuery {
            limit: (limit > 0).then(|| limit.to_string()),
            cursor: self.cursor.clone().filter(|cursor| !cursor.is_empty()),
        }
    }

    /// The page to ask for next, if this call wants it.
    pub(crate) fn following(&self, cursor: Option<&String>) -> Option<PageQuery> {
        let cursor = cursor.filter(|_| self.all_pages)?;
        Some(PageQuery {
            limit: Some(MAX_PAGE.to_string()),
            cursor: Some(cursor.clone()),
        })
    }
}

/// Every environment of a host, or of the fleet.
pub(crate) async fn all_environments(
    client: &Client,
    host_id: &str,
) -> Result<Vec<Environment>, Error> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let query = ListEnvironments {
            host_id: host_id.to_owned(),
            limit: Some(MAX_PAGE.to_string()),
            cursor: cursor.take(),
            ..ListEnvironments::default()
        };
        let page = client.environments(&query).await?;
        all.extend(page.environments);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(all),
        }
    }
}

/// Says that a list goes on.
pub(crate) fn warn_of_more(app: &App, next_cursor: Option<&String>) {
    if let Some(cursor) = next_cursor {
        app.io.warn(&format!(
            "there are more results: continue with --cursor {cursor}, or fetch everything with --all-pages"
        ));
    }
}
