//! `expose` and `healthcheck`.

use std::collections::HashMap;

use super::place;
use crate::diagnostic::{Report, quoted};
use crate::grammar::names::{is_blank, is_dns_label};
use crate::model::Fusefile;

/// Ports that can be listened on.
const PORTS: std::ops::RangeInclusive<i64> = 1..=65535;

pub(super) fn expose(file: &Fusefile, report: &mut Report<'_>) {
    let mut ports: HashMap<i64, usize> = HashMap::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (i, entry) in file
        .expose
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.broken)
    {
        let port = &entry.port;
        let field = format!("expose[{i}].port");
        if !PORTS.contains(&port.value) {
            // Out of range takes no part in the comparison below.
            if !port.broken {
                report.error(place(port, entry.at), field, "port out of range");
            }
        } else if let Some(first) = ports.get(&port.value) {
            let message = format!("{} already exposed by expose[{first}]", port.value);
            report.error(port.at, field, message);
        } else {
            ports.insert(port.value, i);
        }

        let name = entry.r#as.as_str();
        if name.is_empty() {
            continue;
        }
        let field = format!("expose[{i}].as");
        if !is_dns_label(name) {
            let message = format!("{} is not a DNS label", quoted(name));
            report.error(entry.r#as.at, field.as_str(), message);
        }
        if let Some(first) = names.get(name) {
            let message = format!("{} already used by expose[{first}]", quoted(name));
            report.error(entry.r#as.at, field, message);
        } else {
            names.insert(name, i);
        }
    }
}

pub(super) fn healthcheck(file: &Fusefile, report: &mut Report<'_>) {
    let at = file.healthcheck.at;
    let Some(check) = &file.healthcheck.value else {
        return;
    };
    if !check.http.broken && !check.exec.broken {
        match (check.http.is_some(), !check.exec.is_empty()) {
            (true, true) => report.error(at, "healthcheck", "http or exec, not both"),
            (false, false) => report.error(at, "healthcheck", "http or exec needed"),
            _ => {}
        }
    }
    if let Some(http) = &check.http.value {
        if !http.port.broken && !PORTS.contains(&http.port.value) {
            let at = place(&http.port, check.http.at);
            report.error(at, "healthcheck.http.port", "port out of range");
        }
        let path = http.path.as_str();
        if !path.is_empty() && !path.starts_with('/') {
            let message = format!("must start with a slash, got {}", quoted(path));
            report.error(http.path.at, "healthcheck.http.path", message);
        }
    }
    for (i, argument) in check.exec.iter().enumerate() {
        if !argument.broken && is_blank(argument) {
            report.error(
                argument.at,
                format!("healthcheck.exec[{i}]"),
                "argument empty",
            );
        }
    }
    if check.retries.value < 0 {
        report.error(check.retries.at, "healthcheck.retries", "negative");
    }
}
