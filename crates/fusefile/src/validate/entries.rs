//! `env`, `services`, `files`, `copy`.

use super::place;
use crate::diagnostic::{Position, Report, path_segment, quoted};
use crate::grammar::{guest_path, names};
use crate::model::{Entry, EnvValue, Field, Fusefile, Map, Service};

pub(super) fn env(file: &Fusefile, report: &mut Report<'_>) {
    for (key, entry) in file.env.iter() {
        if names::is_blank(key) {
            report.error(entry.key_at, "env", "variable name missing");
        } else if names::is_identifier(key) {
            env_value(&format!("env.{key}"), entry, report);
        } else {
            let message = format!("{} is not a shell identifier", quoted(key));
            report.error(entry.key_at, "env", message);
        }
    }
}

fn env_value(path: &str, entry: &Entry<EnvValue>, report: &mut Report<'_>) {
    let value = &entry.value;
    if value.broken || value.value.value.broken || value.secret.broken {
        return;
    }
    let literal = value.value.value.value.as_deref();
    match (literal, value.secret.is_empty()) {
        (Some(text), false) if !text.is_empty() => {
            report.error(entry.key_at, path, "value or secret, not both");
        }
        (None, true) => report.error(entry.key_at, path, "value or secret needed"),
        _ => {}
    }
}

pub(super) fn services(file: &Fusefile, report: &mut Report<'_>) {
    let hint = names_of(&file.services);
    for (name, entry) in file
        .services
        .iter()
        .filter(|(_, entry)| !entry.value.broken)
    {
        let path = format!("services.{}", path_segment(name));
        let service = &entry.value.value;
        if service.image.is_empty() && !service.image.broken {
            report.error(entry.key_at, path.as_str(), "image missing");
        }
        ports(&path, service, report);
        service_env(&path, service, report);
        healthcheck(&path, service, report);
        depends_on(&path, service, file, hint.as_deref(), report);
    }
}

fn ports(path: &str, service: &Service, report: &mut Report<'_>) {
    for (i, port) in service.ports.iter().enumerate() {
        if !port.broken && !(1..=65535).contains(&port.value) {
            report.error(port.at, format!("{path}.ports[{i}]"), "port out of range");
        }
    }
}

fn service_env(path: &str, service: &Service, report: &mut Report<'_>) {
    for (key, entry) in service.env.iter() {
        if names::is_blank(key) {
            report.error(entry.key_at, format!("{path}.env"), "variable name missing");
        } else {
            env_value(&format!("{path}.env.{}", path_segment(key)), entry, report);
        }
    }
}

fn healthcheck(path: &str, service: &Service, report: &mut Report<'_>) {
    if let Some(check) = &service.healthcheck.value
        && check.retries.value < 0
    {
        report.error(
            check.retries.at,
            format!("{path}.healthcheck.retries"),
            "negative",
        );
    }
}

fn depends_on(
    path: &str,
    service: &Service,
    file: &Fusefile,
    hint: Option<&str>,
    report: &mut Report<'_>,
) {
    for (i, name) in service.depends_on.iter().enumerate() {
        if !name.broken && !file.services.contains_key(name.as_str()) {
            let message = format!("{} is not a service of this file", quoted(name));
            let field = format!("{path}.depends_on[{i}]");
            report.hinted(name.at, field, message, hint.map(str::to_owned));
        }
    }
}

/// The declared services for a hint, when they are few and short enough to read.
fn names_of(services: &Map<Service>) -> Option<String> {
    let length: usize = services.keys().map(|name| name.len() + 2).sum();
    let names: Vec<String> = services.keys().map(|name| path_segment(name)).collect();
    (length <= 120).then(|| format!("services here: {}", names.join(", ")))
}

pub(super) fn files(file: &Fusefile, report: &mut Report<'_>) {
    for (i, entry) in file.files.iter().enumerate() {
        if entry.broken || entry.source.broken || entry.content.broken {
            continue;
        }
        let message = match (entry.source.is_empty(), entry.content.as_deref()) {
            (false, Some(text)) if !text.is_empty() => "source or content, not both",
            (true, None) => "source or content needed",
            _ => continue,
        };
        report.error(entry.at, format!("files[{i}]"), message);
    }
}

pub(super) fn copy(file: &Fusefile, report: &mut Report<'_>) {
    for (i, entry) in file
        .copy
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.broken)
    {
        if !entry.from.broken && names::is_blank(&entry.from) {
            report.error(
                place(&entry.from, entry.at),
                format!("copy[{i}].from"),
                "missing",
            );
        }
        copy_to(&format!("copy[{i}].to"), &entry.to, entry.at, report);
    }
}

fn copy_to(path: &str, to: &Field<String>, parent: Option<Position>, report: &mut Report<'_>) {
    let message = if to.broken {
        return;
    } else if names::is_blank(to) {
        "missing".to_owned()
    } else if guest_path::has_control(to) {
        "control character".to_owned()
    } else if guest_path::has_parent_segment(to) {
        format!("parent segment {}", quoted(to))
    } else {
        return;
    };
    report.error(place(to, parent), path, message);
}
