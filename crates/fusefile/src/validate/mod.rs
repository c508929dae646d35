//! Structure: stage 3 of the catalogue, a pure function of the decoded document.
//!
//! Problems come in the catalogue's order; maps are visited in ascending byte order of their keys and lists
//! in order, so the same file always gives the same messages. Values that failed to decode are skipped.

mod entries;
mod network;
mod steps;

use crate::decode::Document;
use crate::diagnostic::{Diagnostic, Position, Report, path_segment, quoted};
use crate::grammar::guest_path;
use crate::grammar::names::{self, is_dns_label, is_placement_label};
use crate::model::{Field, Fusefile};

/// The structural problems of a document.
#[must_use]
pub fn validate(document: &Document) -> Vec<Diagnostic> {
    let file = &document.file;
    let mut report = Report::new(&document.path);
    version(file, &mut report);
    name(file, &mut report);
    labels(file, &mut report);
    steps::check(file, &mut report);
    entries::env(file, &mut report);
    entries::services(file, &mut report);
    entries::files(file, &mut report);
    entries::copy(file, &mut report);
    workspace(file, &mut report);
    network::expose(file, &mut report);
    network::healthcheck(file, &mut report);
    desktop(file, &mut report);
    secrets(file, &mut report);
    report.into_problems()
}

/// Where a field stands, or else where the thing it is missing from does.
fn place<T>(field: &Field<T>, parent: Option<Position>) -> Option<Position> {
    field.at.or(parent)
}

fn version(file: &Fusefile, report: &mut Report<'_>) {
    if *file.version != 1 && !file.version.broken {
        let hint = "write version: 1".to_owned();
        let at = place(&file.version, Some(Position::START));
        report.hinted(at, "version", "only version 1 exists", Some(hint));
    }
}

fn name(file: &Fusefile, report: &mut Report<'_>) {
    let name = file.name.as_str();
    if !name.is_empty() && !is_dns_label(name) {
        let hint = Some(names::slug(name)).filter(|slug| !slug.is_empty());
        let message = format!(
            "{} is not a DNS label (a-z, 0-9, inner dashes, max 63)",
            quoted(name)
        );
        report.hinted(
            file.name.at,
            "name",
            message,
            hint.map(|s| format!("did you mean {s}?")),
        );
    }
}

fn labels(file: &Fusefile, report: &mut Report<'_>) {
    for (key, entry) in file.placement.labels.iter() {
        if !is_placement_label(key) {
            let message = format!("bad label key {}", quoted(key));
            report.error(entry.key_at, "placement.labels", message);
        }
        if !entry.value.broken && !is_placement_label(&entry.value) {
            let field = format!("placement.labels.{}", path_segment(key));
            let message = format!("bad label value {}", quoted(&entry.value));
            report.error(place(&entry.value, entry.key_at), field, message);
        }
    }
}

fn workspace(file: &Fusefile, report: &mut Report<'_>) {
    let path = file.workspace.as_str();
    if path.is_empty() {
        return;
    }
    let message = if guest_path::has_control(path) {
        "not allowed in a directory: control character".to_owned()
    } else if !path.starts_with('/') {
        format!("must be absolute, got {}", quoted(path))
    } else if guest_path::has_parent_segment(path) {
        format!(
            "not allowed in a directory: parent segment {}",
            quoted(path)
        )
    } else {
        return;
    };
    report.error(file.workspace.at, "workspace", message);
}

fn desktop(file: &Fusefile, report: &mut Report<'_>) {
    let Some(desktop) = &file.desktop.value else {
        return;
    };
    for (key, size) in [("width", &desktop.width), ("height", &desktop.height)] {
        if !size.broken && !(320..=3840).contains(&size.value) {
            let message = format!("320 to 3840, got {}", size.value);
            report.error(
                place(size, file.desktop.at),
                format!("desktop.{key}"),
                message,
            );
        }
    }
}

fn secrets(file: &Fusefile, report: &mut Report<'_>) {
    for (i, secret) in file.secrets.iter().enumerate() {
        if !secret.broken && names::is_blank(secret) {
            report.error(secret.at, format!("secrets[{i}]"), "name empty");
        }
    }
}
