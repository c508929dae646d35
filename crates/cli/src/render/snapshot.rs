//! Snapshots as text.

use fuse_wire_api::Snapshot;

use super::block::Block;
use super::table::{self, TableCell, text};
use super::{or_dash, size, style, time};

/// Header of the list.
pub(crate) const HEADER: [&str; 8] = [
    "ID", "VM ID", "STATE", "MODE", "SIZE", "PARENT", "CREATED", "COMMENT",
];

/// One row of the list.
pub(crate) fn row(snapshot: &Snapshot) -> Vec<TableCell> {
    vec![
        text(&snapshot.id),
        text(&snapshot.vm_id),
        table::state(&snapshot.state),
        text(&snapshot.mode),
        text(&size::bytes(snapshot.size_bytes)),
        text(&snapshot.parent_snapshot_id),
        text(&time::stamp(snapshot.created_at)),
        text(&snapshot.comment),
    ]
}

/// The detail block.
pub(crate) fn block(snapshot: &Snapshot) -> String {
    let retention = match snapshot.retention_until {
        Some(until) => time::stamp(until),
        None => "keep forever".to_owned(),
    };
    let mut block = Block::new();
    block
        .row("id", snapshot.id.as_str())
        .row("vm id", or_dash(&snapshot.vm_id))
        .row("task id", or_dash(&snapshot.task_id))
        .row("tenant id", or_dash(&snapshot.tenant_id))
        .row("parent", or_dash(&snapshot.parent_snapshot_id))
        .row("mode", or_dash(&snapshot.mode))
        .row("state", style::state(&snapshot.state))
        .row("kind", or_dash(&snapshot.kind))
        .row("size", size::bytes(snapshot.size_bytes))
        .row("retention", retention)
        .row("created", time::stamp(snapshot.created_at))
        .row("updated", time::stamp(snapshot.updated_at))
        .row("comment", or_dash(&snapshot.comment))
        .row("export ref", or_dash(&snapshot.export_ref))
        .row_if_some("name", &snapshot.name)
        .row_if_some("host id", &snapshot.host_id)
        .row_if_some("layer key", &snapshot.layer_key)
        .row_if_some("arch", &snapshot.arch)
        .row_if_some("digest", &snapshot.digest)
        .row_if_some("error", &snapshot.last_error);
    block.render()
}

/// One line per recorded copy.
pub(crate) fn exports(snapshot: &Snapshot) -> Vec<String> {
    let line = |(at, export): (usize, &fuse_wire_api::SnapshotExport)| {
        let error = match export.last_error.as_str() {
            "" => String::new(),
            error => format!(" ({error})"),
        };
        format!(
            "export[{at}]: {} -> {}{error}",
            export.destination, export.status
        )
    };
    snapshot.exports.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::table::table;

    fn plain(text: &str) -> String {
        let zone = time::stamp("2026-01-15T10:00:00Z".parse().unwrap());
        anstream::adapter::strip_str(text)
            .to_string()
            .replace(&zone, "2026-01-15 10:00")
    }

    #[test]
    fn block_list_and_exports() {
        let snapshot: Snapshot = serde_json::from_str(
            r#"{"id":"snap-1","vm_id":"fuse-a","task_id":"a","tenant_id":"a","mode":"manual",
                "state":"ready","kind":"disk","size_bytes":1572864,"comment":"before",
                "created_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z",
                "export_ref":"s3://b/x",
                "exports":[{"destination":"s3://b/x","status":"failed","last_error":"denied"}]}"#,
        )
        .unwrap();
        assert_eq!(
            exports(&snapshot),
            ["export[0]: s3://b/x -> failed (denied)"]
        );
        insta::assert_snapshot!("snapshot_block", plain(&block(&snapshot)));
        insta::assert_snapshot!(
            "snapshot_list",
            plain(&table(&HEADER, vec![row(&snapshot)]))
        );
    }
}
