//! What a request for an environment may say: each rule, its code and its exact text, over HTTP.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::support::Orchestrator;

/// Fields of a request, and why it is refused.
type Row = (&'static str, &'static str);

const SPECS: &[Row] = &[
    (r#"{"task_id": ""}"#, "task_id is required"),
    (r#"{"task_id": " "}"#, "task_id is required"),
    (
        r#"{"task_id": "a\nb"}"#,
        "task_id must not contain control characters",
    ),
    (
        r#"{"spec": {"gpus": -1, "cpus": -1}}"#,
        "spec.gpus must not be negative",
    ),
    (
        r#"{"spec": {"gpus": 1, "gpu_profile": "foo", "cpus": -1}}"#,
        "spec.gpu_profile: invalid MIG profile \"foo\" (expected mig-parted form like \"1g.10gb\")",
    ),
    (
        r#"{"spec": {"gpus": 1, "gpu_profile": "8g.10gb"}}"#,
        "spec.gpu_profile: invalid MIG profile \"8g.10gb\" (expected mig-parted form like \"1g.10gb\")",
    ),
    (
        r#"{"spec": {"gpu_profile": "1g.10gb+me"}}"#,
        "spec.gpu_profile requires spec.gpus >= 1 (the count of MIG instances)",
    ),
    (
        r#"{"spec": {"cpus": -1, "labels": {"": ""}}}"#,
        "spec.cpus must not be negative",
    ),
    (
        r#"{"spec": {"ram_mb": -1}}"#,
        "spec.ram_mb must not be negative",
    ),
    (
        r#"{"spec": {"storage_gb": -1}}"#,
        "spec.storage_gb must not be negative",
    ),
    (
        r#"{"spec": {"arch": "riscv64"}}"#,
        "spec.arch: unknown architecture \"riscv64\" (expected amd64 or arm64)",
    ),
    (
        r#"{"spec": {"labels": {"a b": "x"}, "max_runtime_seconds": -1}}"#,
        "spec.labels: invalid label key \"a b\"",
    ),
    (
        r#"{"spec": {"labels": {"": "x"}}}"#,
        "spec.labels: invalid label key \"\"",
    ),
    (
        r#"{"spec": {"labels": {"disk": "nvme-"}}}"#,
        "spec.labels[disk]: invalid label value \"nvme-\"",
    ),
    (
        r#"{"spec": {"max_runtime_seconds": -1}, "healthcheck": {}}"#,
        "spec.max_runtime_seconds must not be negative",
    ),
    (
        r#"{"spec": {"idle_timeout_seconds": 59}}"#,
        "spec.idle_timeout_seconds must be 0 (fleet default) or at least 60",
    ),
    (
        r#"{"spec": {"idle_timeout_seconds": -60}}"#,
        "spec.idle_timeout_seconds must be 0 (fleet default) or at least 60",
    ),
];

const WORKLOADS: &[Row] = &[
    (
        r#"{"healthcheck": {}, "desktop": {}}"#,
        "healthcheck: exactly one of http or exec is required",
    ),
    (
        r#"{"healthcheck": {"exec": []}}"#,
        "healthcheck: exactly one of http or exec is required",
    ),
    (
        r#"{"healthcheck": {"http": {"port": 80}, "exec": ["true"]}}"#,
        "healthcheck: exactly one of http or exec is required",
    ),
    (
        r#"{"healthcheck": {"http": {"port": 0}}}"#,
        "healthcheck.http.port must be between 1 and 65535",
    ),
    (
        r#"{"healthcheck": {"http": {"port": 65536}}}"#,
        "healthcheck.http.port must be between 1 and 65535",
    ),
    (
        r#"{"healthcheck": {"http": {"port": 80, "path": "x"}}}"#,
        "healthcheck.http.path must start with /",
    ),
    (
        r#"{"healthcheck": {"exec": ["a", " "]}}"#,
        "healthcheck.exec must not have blank elements",
    ),
    (
        r#"{"healthcheck": {"exec": ["a"], "interval_seconds": -1}}"#,
        "healthcheck.interval_seconds must not be negative",
    ),
    (
        r#"{"healthcheck": {"exec": ["a"], "timeout_seconds": -1}}"#,
        "healthcheck.timeout_seconds must not be negative",
    ),
    (
        r#"{"healthcheck": {"exec": ["a"], "retries": -1}}"#,
        "healthcheck.retries must not be negative",
    ),
    (
        r#"{"healthcheck": {"exec": ["a"], "start_period_seconds": -1}}"#,
        "healthcheck.start_period_seconds must not be negative",
    ),
    (
        r#"{"healthcheck": {"exec": ["a"], "interval_seconds": 2, "timeout_seconds": 3}}"#,
        "healthcheck.timeout_seconds must not exceed healthcheck.interval_seconds",
    ),
    (
        r#"{"desktop": {"width": 319, "height": 768}, "expose": [{}]}"#,
        "desktop.width must be between 320 and 3840",
    ),
    (
        r#"{"desktop": {"width": 1024, "height": 3841}}"#,
        "desktop.height must be between 320 and 3840",
    ),
    (
        r#"{"desktop": {"width": 1024}}"#,
        "desktop.height must be between 320 and 3840",
    ),
    (
        r#"{"desktop": {"width": 1024, "height": 768, "wm": "i3"}}"#,
        "desktop.wm must be one of mutter, xfwm4, openbox",
    ),
    (
        r#"{"expose": [{"port": 0}], "egress": {"mode": "x"}}"#,
        "expose[0].port must be between 1 and 65535",
    ),
    (
        r#"{"expose": [{"port": 1}, {"port": 65536}]}"#,
        "expose[1].port must be between 1 and 65535",
    ),
    (
        r#"{"expose": [{"port": 80, "as": "Web"}]}"#,
        "expose[0].as must be a DNS label (lowercase letters, digits and inner dashes)",
    ),
    (
        r#"{"expose": [{"port": 80, "as": "a"}, {"port": 81, "as": "a"}]}"#,
        "expose[1].as is used twice",
    ),
    (
        r#"{"expose": [{"port": 80, "protocol": "sctp"}]}"#,
        "expose[0].protocol must be tcp or udp",
    ),
    (
        r#"{"expose": [{"port": 80}, {"port": 80, "protocol": "tcp"}]}"#,
        "expose[1]: port 80 is listed twice for tcp",
    ),
    (
        r#"{"egress": {"mode": "x"}, "startup_script_timeout_seconds": -1}"#,
        "egress.mode must be direct or proxy",
    ),
    (
        r#"{"egress": {"provider": "mock"}}"#,
        "egress: provider and protocol require mode \"proxy\"",
    ),
    (
        r#"{"egress": {"mode": "direct", "protocol": "http"}}"#,
        "egress: provider and protocol require mode \"proxy\"",
    ),
    (
        r#"{"egress": {"mode": "proxy"}}"#,
        "egress.provider is required with mode \"proxy\"",
    ),
    (
        r#"{"egress": {"mode": "proxy", "provider": "cloudflare-warp"}}"#,
        "egress.provider \"cloudflare-warp\" is reserved",
    ),
    (
        r#"{"egress": {"mode": "proxy", "provider": "x"}}"#,
        "egress.provider must be mock",
    ),
    (
        r#"{"egress": {"mode": "proxy", "provider": "mock", "protocol": "ftp"}}"#,
        "egress.protocol must be socks5 or http",
    ),
];

const CONTENTS: &[Row] = &[
    (
        r#"{"startup_script_timeout_seconds": -1, "files": {"x": ""}}"#,
        "startup_script_timeout_seconds must not be negative",
    ),
    (
        r#"{"startup_script_timeout_seconds": 56}"#,
        "startup script timeout exceeds the configured maximum: 56s is above 55s",
    ),
    (
        r#"{"startup_script": "a\u0000b"}"#,
        "startup_script must not contain NUL",
    ),
    (
        r#"{"files": {"x": ""}, "manifest_inline": "?"}"#,
        "files: path \"x\" must be absolute",
    ),
    (
        r#"{"files": {"": ""}}"#,
        "files: path \"\" must be absolute",
    ),
    (
        r#"{"files": {"/": ""}}"#,
        "files: path \"/\" must be clean (no ., .., double or trailing slash)",
    ),
    (
        r#"{"files": {"/a/": ""}}"#,
        "files: path \"/a/\" must be clean (no ., .., double or trailing slash)",
    ),
    (
        r#"{"files": {"//a": ""}}"#,
        "files: path \"//a\" must be clean (no ., .., double or trailing slash)",
    ),
    (
        r#"{"files": {"/a/../b": ""}}"#,
        "files: path \"/a/../b\" must be clean (no ., .., double or trailing slash)",
    ),
    (
        r#"{"files": {"/fuse": ""}}"#,
        "files: path \"/fuse\" is reserved: /fuse belongs to the guest agent",
    ),
    (
        r#"{"files": {"/fuse/x": ""}}"#,
        "files: path \"/fuse/x\" is reserved: /fuse belongs to the guest agent",
    ),
    (
        r#"{"files": {"/a\nb": ""}}"#,
        "files: path \"/a\\nb\" must not contain NUL or newline",
    ),
    // In the order of their paths, whatever the order of the request.
    (
        r#"{"files": {"/b": "aGk", "/a": "aG k="}}"#,
        "files[/a]: content is not valid base64",
    ),
    (
        r#"{"files": {"/a": {"content": "", "mode": "1755"}}}"#,
        "files[/a]: mode must be three octal digits, like 644 or 0755",
    ),
    (
        r#"{"files": {"/a": {"content": "", "mode": "888"}}}"#,
        "files[/a]: mode must be three octal digits, like 644 or 0755",
    ),
    (
        r#"{"manifest_inline": "?", "secrets": {"": ""}}"#,
        "manifest_inline is not valid base64",
    ),
    (
        r#"{"manifest_inline": "e3 0="}"#,
        "manifest_inline is not valid base64",
    ),
    (
        r#"{"spec": {"image": "img"}, "seed_snapshot_id": "s"}"#,
        "seed_snapshot_id and spec.image are mutually exclusive",
    ),
];

/// At the edge of what is taken.
const EDGES: &[&str] = &[
    r#"{"healthcheck": {"http": {"port": 65535}, "interval_seconds": 5, "timeout_seconds": 5}}"#,
    r#"{"healthcheck": {"exec": ["a"], "timeout_seconds": 50}}"#,
    r#"{"desktop": {"width": 320, "height": 3840, "wm": "mutter"}}"#,
    r#"{"desktop": {"width": 3840, "height": 320, "wm": "xfwm4"}}"#,
    r#"{"desktop": {"width": 800, "height": 600, "wm": "openbox"}}"#,
    r#"{"expose": [{"port": 80, "as": "a"}, {"port": 80, "protocol": "udp"}]}"#,
    r#"{"egress": {"mode": "direct"}}"#,
    r#"{"egress": {}, "spec": null, "secrets": null, "files": null, "expose": null}"#,
    r#"{"startup_script_timeout_seconds": 55, "manifest_inline": "e3\r\n0=\n"}"#,
    r#"{"files": {"/a": {"content": "", "mode": "000"}, "/fused/x": ""}}"#,
];

/// `{"task_id": "a"}` with what a row adds to it.
pub(super) fn request(extra: &Value) -> Value {
    let mut request = json!({"task_id": "a"});
    let fields = request.as_object_mut().unwrap();
    fields.extend(extra.as_object().unwrap().clone());
    request
}

async fn refuses(fuse: &Orchestrator, extra: &Value, message: &str) {
    let answer = fuse.create(&request(extra)).await;
    assert_eq!(
        (answer.status, answer.code(), answer.message()),
        (400, "invalid_argument", message),
        "{extra}"
    );
}

#[tokio::test]
async fn requests_are_checked() {
    let fuse = Orchestrator::start().await;
    for (fields, message) in [SPECS, WORKLOADS, CONTENTS].concat() {
        refuses(&fuse, &serde_json::from_str(fields).unwrap(), message).await;
    }
    let long = "a".repeat(64);
    let labels = json!({"spec": {"labels": {"disk": long}}});
    let message = format!("spec.labels[disk]: invalid label value \"{long}\"");
    refuses(&fuse, &labels, &message).await;
    let name = json!({"expose": [{"port": 80, "as": long}]});
    let message = "expose[0].as must be a DNS label (lowercase letters, digits and inner dashes)";
    refuses(&fuse, &name, message).await;
    let script = json!({"startup_script": "x".repeat(131_072)});
    let message = "startup_script is 131072 bytes, at most 131071 fit one process argument; \
                   move parts of it into files";
    refuses(&fuse, &script, message).await;
    let without_mig = [
        "V100",
        "t4",
        "P100",
        "p40",
        "K80",
        "RTX 4090",
        "gtx",
        "Titan V",
        "L4",
        "NVIDIA L40",
        "l40s",
    ];
    for kind in without_mig {
        let wish = json!({"spec": {"gpus": 1, "gpu_profile": "1g.10gb", "gpu_kind": kind}});
        let answer = fuse.create(&request(&wish)).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid_argument"));
        let start = format!("spec.gpu_profile: gpu_kind \"{kind}\" does not support MIG");
        assert!(answer.message().starts_with(&start), "{}", answer.text);
    }
    // Nothing was made, and nothing is known of the task.
    let list = fuse.get("/v1/environments").await.is(200);
    assert_eq!(list, json!({"environments": []}));
    fuse.get("/v1/tasks/a")
        .await
        .is_error(404, "not_found", "task a not found");
    fuse.stop().await;
}

#[tokio::test]
async fn what_is_at_the_edge_is_taken() {
    let fuse = Orchestrator::start().await;
    for (n, fields) in EDGES.iter().enumerate() {
        let mut body = request(&serde_json::from_str(fields).unwrap());
        body["task_id"] = format!("t{n}").into();
        let made = fuse.create(&body).await.is(201);
        assert_eq!(made["egress"], json!({"mode": "direct"}), "{fields}");
        assert!(made.get("health").is_none(), "{fields}");
    }
    // It is shown as it is understood.
    let made = fuse
        .create(&json!({"task_id": "b", "spec": {
            "cpus": 0, "region": "", "arch": " X86_64 ", "max_runtime_seconds": 1,
            "idle_timeout_seconds": 60, "image": "img", "huge_pages": false, "labels": {},
        }}))
        .await
        .is(201);
    let shown = json!({
        "arch": "amd64", "max_runtime_seconds": 1, "idle_timeout_seconds": 60, "image": "img",
    });
    assert_eq!(made["spec"], shown);
    fuse.stop().await;
}

#[tokio::test]
async fn secrets_and_sizes_are_bounded() {
    let fuse = Orchestrator::start().await;
    let manifest = |text: &str| BASE64_STANDARD.encode(text);
    let wants = r#"{"machine":{"env":{"A":{"secret":"ZED"}}},
        "services":{"s":{"image":"i","env":{"B":{"secret":"ALPHA"}}}}}"#;
    let many: serde_json::Map<String, Value> =
        (0..257).map(|n| (format!("k{n}"), json!(""))).collect();
    let rows = [
        (
            json!({"manifest_inline": manifest(wants), "secrets": {"BIG": "x".repeat(65_537), "": "x"}}),
            "a secret has an empty name; secret \"ALPHA\" is required by the manifest; \
             secret \"BIG\" exceeds 65536 bytes; secret \"ZED\" is required by the manifest",
        ),
        (
            json!({"secrets": {"k".repeat(257): ""}}),
            "secret name \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk...\" exceeds 256 bytes",
        ),
        (
            json!({ "secrets": many }),
            "257 secrets given, at most 256 are allowed",
        ),
    ];
    for (extra, issues) in rows {
        refuses(
            &fuse,
            &extra,
            &format!("secrets validation failed: {issues}"),
        )
        .await;
    }
    let no_json = json!({"manifest_inline": manifest("version: 1")});
    let answer = fuse.create(&request(&no_json)).await;
    assert_eq!((answer.status, answer.code()), (400, "invalid_argument"));
    let start = "secrets validation failed: manifest is not usable JSON: ";
    assert!(answer.message().starts_with(start), "{}", answer.text);
    let file = |bytes: usize| json!({"files": {"/a": BASE64_STANDARD.encode(vec![0; bytes])}});
    let over = fuse.create(&request(&file(524_289))).await;
    let message = "files: 524289 decoded bytes exceed the limit of 524288 bytes";
    over.is_error(413, "payload_too_large", message);
    let mut edge = file(524_288);
    edge["secrets"] = json!({"k".repeat(256): "v".repeat(65_536)});
    fuse.create(&request(&edge)).await.is(201);
    fuse.stop().await;
}
