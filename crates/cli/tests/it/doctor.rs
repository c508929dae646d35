//! `doctor` and `version`: every layer named, every finding with what mends it.

use std::os::unix::fs::PermissionsExt;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json as value};

use crate::fake::{Fake, Seen, error, json};
use crate::fuse::{Run, User};

const READY: &str =
    r#"{"status":"ready","checks":{"state_store":"ok","fleet":"ok","reconcile":"ok"}}"#;

fn host(id: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut host = value!({
        "id": id, "url": "http://10.0.0.5:8090", "state": "active",
        "capacity": {"cpus": 8, "ram_mb": 1024, "storage_gb": 10, "vm_count": 20},
        "allocated": {"cpus": 1, "ram_mb": 1, "storage_gb": 1, "vm_count": 2},
        "last_seen": "2026-01-01T00:00:00Z", "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "agent": {"reachable": true, "checked_at": "2026-01-01T00:00:00Z"},
    });
    change(&mut host);
    host
}

fn fleet(hosts: &[Value], ready: &'static str) -> Fake {
    let hosts = value!({ "hosts": hosts }).to_string();
    Fake::start(move |seen: &Seen| -> Option<Response<Body>> {
        match seen.line.as_str() {
            "GET /ready" => Some(json(if ready == READY { 200 } else { 503 }, ready)),
            line if line.starts_with("GET /v1/hosts") => Some(match seen.token.as_str() {
                "Bearer good" => json(200, &hosts),
                _ => error(401, "unauthorized", "invalid token"),
            }),
            _ => None,
        }
    })
}

fn doctor(user: &User) -> Run {
    user.run(&["doctor", "--fleet", "-o", "json"])
}

fn findings(run: &Run) -> Vec<Value> {
    run.json()["findings"].as_array().unwrap().clone()
}

fn named<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("no {check} in {findings:?}"))
}

#[test]
fn a_sound_fleet_has_nothing_to_mend() {
    let server = fleet(&[host("a", |_| ())], READY);
    let user = User::connected(&server.url(), "good");
    let run = doctor(&user).ok();
    let findings = findings(&run);
    for check in [
        "orchestrator",
        "database",
        "reconcile",
        "token",
        "host a",
        "capacity",
        "versions",
    ] {
        assert_eq!(named(&findings, check)["status"], "ok", "{check}");
    }
    assert!(findings.iter().all(|finding| finding.get("fix").is_none()));
    assert_eq!(run.json()["ok"], true);
    let shown = user.run(&["doctor", "--fleet"]).ok();
    assert!(
        shown.stdout.contains("ok       token: "),
        "{}",
        shown.stdout
    );
    assert_eq!(shown.stderr, "nothing is wrong\n");
}

#[test]
fn whatever_is_wrong_ends_with_the_command_that_mends_it() {
    let down = r#"{"status":"not_ready","checks":{"state_store":"connection refused","fleet":"ok","reconcile":"no cycle completed for 99s","encryption_key":"it opens nothing"}}"#;
    let away = host("away", |host| {
        host["agent"]["reachable"] = false.into();
        host["agent"]["error"] = "connection refused".into();
    });
    let other = host("other", |host| {
        host["agent"]["reachable"] = false.into();
        host["agent"]["error"] = "unauthorized: rejected the token".into();
    });
    let gpus = |id: &str, error: &str| {
        host(id, |host| {
            host["backend"] = "qemu".into();
            host["agent"]["reachable"] = false.into();
            host["agent"]["error"] = error.into();
        })
    };
    let dark = gpus("dark", "connection refused");
    let closed = gpus("closed", "unauthorized: rejected the token");
    let full = host("full", |host| host["allocated"]["vm_count"] = 20.into());
    let resting = host("resting", |host| host["state"] = "cordoned".into());
    let server = fleet(&[away, other, dark, closed, full, resting], down);
    let run = doctor(&User::connected(&server.url(), "good")).exits(1);
    let findings = findings(&run);
    for (check, status, fix) in [
        ("database", "failed", "systemctl restart postgresql"),
        ("reconcile", "failed", "systemctl restart orchestrator"),
        ("encryption key", "failed", "TOKEN_ENCRYPTION_KEY_PREVIOUS"),
        ("host away", "failed", "systemctl restart fc-agent"),
        (
            "host other",
            "failed",
            "fuse host register other --url http://10.0.0.5:8090 --token \"$FC_AGENT_TOKEN\" --max-vms 20",
        ),
        ("host dark", "failed", "systemctl restart qemu-agent"),
        (
            "host closed",
            "failed",
            "--url http://10.0.0.5:8090 --backend qemu --token \"$QEMU_AGENT_TOKEN\" --max-vms 20",
        ),
        ("host full", "ok", ""),
        ("host resting", "warning", "fuse host uncordon resting"),
    ] {
        let finding = named(&findings, check);
        assert_eq!(finding["status"], status, "{finding}");
        let shown = finding["fix"].as_str().unwrap_or_default();
        assert!(
            shown.contains(fix) && shown.is_empty() == fix.is_empty(),
            "{finding}"
        );
    }
    assert_eq!(run.json()["ok"], false);
}

