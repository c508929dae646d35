//! `build`, and `up` from the layer cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json as value;

use crate::fake::{Fake, empty, environment, error, events, host, json, records};
use crate::fuse::User;

const FUSEFILE: &str = "\
version: 1
name: a
cache: {enabled: true}
build: [one, two, {run: three, cache: false}, four]
run: ./serve
";

/// Layers that a fake keeps: metadata by key.
type Layers = Arc<Mutex<BTreeMap<String, serde_json::Value>>>;

/// An orchestrator that keeps layers; `fails` is a script that ends with status 3.
fn server(fails: &'static str) -> (Fake, Layers) {
    let layers = Layers::default();
    let kept = Arc::clone(&layers);
    let script = Mutex::new(0..0);
    let fake = Fake::start(move |seen| {
        let body: serde_json::Value = serde_json::from_str(&seen.body).unwrap_or_default();
        let (method, path) = seen.line.split_once(' ').unwrap();
        match (method, path.split('?').next().unwrap()) {
            ("GET", "/v1/hosts") => {
                Some(json(200, &format!(r#"{{"hosts":[{}]}}"#, host("h1", &[]))))
            }
            ("GET", "/v1/snapshots/resolve") => {
                let key = path.split("layer_key=").nth(1)?.split('&').next()?;
                assert!(path.contains("arch=amd64"), "{path}");
                let found = layers_has(&kept, key);
                let snapshot = value!({"id": format!("snap-{}", &key[..4]), "vm_id": "b", "kind": "disk",
                    "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z"});
                let answer = match found {
                    true => value!({"found": true, "snapshot": snapshot}),
                    false => value!({"found": false}),
                };
                Some(json(200, &answer.to_string()))
            }
            ("GET", "/v1/snapshots") => {
                assert!(path.contains("state=ready&mode=build&arch=amd64"), "{path}");
                let kept = kept.lock().unwrap();
                let list: Vec<_> = kept
                    .iter()
                    .map(|(key, metadata)| {
                        value!({"id": "snap-1", "vm_id": "b", "kind": "disk", "layer_key": key,
                            "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z",
                            "metadata": metadata})
                    })
                    .collect();
                Some(json(200, &value!({"snapshots": list}).to_string()))
            }
            ("POST", "/v1/environments") => {
                let number = |field: &str| body["startup_steps"][field].as_u64().unwrap_or(0);
                *script.lock().unwrap() = number("first")..number("total") + 1;
                Some(json(202, &environment("provisioning")))
            }
            ("GET", "/v1/environments/fuse-a/events") => {
                let steps = script.lock().unwrap().clone().filter(|index| *index > 0);
                let step =
                    |index| value!({"event": "step", "state": "", "index": index, "total": 4});
                let mut all: Vec<_> = steps.map(step).collect();
                all.push(value!({"state": "running"}));
                Some(records(&all))
            }
            ("GET", "/v1/environments/fuse-a") => Some(json(200, &environment("running"))),
            ("POST", "/v1/environments/fuse-a") => {
                let script = body["cmd"][2].as_str().unwrap();
                let code = if !fails.is_empty() && script.contains(fails) {
                    3
                } else {
                    0
                };
                let answer = value!({"exit_code": code, "stdout": "out\n", "stderr": "err\n"});
                Some(json(200, &answer.to_string()))
            }
            ("POST", "/v1/environments/fuse-a/snapshots") => {
                if let Some(key) = body["layer_key"].as_str() {
                    let metadata = body["metadata"].clone();
                    kept.lock().unwrap().insert(key.to_owned(), metadata);
                }
                let snapshot = value!({"id": "snap-9", "vm_id": "fuse-a", "kind": "disk", "state": "ready",
                    "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z"});
                Some(json(201, &snapshot.to_string()))
            }
            ("DELETE", "/v1/environments/fuse-a") => Some(empty()),
            ("GET", path) if path.starts_with("/v1/tasks/") => {
                Some(error(404, "not_found", "task not found"))
            }
            _ => None,
        }
    });
    (fake, layers)
}

fn layers_has(layers: &Layers, key: &str) -> bool {
    layers.lock().unwrap().contains_key(key)
}

fn bodies(server: &Fake, line: &str) -> Vec<serde_json::Value> {
    server
        .seen()
        .iter()
        .filter(|seen| seen.line.starts_with(line))
        .map(|seen| serde_json::from_str(&seen.body).unwrap())
        .collect()
}

#[test]
fn the_id_is_all_that_is_on_stdout_and_layers_are_kept_and_found() {
    let (server, layers) = server("");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    let run = user.run(&["build"]).ok();
    assert_eq!(run.stdout, "snap-9\n");
    for line in [
        "builder fuse-a\n",
        "out\n",
        "err\n",
        "miss: no-entry\n",
        "miss: uncacheable\n",
    ] {
        assert!(run.stderr.contains(line), "{line:?} {}", run.stderr);
    }
    let created = bodies(&server, "POST /v1/environments");
    let body = &created[0];
    assert!(body["task_id"].as_str().unwrap().starts_with("build-a-"));
    for absent in [
        "startup_script",
        "expose",
        "healthcheck",
        "seed_snapshot_id",
    ] {
        assert!(body.get(absent).is_none(), "{absent}: {body}");
    }
    let scripts: Vec<String> = bodies(&server, "POST /v1/environments/fuse-a?action=exec")
        .iter()
        .map(|body| {
            let script = body["cmd"][2].as_str().unwrap();
            assert_eq!(body["timeout_ms"], 600_000);
            script.split("cd '/workspace'\n").nth(1).unwrap().to_owned()
        })
        .collect();
    assert_eq!(scripts, ["one\n", "two\n", "three\nfour\n"]);
    let snapshots = bodies(&server, "POST /v1/environments/fuse-a/snapshots");
    assert_eq!(snapshots.len(), 3);
    assert!(snapshots.iter().all(|s| s["mode"] == "build"));
    assert_eq!(snapshots[2]["metadata"], value!({"name": "a"}));
    assert_eq!(layers.lock().unwrap().len(), 2);
    assert_eq!(
        server.lines().last().unwrap(),
        "DELETE /v1/environments/fuse-a"
    );

    the_second_starts_from_the_deepest(&user, &server);
}

/// So does `up`, and says so.
fn the_second_starts_from_the_deepest(user: &User, server: &Fake) {
    let before = server.seen().len();
    let run = user.run(&["build", "--name", "b", "-o", "json"]).ok();
    assert_eq!(run.json()["id"], "snap-9");
    let cached = |line: &&str| line.contains(r#""cached":true"#);
    assert_eq!(
        run.stderr.lines().filter(cached).count(),
        2,
        "{}",
        run.stderr
    );
    let again = &server.seen()[before..];
    let create = again
        .iter()
        .find(|s| s.line == "POST /v1/environments")
        .unwrap();
    let body: serde_json::Value = serde_json::from_str(&create.body).unwrap();
    assert!(
        body["seed_snapshot_id"]
            .as_str()
            .unwrap()
            .starts_with("snap-")
    );
    let execs = again
        .iter()
        .filter(|s| s.line.contains("?action=exec&"))
        .count();
    assert_eq!(execs, 1);

    let run = user.run(&["up"]).ok().says("2 of 4 steps from layer snap-");
    assert!(run.stdout.contains("CACHED [1/4]"), "{}", run.stdout);
    let created = bodies(server, "POST /v1/environments");
    let body = created.iter().rev().find(|b| b["task_id"] == "a").unwrap();
    assert!(
        !body["startup_script"].as_str().unwrap().contains("\ntwo\n"),
        "{body}"
    );
    assert_eq!(body["startup_steps"]["first"], 3);
    user.run(&["up", "--no-cache"]).ok();
    let created = bodies(server, "POST /v1/environments");
    let body = created.iter().rev().find(|b| b["task_id"] == "a").unwrap();
    assert!(body.get("seed_snapshot_id").is_none(), "{body}");
}

#[test]
fn a_failed_step_keeps_the_layers_below_it_and_nothing_else() {
    let (server, layers) = server("two");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    let run = user
        .run(&["build"])
        .exits(1)
        .says("build[1] ended with exit code 3");
    assert_eq!(run.stdout, "");
    assert!(run.stderr.contains("FAILED [2/4]"), "{}", run.stderr);
    assert_eq!(layers.lock().unwrap().len(), 1);
    assert_eq!(
        server.lines().last().unwrap(),
        "DELETE /v1/environments/fuse-a"
    );
    user.run(&["build", "--keep"])
        .exits(1)
        .says("builder fuse-a is kept");
    assert_ne!(
        server.lines().last().unwrap(),
        "DELETE /v1/environments/fuse-a"
    );
}

#[test]
fn an_uncached_build_is_one_shell() {
    let (server, layers) = server("");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    user.run(&["build", "--no-cache"]).ok().prints("snap-9\n");
    let scripts = bodies(&server, "POST /v1/environments/fuse-a?action=exec");
    assert_eq!(scripts.len(), 1);
    assert!(layers.lock().unwrap().is_empty());
    user.run(&["build", "--plan"]).ok();
    user.write("none/Fusefile", "version: 1\nrun: x\n");
    user.run(&["build", "none"])
        .exits(1)
        .says("none/Fusefile: no build steps, so nothing to build");
}

#[test]
fn the_cache_never_makes_up_fail() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "POST /v1/environments" if seen.body.contains("seed_snapshot_id") => {
            Some(error(404, "not_found", "snapshot snap-1 not found"))
        }
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a/events" => Some(events(&[("running", "")])),
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "GET /v1/hosts" => Some(json(200, &format!(r#"{{"hosts":[{}]}}"#, host("h1", &[])))),
        line if line.starts_with("GET /v1/snapshots/resolve") => Some(json(
            200,
            r#"{"found":true,"snapshot":{"id":"snap-1","vm_id":"","kind":"disk","created_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}}"#,
        )),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    user.run(&["up"])
        .ok()
        .says("layer snap-1 cannot be used")
        .says("building from the start");
    // No resolve route at all, and hosts of two kinds.
    for hosts in [r#"{"hosts":[]}"#.to_owned(), {
        let arm = host("h2", &[]).replace("amd64", "arm64");
        format!(r#"{{"hosts":[{},{arm}]}}"#, host("h1", &[]))
    }] {
        let server = Fake::start(move |seen| match seen.line.as_str() {
            "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
            "GET /v1/environments/fuse-a/events" => Some(events(&[("running", "")])),
            "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
            "GET /v1/hosts" => Some(json(200, &hosts)),
            _ => None,
        });
        let user = User::connected(&server.url(), "tok");
        user.write("Fusefile", FUSEFILE);
        user.run(&["up"])
            .ok()
            .says("warning: the layer cache is left out: ");
    }
}

/// Finds every layer; an environment that is made from one fails with `cause`.
fn losing(cause: &'static str) -> Fake {
    let seeded = std::sync::atomic::AtomicBool::new(false);
    Fake::start(move |seen| {
        use std::sync::atomic::Ordering;
        let (method, path) = seen.line.split_once(' ').unwrap();
        match (method, path.split('?').next().unwrap()) {
            ("GET", "/v1/hosts") => {
                Some(json(200, &format!(r#"{{"hosts":[{}]}}"#, host("h1", &[]))))
            }
            ("GET", "/v1/snapshots/resolve") => {
                let snapshot = value!({"id": "snap-1", "vm_id": "b", "kind": "disk",
                    "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z"});
                let found = value!({"found": true, "snapshot": snapshot});
                Some(json(200, &found.to_string()))
            }
            ("POST", "/v1/environments") => {
                seeded.store(seen.body.contains("snap-1"), Ordering::Relaxed);
                Some(json(202, &environment("provisioning")))
            }
            ("GET", "/v1/environments/fuse-a/events") => {
                let failed = [("failed", cause)];
                let is_lost = seeded.load(Ordering::Relaxed);
                Some(events(if is_lost { &failed } else { &[("running", "")] }))
            }
            ("GET", "/v1/environments/fuse-a") => Some(json(200, &environment("running"))),
            ("POST", "/v1/environments/fuse-a") => {
                Some(json(200, r#"{"exit_code":0,"stdout":"","stderr":""}"#))
            }
            ("POST", "/v1/environments/fuse-a/snapshots") => {
                let snapshot = value!({"id": "snap-9", "vm_id": "fuse-a", "kind": "disk",
                    "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z"});
                Some(json(201, &snapshot.to_string()))
            }
            ("DELETE", "/v1/environments/fuse-a") => Some(empty()),
            ("GET", path) if path.starts_with("/v1/tasks/") => {
                Some(error(404, "not_found", "task not found"))
            }
            _ => None,
        }
    })
}

#[test]
fn up_goes_on_without_a_layer_that_cannot_be_had() {
    let server = losing("artifact transfer failed: host h2 cannot fetch it from host h1");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    user.run(&["up"])
        .ok()
        .says("layer snap-1 cannot be used: artifact transfer failed: host h2")
        .says("building from the start");
    let created = bodies(&server, "POST /v1/environments");
    assert_eq!(created.len(), 2);
    assert_eq!(created[0]["seed_snapshot_id"], "snap-1");
    assert!(created[1].get("seed_snapshot_id").is_none());
    // Any other failure is not the layer's.
    let server = losing("cannot boot the vm: the disk is broken");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    user.run(&["up"]).exits(1).says("the disk is broken");
    assert_eq!(bodies(&server, "POST /v1/environments").len(), 1);
}

#[test]
fn a_miss_tells_what_there_is_instead() {
    // Held here too: the last holder ends its runtime, which must not happen on the other's.
    let server = Arc::new(server("").0);
    let behind = Arc::clone(&server);
    let near = Fake::start(move |seen| {
        if seen.line.contains("/v1/snapshots/resolve") {
            let why = value!(["there is one for arm64, not for amd64"]);
            let miss = value!({"found": false, "miss_detail": why});
            return Some(json(200, &miss.to_string()));
        }
        behind.answer(seen)
    });
    let user = User::connected(&near.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    user.run(&["build"])
        .ok()
        .says("miss: no-entry (there is one for arm64, not for amd64)");
}

#[test]
fn a_miss_tells_what_changed_since_the_last_build() {
    let (server, layers) = server("");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    // The name of the artifact is not the history's.
    user.run(&["build", "--name", "first"]).ok();
    for metadata in layers.lock().unwrap().values() {
        assert_eq!(metadata["layer_of"], "a");
    }
    // A changed step, told by `up`, whose steps are the server's.
    user.write("Fusefile", &FUSEFILE.replace("one", "uno"));
    let run = user.run(&["up"]).ok();
    let notes: Vec<_> = run.stdout.lines().filter(|l| l.contains("miss:")).collect();
    assert_eq!(
        notes,
        [
            "         miss: step-changed",
            "         miss: parent-changed",
            "         miss: uncacheable",
            "         miss: uncacheable"
        ]
    );
    // Another base, told by `build` and in the events of `-o json`.
    user.write("Fusefile", &format!("{FUSEFILE}image: other\n"));
    let run = user.run(&["up", "-o", "json"]).ok();
    assert!(
        run.stderr.contains(r#""miss_reason":"base-changed""#),
        "{}",
        run.stderr
    );
    let run = user.run(&["build"]).ok();
    assert_eq!(run.stderr.matches("miss: base-changed").count(), 2);
    // Inputs by their names, in all three forms.
    let inputs = FUSEFILE.replace("two,", "{run: two, inputs: [deps]},");
    user.write("Fusefile", &inputs);
    user.write("deps/lock", "1");
    user.run(&["build"]).ok();
    user.write("deps/lock", "2");
    user.write("deps/more", "1");
    let note = "miss: inputs-changed (deps/lock, deps/more (new))";
    let run = user.run(&["up"]).ok();
    assert!(run.stdout.contains(note), "{}", run.stdout);
    let run = user.run(&["up", "-o", "json"]).ok();
    let detail = r#""miss_reason":"inputs-changed","miss_detail":["deps/lock","deps/more (new)"]"#;
    assert!(run.stderr.contains(detail), "{}", run.stderr);
    if let Some(run) = user.run_on_terminal(&["up"]) {
        assert!(run.stdout.contains(note), "{}", run.stdout);
    }
    // Layers of others are not compared with.
    let near = Fake::start(move |seen| {
        if seen.line.contains("/v1/snapshots/resolve") {
            let miss = value!({"found": false, "tenant_id": "t"});
            return Some(json(200, &miss.to_string()));
        }
        server.answer(seen)
    });
    let user = User::connected(&near.url(), "tok");
    user.write("Fusefile", &FUSEFILE.replace("one", "uno"));
    let run = user.run(&["up"]).ok();
    assert_eq!(run.stdout.matches("miss: no-entry").count(), 2);
    let listed = |line: &String| line.contains("/v1/snapshots?") && line.contains("tenant_id=t");
    assert!(near.lines().iter().any(listed));
    // Without a cache nothing is missed.
    let run = user.run(&["up", "--no-cache"]).ok();
    assert!(!run.stdout.contains("miss:"), "{}", run.stdout);
}

#[test]
fn layers_that_are_lost_are_misses() {
    let server = losing("artifact transfer failed: host h2 cannot fetch it from host h1");
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    let run = user.run(&["build"]).ok();
    let note = "miss: not-on-host (artifact transfer failed: host h2 cannot fetch it from host h1)";
    assert_eq!(run.stderr.matches(note).count(), 2, "{}", run.stderr);
}
