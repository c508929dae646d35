//! Guest paths of `files` and `copy`: where each entry lands, and that no two land in one place.

use std::collections::HashMap;

use super::{CopyEntry, FileEntry, workspace};
use crate::diagnostic::{Position, Report, quoted};
use crate::grammar::{guest_path, names};
use crate::model::{Field, File, Fusefile};
use crate::sources::{Body, Contents, MAX_FILES_BYTES};

pub(super) fn files(
    file: &Fusefile,
    contents: &Contents,
    report: &mut Report<'_>,
) -> Vec<FileEntry> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut total: u64 = 0;
    let mut out = Vec::with_capacity(file.files.len());
    for (i, entry) in file
        .files
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.broken)
    {
        let mode = entry.mode.as_str();
        if !mode.is_empty() && !names::is_file_mode(mode) {
            let message = format!("bad octal mode {}", quoted(mode));
            report.error(entry.mode.at, format!("files[{i}].mode"), message);
        }
        if let Some(message) = path_problem(entry, i, workspace(file), &mut seen) {
            let at = entry.path.at.or(entry.at);
            report.error(at, format!("files[{i}].path"), message);
        }
        let (size, body) = body(entry, contents.body(i));
        total = total.saturating_add(size);
        out.push(FileEntry {
            path: entry.path.value.clone(),
            mode: entry.mode.value.clone(),
            body,
        });
    }
    if total > MAX_FILES_BYTES {
        let message = format!("{total} bytes, limit {MAX_FILES_BYTES}; fetch large data in a step");
        report.error(file.files.at, "files", message);
    }
    out
}

fn path_problem(
    entry: &Field<File>,
    index: usize,
    workspace: &str,
    seen: &mut HashMap<String, usize>,
) -> Option<String> {
    let path = entry.path.as_str();
    if entry.path.broken {
        return None;
    }
    if path.is_empty() {
        return Some("missing".to_owned());
    }
    if guest_path::has_control(path) {
        return Some("control character".to_owned());
    }
    if guest_path::has_parent_segment(path) {
        return Some(format!("parent segment {}", quoted(path)));
    }
    if path.ends_with('/') {
        return Some(format!("names a directory, got {}", quoted(path)));
    }
    let resolved = guest_path::resolve(workspace, path);
    if guest_path::is_reserved(&resolved) {
        return Some(reserved(path, &resolved));
    }
    match seen.get(&guest_path::clean(path)) {
        Some(first) => Some(format!("already written by files[{first}]")),
        None => {
            seen.insert(guest_path::clean(path), index);
            None
        }
    }
}

fn reserved(path: &str, resolved: &str) -> String {
    format!(
        "{} resolves to {resolved}, reserved for the guest agent",
        quoted(path)
    )
}

/// The decoded size of an entry, and its body when that is at hand.
fn body(entry: &Field<File>, read: &Body) -> (u64, Vec<u8>) {
    let literal = entry.content.as_deref().unwrap_or_default();
    if entry.source.is_empty() {
        return (length(literal.len()), literal.as_bytes().to_vec());
    }
    match read {
        Body::Unread => (0, Vec::new()),
        Body::Bytes(bytes) => (length(bytes.len()), bytes.clone()),
        Body::TooLarge(size) => (*size, Vec::new()),
    }
}

fn length(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

pub(super) fn copies(file: &Fusefile, report: &mut Report<'_>) -> Vec<CopyEntry> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut out = Vec::with_capacity(file.copy.len());
    for (i, entry) in file.copy.iter().enumerate() {
        // A blank target was reported with the structure.
        if entry.broken || names::is_blank(&entry.to) {
            continue;
        }
        let to = guest_path::resolve(workspace(file), &entry.to);
        if let Some(message) = copy_problem(&entry.to, &to, &seen) {
            report.error(entry.to.at, format!("copy[{i}].to"), message);
            continue;
        }
        seen.insert(to.clone(), i);
        out.push(CopyEntry {
            from: entry.from.value.clone(),
            to,
            at: at(entry),
        });
    }
    out
}

fn at<T>(entry: &Field<T>) -> Option<Position> {
    entry.at
}

fn copy_problem(written: &str, to: &str, seen: &HashMap<String, usize>) -> Option<String> {
    if guest_path::is_reserved(to) {
        return Some(reserved(written, to));
    }
    let first = seen.get(to)?;
    Some(format!(
        "{} resolves to {to}, already written by copy[{first}]",
        quoted(written)
    ))
}