#[test]
fn a_warning_is_no_failure() {
    let server = fleet(&[], READY);
    let run = User::connected(&server.url(), "good")
        .run(&["doctor", "--fleet"])
        .ok();
    assert!(
        run.stdout.contains(
            "warning  capacity: no host is registered\n         fix: fuse host register "
        ),
        "{}",
        run.stdout
    );
}

#[test]
fn each_door_that_is_closed_is_named() {
    let server = fleet(&[], READY);
    let found = findings(&doctor(&User::connected(&server.url(), "of-an-agent")).exits(1));
    let token = named(&found, "token");
    assert!(
        token["detail"]
            .as_str()
            .unwrap()
            .contains("not a host agent's token"),
        "{token}"
    );
    assert!(
        token["fix"]
            .as_str()
            .unwrap()
            .starts_with("fuse connect http://127.0.0.1:"),
        "{token}"
    );

    let agent = Fake::raw(|_| {
        Response::builder()
            .status(401)
            .header("server", "fc-agent/0.1")
            .body(Body::empty())
            .unwrap()
    });
    let found = findings(&doctor(&User::connected(&agent.url(), "t")).exits(1));
    assert!(
        named(&found, "orchestrator")["detail"]
            .as_str()
            .unwrap()
            .contains("fc-agent")
    );

    let found = findings(&doctor(&User::connected("http://127.0.0.1:1", "t")).exits(1));
    assert_eq!(named(&found, "orchestrator")["fix"], "fuse local up");

    let found = findings(&doctor(&User::new()).ok());
    assert_eq!(named(&found, "context")["status"], "skipped");
}

#[test]
fn this_machine_is_looked_at_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join(".env");
    std::fs::write(&settings, "FC_AGENT_TOKEN=t\nFC_AGENT_PORT=1\n").unwrap();
    let path = dir.path().to_str().unwrap();
    let run = User::new()
        .run(&[
            "doctor",
            "--machine",
            "--no-boot",
            "--fc-dir",
            path,
            "-o",
            "json",
        ])
        .exits(1);
    let found = findings(&run);
    for check in [
        "tap",
        "nftables",
        "cgroups",
        "disk",
        "clock",
        "agent token",
        "agent",
    ] {
        named(&found, check);
    }
    let token = named(&found, "agent token");
    assert_eq!(
        (&token["status"], &token["fix"]),
        (
            &value!("failed"),
            &value!(format!("sudo chmod 600 {}", settings.display()))
        )
    );
    let agent = named(&found, "agent");
    assert!(
        agent["detail"].as_str().unwrap().contains("port 1"),
        "{agent}"
    );
    for finding in &found {
        assert_eq!(
            finding["status"] == "ok",
            finding.get("fix").is_none(),
            "{finding}"
        );
    }
}

/// A GPU host whose agent prints `found` when it is asked to check; what the doctor finds there.
fn gpu_host(found: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let settings = "QEMU_AGENT_TOKEN=t\nQEMU_AGENT_PORT=1\nFUSE_SYSFS=/elsewhere\n";
    file(".env", settings, 0o600);
    // It is told where it is and what its settings are, as the service is.
    let agent = format!(
        "#!/bin/sh\n[ \"$1:$QEMU_DIR:$FUSE_SYSFS\" = check:{}:/elsewhere ] && echo '{found}'\n",
        dir.path().display()
    );
    file("qemu-agent", &agent, 0o755);
    let path = format!(
        "{}:{}",
        dir.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let run = User::new().with("PATH", &path).run(&[
        "doctor",
        "--machine",
        "--no-boot",
        "--qemu-dir",
        dir.path().to_str().unwrap(),
        "--fc-dir",
        "/nowhere",
        "-o",
        "json",
    ]);
    findings(&run.exits(1))
}

#[test]
fn a_gpu_host_is_looked_at_by_its_own_agent() {
    let found = gpu_host(
        r#"[{"check":"iommu","status":"failed","detail":"off","fix":"sudo reboot"},
            {"check":"gpu inventory","status":"ok","detail":"1 whole"}]"#,
    );
    assert_eq!(named(&found, "iommu")["fix"], "sudo reboot");
    assert_eq!(named(&found, "gpu inventory")["status"], "ok");
    for check in ["tap", "nftables", "clock", "gpu disk"] {
        named(&found, check);
    }
    assert_eq!(named(&found, "gpu agent token")["status"], "ok");
    let agent = named(&found, "gpu agent");
    assert_eq!(
        agent["fix"],
        "sudo host-agent/qemu/qemu-agent.sh install-service"
    );
    assert_eq!(named(&found, "gpu guest")["status"], "skipped");
    // Nothing of the other agent's: it is not set up here.
    for check in ["agent", "agent token", "guest"] {
        assert!(found.iter().all(|one| one["check"] != check), "{check}");
    }
}

