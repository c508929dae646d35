//! `status` and `apikeys`.

use crate::fake::{Fake, empty, environment, error, host, json};
use crate::fuse::User;

fn fleet() -> Fake {
    Fake::start(|seen| {
        let list = |states: &[&str]| {
            let all: Vec<serde_json::Value> = states
                .iter()
                .map(|state| serde_json::from_str(&environment(state)).unwrap())
                .collect();
            all
        };
        match seen.line.as_str() {
            "GET /v1/hosts" => {
                let host: serde_json::Value = serde_json::from_str(&host("h1", &[])).unwrap();
                let page = serde_json::json!({"hosts": [host], "next_cursor": "more"});
                Some(json(200, &page.to_string()))
            }
            "GET /v1/hosts/h1" => Some(json(200, &host("h1", &[]))),
            "GET /v1/hosts/gone" => Some(error(404, "not_found", "host gone not found")),
            "GET /v1/environments?limit=200" => {
                let page = serde_json::json!({
                    "environments": list(&["provisioning", "running"]), "next_cursor": "c",
                });
                Some(json(200, &page.to_string()))
            }
            "GET /v1/environments?limit=200&cursor=c" => {
                let mut last = list(&["running"]);
                last[0]["endpoints"] =
                    serde_json::json!([{"as": "web", "url": "10.0.0.5:19600", "port": 80}]);
                let page = serde_json::json!({"environments": last});
                Some(json(200, &page.to_string()))
            }
            "GET /v1/environments?host_id=h1&limit=200" => {
                Some(json(200, r#"{"environments": []}"#))
            }
            _ => None,
        }
    })
}

#[test]
fn a_fleet_on_one_screen() {
    let server = fleet();
    let user = User::connected(&server.url(), "tok");
    user.run(&["status"]).ok().prints(&format!(
        "\
context test
  {}

active host none (`fuse host <id>` selects one)
  1+ host(s) registered

environments (fleet scope)
  provisioning x1   running x2

running endpoints
  fuse-a  10.0.0.5:19551
  fuse-a  10.0.0.5:19551
    web  10.0.0.5:19600
",
        server.url()
    ));
    user.run(&["host", "h1"]).ok();
    let run = user.run(&["status"]).ok();
    assert!(
        run.stdout.contains(
            "active host h1  active\n  cpus 0/16   ram 0/65536 mb   storage 0/500 gb   vms 0/20\n"
        ),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.ends_with("environments (host scope)\n  none\n"),
        "{}",
        run.stdout
    );
    let json = user.run(&["status", "-o", "json"]).ok().json();
    assert_eq!(json["active_host"]["id"], "h1");
    assert_eq!(json["host_count"], 1);
    assert_eq!(json["host_count_complete"], false);
    assert_eq!(json["environment_scope"], "host");
    assert_eq!(json["environments_by_state"], serde_json::json!({}));
    assert!(json.get("running_endpoints").is_none());
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "POST /v1/api-keys" => Some(json(
            201,
            r#"{"id":"ak_1","label":"ci","scopes":["exec"],"created_at":"2026-01-15T10:00:00Z","key":"fuse_sk_x"}"#,
        )),
        "GET /v1/api-keys" => Some(json(
            200,
            r#"{"api_keys":[{"id":"ak_1","label":"ci","created_at":"2026-01-15T10:00:00Z","last_used_at":"2026-01-16T10:00:00Z"}]}"#,
        )),
        "DELETE /v1/api-keys/ak_1" => Some(empty()),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user
        .run(&["apikeys", "create", "--label", "ci", "--scope", "exec"])
        .ok()
        .says("warning: the key is shown this once");
    run.prints(
        "\
id                 ak_1
label              ci
created            2026-01-15 10:00
scopes             exec
key                fuse_sk_x
",
    );
    assert_eq!(
        server.seen().last().unwrap().body,
        r#"{"label":"ci","scopes":["exec"]}"#
    );
    let json = user
        .run(&["keys", "create", "-o", "json"])
        .ok()
        .says("warning: ")
        .json();
    assert_eq!(json["key"], "fuse_sk_x");
    let run = user.run(&["apikeys", "list"]).ok();
    assert!(
        run.stdout
            .contains("│ ak_1 │ ci    │ 2026-01-15 10:00 │ 2026-01-16 10:00 │ -       │ -      │"),
        "{}",
        run.stdout
    );
    let json = user.run(&["apikey", "ls", "-o", "json"]).ok().json();
    assert_eq!(json[0]["id"], "ak_1");
    user.run(&["apikeys", "revoke", "ak_1"])
        .exits(1)
        .says("--yes");
    user.run(&["apikeys", "revoke", "ak_1", "--yes"])
        .ok()
        .says("revoked API key ak_1");
    user.run(&["apikeys", "create", "--scope", "root"]).exits(1);
}
