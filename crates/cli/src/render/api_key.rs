//! API keys as text.

use fuse_wire_api::{ApiKey, CreatedApiKey};

use super::block::Block;
use super::table::{TableCell, text};
use super::{or_dash, time};

/// Header of the list.
pub(crate) const HEADER: [&str; 6] = ["ID", "LABEL", "CREATED", "LAST USED", "REVOKED", "SCOPES"];

/// One row of the list.
pub(crate) fn row(key: &ApiKey) -> Vec<TableCell> {
    let stamp = |at: Option<_>| at.map(time::stamp).unwrap_or_default();
    vec![
        text(&key.id),
        text(&key.label),
        text(&time::stamp(key.created_at)),
        text(&stamp(key.last_used_at)),
        text(&stamp(key.revoked_at)),
        text(&key.scopes.join(",")),
    ]
}

/// A new key, with the key itself.
pub(crate) fn block(created: &CreatedApiKey) -> String {
    let mut block = Block::new();
    block
        .row("id", created.metadata.id.as_str())
        .row("label", or_dash(&created.metadata.label))
        .row("created", time::stamp(created.metadata.created_at))
        .row_if_some("scopes", &created.metadata.scopes.join(","))
        .row("key", created.key.as_str());
    block.render()
}
