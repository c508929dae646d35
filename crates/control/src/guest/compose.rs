//! `/fuse/compose.yaml` from a manifest's services.
//!
//! Scalars are written as double-quoted JSON strings, which every YAML reader takes
//! as they are: no value can turn into a number, a boolean or a second key. A dollar
//! sign is doubled, because compose would take it for a variable of its own.

use std::{collections::BTreeMap, fmt::Write as _};

use fuse_wire_api::{Service, ServiceHealthcheck};

use super::env_file;

/// The document; `None` when there are no services.
pub(super) fn render(
    services: &BTreeMap<String, Service>,
    secrets: &BTreeMap<String, String>,
) -> Option<String> {
    if services.is_empty() {
        return None;
    }
    let mut out = Writer::default();
    out.line(0, "services:");
    for (name, service) in services {
        out.line(1, &format!("{}:", quoted(name)));
        write_service(&mut out, service, secrets);
    }
    Some(out.text)
}

fn write_service(out: &mut Writer, service: &Service, secrets: &BTreeMap<String, String>) {
    out.pair(2, "image", &service.image);
    let ports: Vec<String> = service.ports.iter().map(|p| format!("{p}:{p}")).collect();
    out.list(2, "ports", &ports);
    if !service.env.is_empty() {
        out.line(2, "environment:");
        for (key, source) in &service.env {
            let value = quoted(env_file::value(source, secrets));
            out.line(3, &format!("{}: {value}", quoted(key)));
        }
    }
    out.list(2, "command", &service.command);
    if !service.restart.is_empty() {
        out.pair(2, "restart", &service.restart);
    }
    if let Some(healthcheck) = &service.healthcheck {
        write_healthcheck(out, healthcheck);
    }
    out.list(2, "depends_on", &service.depends_on);
}

fn write_healthcheck(out: &mut Writer, healthcheck: &ServiceHealthcheck) {
    if *healthcheck == ServiceHealthcheck::default() {
        return;
    }
    out.line(2, "healthcheck:");
    out.list(3, "test", &healthcheck.test);
    if !healthcheck.interval.is_empty() {
        out.pair(3, "interval", &healthcheck.interval);
    }
    if !healthcheck.timeout.is_empty() {
        out.pair(3, "timeout", &healthcheck.timeout);
    }
    if healthcheck.retries != 0 {
        out.line(3, &format!("retries: {}", healthcheck.retries));
    }
}

#[derive(Default)]
struct Writer {
    text: String,
}

impl Writer {
    fn line(&mut self, depth: usize, content: &str) {
        // Writing to a string cannot fail.
        let _infallible = writeln!(self.text, "{:1$}{content}", "", depth * 2);
    }

    fn pair(&mut self, depth: usize, key: &str, value: &str) {
        self.line(depth, &format!("{key}: {}", quoted(value)));
    }

    fn list(&mut self, depth: usize, key: &str, values: &[String]) {
        if values.is_empty() {
            return;
        }
        self.line(depth, &format!("{key}:"));
        for value in values {
            self.line(depth + 1, &format!("- {}", quoted(value)));
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text.replace('$', "$$")).to_string()
}

#[cfg(test)]
mod tests {
    use fuse_wire_api::Manifest;

    use super::*;

    fn render_manifest(text: &str, secrets: &BTreeMap<String, String>) -> Option<String> {
        render(&Manifest::parse(text.as_bytes()).unwrap().services, secrets)
    }

    #[test]
    fn no_services_no_document() {
        assert_eq!(render_manifest(Manifest::BUILT_IN, &BTreeMap::new()), None);
    }

    #[test]
    fn services_and_keys_are_sorted_and_secrets_resolved() {
        let manifest = r#"{"services":{
            "web":{"image":"nginx:1","depends_on":["db"],"command":["a","b: c"]},
            "db":{"image":"postgres","ports":[5432],"restart":"always",
              "env":{"Z":{"value":"yes"},"A":{"secret":"PW"}},
              "healthcheck":{"test":["CMD","true"],"interval":"10s","retries":3}}}}"#;
        let secrets = [("PW".to_owned(), "p\"w$x".to_owned())].into();
        let want = r#"services:
  "db":
    image: "postgres"
    ports:
      - "5432:5432"
    environment:
      "A": "p\"w$$x"
      "Z": "yes"
    restart: "always"
    healthcheck:
      test:
        - "CMD"
        - "true"
      interval: "10s"
      retries: 3
  "web":
    image: "nginx:1"
    command:
      - "a"
      - "b: c"
    depends_on:
      - "db"
"#;
        assert_eq!(render_manifest(manifest, &secrets).unwrap(), want);
        assert_eq!(render_manifest(manifest, &secrets).unwrap(), want);
    }
}
