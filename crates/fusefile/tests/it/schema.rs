//! The published schema: generated, checked in, and of one mind with the validator.

use fuse_fusefile::check;
use fuse_fusefile::schema::{ID, render, schema};
use serde_json::{Value, json};

const PUBLISHED: &str = include_str!("../../../../schema/fusefile-v1.json");

#[test]
fn the_published_file_is_the_generated_one() {
    // To write it anew: FUSE_WRITE_SCHEMA=1 cargo test -p fuse-fusefile the_published_file
    if std::env::var_os("FUSE_WRITE_SCHEMA").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/fusefile-v1.json");
        std::fs::write(path, render()).unwrap();
        return;
    }
    assert_eq!(PUBLISHED, render());
    let published: Value = serde_json::from_str(PUBLISHED).unwrap();
    assert_eq!(published["$id"], ID);
    assert_eq!(published["properties"]["version"]["const"], 1);
    assert!(ID.ends_with("/schema/fusefile-v1.json"));
}

/// A good value for every key, so that whatever the corpus changes is the only thing wrong.
fn good() -> Value {
    json!({
        "version": 1,
        "name": "app",
        "resources": {"cpus": 2.0, "memory": "1.5 GB", "disk": "10g", "gpu": 1, "gpu_kind": "A100",
            "gpu_profile": "1g.10gb", "region": "eu", "max_runtime": "1h30m", "idle_timeout": "90s"},
        "placement": {"host": "h", "labels": {"a.b": "c_d"}},
        "cache": {"enabled": true},
        "files": [{"path": "a", "content": "x", "mode": "0644"}],
        "copy": [{"from": "a", "to": "b/c"}],
        "env": {"A": {"value": "x"}, "B": {"secret": "y"}},
        "build": ["make", {"run": "x", "inputs": ["a"], "cache": true, "workdir": "w"}],
        "services": {"db": {"image": "i", "ports": [80], "env": {"A": {"value": "x"}},
            "command": ["c"], "restart": "always", "depends_on": ["db2"],
            "healthcheck": {"test": ["t"], "interval": "1s", "timeout": "1s", "retries": 1}},
            "db2": {"image": "i"}},
        "run": ["a", "b"],
        "workspace": "/w",
        "startup_timeout": "30s",
        "expose": [{"port": 80, "as": "web"}],
        "healthcheck": {"http": {"port": 80, "path": "/"}, "interval": "2s", "timeout": "1s",
            "retries": 1, "start_period": "1s"},
        "desktop": {"width": 800, "height": 600},
        "secrets": ["s"],
    })
}

/// What to put where, and nothing to take it away.
fn changes() -> Vec<(&'static str, Option<Value>)> {
    let set = |path, value| (path, Some(value));
    vec![
        // Good ones.
        set("/run", json!("echo")),
        set("/name", json!("a-b")),
        ("/name", None),
        ("/placement", None),
        set("/files/0/content", json!("")),
        set("/env/A/value", json!("")),
        set("/healthcheck/http", json!({"port": 1})),
        set("/resources/gpu_profile", json!("7G.80GB+ME")),
        set("/expose/0", json!({"port": 65535})),
        set("/build", json!([])),
        // Bad ones.
        ("/version", None),
        set("/version", json!(2)),
        set("/name", json!("A")),
        set("/unknown", json!(1)),
        set("/resources/unknown", json!(1)),
        set("/resources/cpus", json!(1.5)),
        set("/resources/cpus", json!(-1)),
        set("/resources/cpus", json!("2")),
        set("/resources/memory", json!("512")),
        set("/resources/memory", json!("1KB")),
        set("/resources/gpu", json!(-1)),
        set("/resources/gpu", json!(0.5)),
        set("/resources/gpu_profile", json!("8g.1gb")),
        set("/resources/max_runtime", json!("1d")),
        set("/placement/labels", json!({"a b": "c"})),
        set("/placement/labels", json!({"a": ""})),
        set("/cache/enabled", json!("true")),
        set("/files/0/source", json!("x")),
        ("/files/0/content", None),
        ("/files/0/path", None),
        set("/files/0/mode", json!("888")),
        set("/copy/0/from", json!("")),
        set("/copy/0/to", json!("a/../b")),
        ("/copy/0/to", None),
        set("/env", json!({"1A": {"value": "x"}})),
        set("/env", json!({"A": {"value": "x", "secret": "y"}})),
        set("/env", json!({"A": {}})),
        set("/env", json!({"A": "x"})),
        set("/setup", json!(["x"])),
        set("/build/0", json!("")),
        set("/build/0", json!(["a"])),
        set("/build/1/run", json!("")),
        ("/build/1/run", None),
        set("/build/1/inputs/0", json!("")),
        set("/build/1/workdir", json!("../x")),
        set("/build/1/unknown", json!(1)),
        ("/services/db/image", None),
        set("/services/db/image", json!("")),
        set("/services/db/ports/0", json!(0)),
        set("/services/db/restart", json!("never")),
        set("/services/db/healthcheck/interval", json!("soon")),
        set("/services/db/healthcheck/retries", json!(-1)),
        set("/services/db/unknown", json!(1)),
        set("/run", json!([])),
        set("/run", json!([1])),
        set("/run", json!({"a": 1})),
        set("/workspace", json!("w")),
        set("/workspace", json!("/a/..")),
        set("/startup_timeout", json!("soon")),
        set("/expose/0/port", json!(0)),
        set("/expose/0/port", json!(65536)),
        ("/expose/0/port", None),
        set("/expose/0/as", json!("Web")),
        set("/healthcheck/exec", json!(["x"])),
        ("/healthcheck/http", None),
        ("/healthcheck/http/port", None),
        set("/healthcheck/http/path", json!("x")),
        set("/healthcheck/retries", json!(-1)),
        set("/desktop/width", json!(319)),
        set("/desktop/height", json!(3841)),
        ("/desktop/height", None),
        set("/secrets/0", json!("")),
    ]
}

