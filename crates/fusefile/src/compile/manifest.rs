//! The manifest: what the server needs to know of `env` and `services`.
//!
//! Compact JSON with a fixed key order. A file without env and services gives exactly the server's own
//! default manifest, so the bytes matter down to the escaping of `<`, `>` and `&`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{json, workspace};
use crate::model::{self, EnvValue, Fusefile, List};

#[derive(Serialize)]
struct Manifest<'a> {
    version: &'static str,
    machine: Machine<'a>,
    services: BTreeMap<&'a str, Service<'a>>,
}

#[derive(Serialize)]
struct Machine<'a> {
    workspace: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<&'a str, Value<'a>>,
}

/// A literal or the name of a secret, never both.
#[derive(Serialize)]
enum Value<'a> {
    #[serde(rename = "value")]
    Literal(&'a str),
    #[serde(rename = "secret")]
    Secret(&'a str),
}

#[derive(Serialize)]
struct Service<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    image: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<&'a str, Value<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    restart: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthcheck: Option<Healthcheck<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    depends_on: Vec<&'a str>,
}

#[derive(Serialize)]
struct Healthcheck<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    test: Vec<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    interval: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    timeout: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<i64>,
}

pub(super) fn render(file: &Fusefile) -> String {
    json::compact(&Manifest {
        version: "1",
        machine: Machine {
            workspace: workspace(file),
            env: env(&file.env),
        },
        services: file
            .services
            .iter()
            .map(|(name, entry)| (name.as_str(), service(&entry.value)))
            .collect(),
    })
}

fn service(service: &model::Service) -> Service<'_> {
    Service {
        image: &service.image,
        ports: service.ports.iter().map(|port| port.value).collect(),
        env: env(&service.env),
        command: texts(&service.command),
        restart: &service.restart,
        healthcheck: service.healthcheck.as_ref().map(|check| Healthcheck {
            test: texts(&check.test),
            interval: &check.interval,
            timeout: &check.timeout,
            retries: Some(check.retries.value).filter(|retries| *retries != 0),
        }),
        depends_on: texts(&service.depends_on),
    }
}

fn env(map: &model::Map<EnvValue>) -> BTreeMap<&str, Value<'_>> {
    map.iter()
        .map(|(name, entry)| {
            let given = &entry.value;
            let value = match given.secret.as_str() {
                "" => Value::Literal(given.value.value.value.as_deref().unwrap_or_default()),
                secret => Value::Secret(secret),
            };
            (name.as_str(), value)
        })
        .collect()
}

fn texts(list: &List<String>) -> Vec<&str> {
    list.iter().map(|item| item.as_str()).collect()
}
