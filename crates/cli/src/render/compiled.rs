//! A compiled Fusefile as text, in the fixed order of `up --dry-run`.

use std::fmt::Write as _;

use fuse_fusefile::Compiled;
use fuse_fusefile::request::Request;

/// Renders the request and the decoded manifest; empty sections are left out.
pub(crate) fn text(compiled: &Compiled, request: &Request) -> String {
    let mut head = format!("task id  {}\n", request.task_id);
    if !request.seed_snapshot_id.is_empty() {
        // Writing to a String cannot fail, here and below.
        writeln!(
            head,
            "seed snapshot  {} (setup phase skipped)",
            request.seed_snapshot_id
        )
        .ok();
    }
    if request.startup_script_timeout_seconds > 0 {
        writeln!(
            head,
            "startup timeout  {}s",
            request.startup_script_timeout_seconds
        )
        .ok();
    }
    let sections = [
        head,
        section("spec", &spec(request)),
        section("startup script", &script(request)),
        section(
            "manifest (decoded; sent base64 as manifest_inline)",
            std::slice::from_ref(&compiled.manifest),
        ),
        section("expose", &expose(request)),
        section("healthcheck", &healthcheck(request)),
        section("desktop", &desktop(request)),
        section(
            "required secrets (values supplied at `fuse up`)",
            &request.required_secrets,
        ),
    ];
    sections
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

fn section(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = format!("{title}\n");
    for line in lines {
        // A blank line stays blank instead of ending in the indent.
        writeln!(text, "{}{line}", if line.is_empty() { "" } else { "  " }).ok();
    }
    text
}

fn row(key: &str, value: impl std::fmt::Display) -> String {
    format!("{key:<15} {value}")
}

fn spec(request: &Request) -> Vec<String> {
    let spec = &request.spec;
    let mut rows = vec![
        row("cpus", spec.cpus),
        row("ram mb", spec.ram_mb),
        row("storage gb", spec.storage_gb),
        row("max runtime s", spec.max_runtime_seconds),
        row("idle timeout s", spec.idle_timeout_seconds),
    ];
    let mut texts = vec![
        ("image", spec.image.clone()),
        ("region", spec.region.clone()),
    ];
    if spec.gpus > 0 {
        texts.push(("gpus", spec.gpus.to_string()));
    }
    texts.extend([
        ("gpu kind", spec.gpu_kind.clone()),
        ("gpu profile", spec.gpu_profile.clone()),
        ("host", spec.host_id.clone()),
    ]);
    rows.extend(
        texts
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(k, v)| row(k, v)),
    );
    rows.extend(
        spec.labels
            .iter()
            .map(|(key, value)| row(&format!("label {key}"), value)),
    );
    rows
}

fn script(request: &Request) -> Vec<String> {
    request
        .startup_script
        .trim_end()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn expose(request: &Request) -> Vec<String> {
    let named = |name: &str| {
        if name.is_empty() {
            String::new()
        } else {
            format!(" as {name}")
        }
    };
    request
        .expose
        .iter()
        .map(|port| format!("{}{}", port.port, named(&port.name)))
        .collect()
}

fn healthcheck(request: &Request) -> Vec<String> {
    let Some(probe) = &request.healthcheck else {
        return Vec::new();
    };
    let what = match &probe.http {
        Some(http) => {
            let path = if http.path.is_empty() {
                "/"
            } else {
                &http.path
            };
            format!("http://127.0.0.1:{}{path}", http.port)
        }
        None => probe.exec.join(" "),
    };
    let figure = |value: i64| match value {
        0 => "(guest default)".to_owned(),
        value => value.to_string(),
    };
    vec![
        row("probe", what),
        row("interval s", figure(probe.interval_seconds)),
        row("timeout s", figure(probe.timeout_seconds)),
        row("retries", figure(probe.retries)),
        row("start period s", figure(probe.start_period_seconds)),
    ]
}

fn desktop(request: &Request) -> Vec<String> {
    let geometry = request
        .desktop
        .map(|d| row("geometry", format!("{}x{}", d.width, d.height)));
    geometry.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fuse_fusefile::{Start, check};

    use super::*;

    fn rendered(source: &str) -> String {
        let checked = check("Fusefile", source.as_bytes(), None);
        assert_eq!(checked.problems, []);
        let compiled = checked.compiled.unwrap();
        let request = compiled.request("demo", &Start::Cold, &BTreeMap::new());
        text(&compiled, &request)
    }

    #[test]
    fn smallest() {
        let text = rendered("version: 1\nresources: {cpus: 1, memory: 512MB}\n");
        insta::assert_snapshot!("compiled_smallest", text);
    }

    #[test]
    fn everything() {
        let source = "\
version: 1
resources: {cpus: 2, memory: 2GB, disk: 10GB, region: eu, max_runtime: 1h}
placement: {host: h1, labels: {disk: nvme}}
startup_timeout: 55s
build:
  - apt-get update
  - run: make
    workdir: /src
env:
  A: {value: b}
  T: {secret: TOKEN}
run: |
  ./serve &

  echo up
expose: [{port: 8080, as: http}, {port: 53}]
healthcheck: {http: {port: 8080}, interval: 5s}
desktop: {width: 1024, height: 768}
secrets: [EXTRA]
";
        insta::assert_snapshot!("compiled_everything", rendered(source));
    }
}