fn changed(path: &str, value: Option<Value>) -> Value {
    let mut document = good();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(map), Some(value)) => _ = map.insert(key.to_owned(), value),
        (Value::Object(map), None) => assert!(map.remove(key).is_some(), "{path}"),
        (Value::Array(list), Some(value)) => list[key.parse::<usize>().unwrap()] = value,
        _ => unreachable!("{path}"),
    }
    document
}

#[test]
fn schema_and_validator_agree() {
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    let agree = |what: &str, document: &Value| {
        let problems = check("Fusefile", document.to_string().as_bytes(), None).problems;
        let by_schema = validator.is_valid(document);
        assert_eq!(by_schema, problems.is_empty(), "{what}: {problems:?}");
        by_schema
    };
    assert!(agree("the good file", &good()));
    let (mut valid, mut invalid) = (0, 0);
    for (path, value) in changes() {
        let what = format!("{path} = {value:?}");
        if agree(&what, &changed(path, value)) {
            valid += 1;
        } else {
            invalid += 1;
        }
    }
    assert!(
        valid >= 10 && invalid >= 50,
        "{valid} valid, {invalid} invalid"
    );
}

/// Every key that the schema knows is one the decoder reads, wherever it stands. The other way round the
/// decoder refuses what is not in the table that the schema is made of.
#[test]
fn every_key_of_the_schema_is_read() {
    fn walk(schema: &Value, at: &str, found: &mut Vec<String>) {
        for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
            found.push(format!("{at}/{key}"));
            walk(inner, &format!("{at}/{key}"), found);
        }
        let items = schema.get("items").map(|inner| (inner, "/0"));
        let named = schema
            .get("additionalProperties")
            .filter(|v| v.is_object())
            .map(|v| (v, "/x"));
        for (inner, step) in items.into_iter().chain(named) {
            walk(inner, &format!("{at}{step}"), found);
        }
        for inner in schema["oneOf"].as_array().into_iter().flatten() {
            walk(inner, at, found);
        }
    }
    let mut keys = Vec::new();
    walk(&schema(), "", &mut keys);
    assert!(keys.len() > 60, "{keys:?}");
    for key in keys {
        let mut document = json!({});
        let mut steps: Vec<&str> = key.split('/').skip(1).collect();
        steps.reverse();
        let mut value = Value::Null;
        for step in &steps {
            value = if *step == "0" {
                json!([value])
            } else {
                json!({ *step: value })
            };
        }
        document
            .as_object_mut()
            .unwrap()
            .extend(value.as_object().unwrap().clone());
        let parsed = fuse_fusefile::parse("Fusefile", document.to_string().as_bytes());
        assert_eq!(parsed.problems, [], "{key}");
    }
}