#[test]
fn a_gpu_agent_that_cannot_be_asked_is_said() {
    let found = gpu_host("usage: qemu-agent");
    let devices = named(&found, "gpu devices");
    assert_eq!(devices["status"], "failed");
    assert_eq!(devices["fix"], "sudo host-agent/qemu/qemu-install.sh");
}

#[test]
fn an_agent_that_runs_with_another_token_is_told_apart() {
    let agent = Fake::raw(|seen| match (seen.line.as_str(), seen.token.as_str()) {
        ("GET /healthz", "Bearer right") => json(200, "{}"),
        _ => json(401, "{}"),
    });
    let port = agent.url().rsplit(':').next().unwrap().to_owned();
    for (token, status) in [("right", "ok"), ("wrong", "failed")] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join(".env"),
            format!("FC_AGENT_TOKEN={token}\nFC_AGENT_PORT={port}\n"),
        )
        .unwrap();
        let path = dir.path().to_str().unwrap();
        let run = User::new().run(&[
            "doctor",
            "--machine",
            "--no-boot",
            "--fc-dir",
            path,
            "-o",
            "json",
        ]);
        let found = findings(&run);
        assert_eq!(named(&found, "agent")["status"], status, "{token}");
    }
}

#[test]
fn versions_of_both_sides() {
    let said = host("a", |host| host["agent"]["version"] = "1.2.3".into());
    let hosts = value!({"hosts": [said, host("b", |_| ())]}).to_string();
    let guest = |id: &str, state: &str, version: &str| {
        let at = "2026-01-15T10:00:00Z";
        value!({"id": id, "state": state, "guest_version": version, "created_at": at, "updated_at": at})
    };
    let guests = value!({"environments": [
        guest("fuse-a", "running", "1.2.3"), guest("fuse-b", "running", ""),
        guest("fuse-c", "running", "1.2.3"), guest("fuse-d", "destroying", "0.9.0"),
    ]});
    let guests = guests.to_string();
    let server = Fake::start(move |seen: &Seen| -> Option<Response<Body>> {
        let body = match seen.line.split(['?', ' ']).nth(1)? {
            "/v1/hosts" => &hosts,
            "/v1/environments" => &guests,
            _ => return None,
        };
        Some(match seen.token.as_str() {
            "Bearer good" => json(200, body),
            _ => error(401, "unauthorized", "invalid token"),
        })
    });
    let user = User::connected(&server.url(), "good");
    let run = user.run(&["version"]).ok();
    let url = server.url();
    assert_eq!(
        run.stdout,
        format!(
            "client  dev\nserver  dev  ({url})\nhost    1.2.3  (a)\nhost    -  (b)\n\
             guests  -  (1)\nguests  1.2.3  (2)\n"
        )
    );
    assert_eq!(run.stderr, "");
    let run = user.run(&["version", "-o", "json"]).ok();
    assert_eq!(
        run.json(),
        value!({"client": "dev", "server": {"url": url, "version": "dev"}, "warnings": [],
            "hosts": [{"id": "a", "version": "1.2.3"}, {"id": "b", "version": ""}],
            "guests": [{"version": "", "count": 1, "environments": ["fuse-b"]},
                {"version": "1.2.3", "count": 2, "environments": ["fuse-a", "fuse-c"]}]})
    );
    assert_eq!(
        user.run(&["version", "--client"]).ok().stdout,
        "client  dev\n"
    );
    let closed = User::connected(&server.url(), "other")
        .run(&["version"])
        .ok();
    for hidden in ["hosts are not shown: ", "guests are not shown: "] {
        assert!(closed.stderr.contains(hidden), "{}", closed.stderr);
    }
    let alone = User::new().run(&["version"]).ok();
    assert_eq!(alone.stdout, "client  dev\n");
    assert!(alone.stderr.contains("fuse connect"), "{}", alone.stderr);
    User::connected("http://127.0.0.1:1", "t")
        .run(&["version"])
        .exits(1);
}
