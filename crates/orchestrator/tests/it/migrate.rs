//! Environments that move to another host, against fake hosts.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Gate, Step, TOKEN};
use fuse_wire_host::ExecResponse;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, with_agent};

const A: &str = "/v1/environments/fuse-a";
const MIGRATE: &str = "/v1/environments/fuse-a?action=migrate";

/// Two hosts, `h` and `other`; an environment with a file in it on `h`.
struct Fleet {
    fuse: Orchestrator,
    agent: FakeAgent,
    other: FakeAgent,
}

impl Fleet {
    async fn start() -> Self {
        let options = Options {
            settings: Settings {
                reconcile_interval: Duration::from_millis(200),
                ..Settings::default()
            },
            ..Options::default()
        };
        Self::with(options).await
    }

    async fn with(options: Options) -> Self {
        let (fuse, agent) = with_agent(options).await;
        agent.serve_surfaces();
        let body = json!({"task_id": "a", "secrets": {"KEY": "hunter2hunter2"},
            "expose": [{"port": 80, "as": "web"}], "spec": {"cpus": 2, "ram_mb": 512}});
        fuse.create(&body).await.is(201);
        agent.write("fuse-a", "/data", b"kept");
        let other = FakeAgent::start().await.unwrap();
        fuse.register("other", &other).await;
        Self { fuse, agent, other }
    }

    async fn act(&self, path: &str) {
        self.fuse.post_raw(path, "").await.is(204);
    }

    async fn migrate(&self, body: &Value) -> Answer {
        self.fuse.post(MIGRATE, body).await
    }

    async fn audit(&self, kind: &str) -> Vec<Value> {
        let list = self.fuse.get(&format!("/v1/audit?type={kind}")).await;
        list.is(200)["audit_events"].as_array().unwrap().clone()
    }

    /// VMs that a host is charged for.
    async fn charged(&self, host: &str) -> Value {
        let host = self.fuse.get(&format!("/v1/hosts/{host}")).await.is(200);
        host["allocated"]["vm_count"].clone()
    }

    /// It is where it was, it works, and nothing else is left of a move.
    async fn is_as_before(&self, case: &str) {
        let record = self.fuse.get(A).await.is(200);
        assert_eq!(
            (&record["state"], &record["host_id"]),
            (&json!("running"), &json!("h"))
        );
        assert!(self.other.vms().is_empty(), "{case}");
        assert_eq!(self.agent.vms(), ["fuse-a"], "{case}");
        assert!(self.agent.serves("fuse-a"), "{case}");
        assert!(self.agent.snapshots().is_empty(), "{case}");
        let recorded = self.fuse.get("/v1/snapshots?vm_id=fuse-a").await.is(200);
        assert_eq!(recorded["snapshots"], json!([]), "{case}");
        assert_eq!(self.charged("h").await, 1, "{case}");
        assert_eq!(self.charged("other").await, 0, "{case}");
        let rotate = format!("{A}?action=rotate-token");
        assert_eq!(self.fuse.post_raw(&rotate, "").await.status, 204, "{case}");
    }

    async fn stop(self) {
        self.fuse.stop().await;
    }
}

fn exits(exit_code: i32) -> ExecResponse {
    ExecResponse {
        exit_code,
        ..ExecResponse::default()
    }
}

#[tokio::test]
async fn an_environment_moves_with_its_disk_task_secrets_and_age() {
    let fleet = Fleet::start().await;
    fleet.other.serve_surfaces();
    let before = fleet.fuse.get(A).await.is(200);
    let old = fleet.fuse.events("fuse-a", None).await;
    let moved = fleet.migrate(&json!({})).await.is(201);
    let id = moved["id"].as_str().unwrap().to_owned();
    let hex = id.strip_prefix("fuse-mig-").unwrap();
    assert!(hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    for key in ["task_id", "created_at", "spec"] {
        assert_eq!(moved[key], before[key], "{key}");
    }
    assert_eq!(
        (&moved["state"], &moved["host_id"]),
        (&json!("running"), &json!("other"))
    );
    assert_eq!(moved["endpoints"][0]["port"], 80);
    assert_eq!(fleet.other.file(&id, "/data").unwrap(), b"kept");
    let secrets = fleet.other.file(&id, "/fuse/secrets.json").unwrap();
    assert!(String::from_utf8_lossy(&secrets).contains("hunter2hunter2"));
    assert!(fleet.other.serves(&id));

    assert_eq!(fleet.fuse.get(A).await.status, 404);
    assert!(fleet.agent.vms().is_empty() && fleet.agent.snapshots().is_empty());
    assert_eq!(fleet.other.vms(), std::slice::from_ref(&id));
    assert_eq!(
        old.states().await,
        ["running", "draining", "destroying", "destroyed"]
    );
    let task = fleet.fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(
        (&task["vm_id"], &task["run_status"]),
        (&json!(id), &json!("running"))
    );
    assert_eq!(
        (fleet.charged("h").await, fleet.charged("other").await),
        (json!(0), json!(1))
    );
    let audit = fleet.audit("vm.migrated").await;
    assert_eq!(
        audit[0]["payload"],
        json!({"source_vm_id": "fuse-a", "source_host_id": "h",
            "target_vm_id": id, "target_host_id": "other"})
    );
    // It is an environment as any other, and can go back.
    let path = format!("/v1/environments/{id}");
    let back = json!({"target_host_id": "h"});
    let back = fleet
        .fuse
        .post(&format!("{path}?action=migrate"), &back)
        .await
        .is(201);
    assert_eq!(
        (&back["host_id"], &back["task_id"]),
        (&json!("h"), &json!("a"))
    );
    let id = back["id"].as_str().unwrap();
    assert_eq!(fleet.agent.file(id, "/data").unwrap(), b"kept");
    fleet
        .fuse
        .delete(&format!("/v1/environments/{id}"))
        .await
        .is(204);
    fleet.fuse.create(&json!({"task_id": "a"})).await.is(201);
    fleet.stop().await;
}

#[tokio::test]
async fn what_the_workload_writes_as_it_stops_comes_along() {
    let fleet = Fleet::start().await;
    let mut gate = fleet.agent.hold(Step::Exec);
    let request = json!({});
    let (moved, ()) = tokio::join!(fleet.migrate(&request), async {
        gate.reached().await;
        // Somebody is at work on it, and says so.
        let busy = fleet.fuse.post_raw(&format!("{A}?action=drain"), "").await;
        assert_eq!((busy.status, busy.code()), (409, "conflict"));
        assert!(busy.message().contains("(migrate)"), "{}", busy.text);
        fleet.agent.write("fuse-a", "/data", b"flushed at the end");
        gate.open();
    });
    let id = moved.is(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(
        fleet.other.file(&id, "/data").unwrap(),
        b"flushed at the end"
    );
    fleet.stop().await;
}

#[tokio::test]
async fn an_accepted_move_is_answered_before_it_is_done() {
    let fleet = Fleet::start().await;
    let request = fleet
        .fuse
        .request(Method::POST, MIGRATE)
        .header("prefer", "respond-async");
    let accepted = Orchestrator::send(request).await.is(202);
    assert_eq!(accepted["host_id"], "other");
    let path = format!("/v1/environments/{}", accepted["id"].as_str().unwrap());
    let moved = fleet
        .fuse
        .until(&path, |answer| {
            answer.status == 200 && answer.text.contains("running")
        })
        .await;
    assert_eq!(moved.is(200)["task_id"], "a");
    fleet.fuse.until(A, |answer| answer.status == 404).await;
    fleet.stop().await;
}

#[tokio::test]
async fn refusals_leave_everything_as_it_is() {
    let fleet = Fleet::start().await;
    let refuse = async |body: Value, status: u16, code: &str, text: &str| {
        let refused = fleet.migrate(&body).await;
        assert_eq!((refused.status, refused.code()), (status, code), "{body}");
        assert_eq!(refused.message(), text, "{body}");
    };
    let invalid = "invalid_argument";
    refuse(
        json!({"target_host_id": "x"}),
        404,
        "not_found",
        "host x not found",
    )
    .await;
    let text = "target_host_id is the host it is on";
    refuse(json!({"target_host_id": "h"}), 400, invalid, text).await;
    refuse(json!({"lazy": true}), 400, invalid, "lazy requires live").await;
    let text = "lazy needs an environment that was created with spec.huge_pages";
    refuse(json!({"live": true, "lazy": true}), 400, invalid, text).await;
    let live = fleet.migrate(&json!({"live": true})).await;
    assert_eq!((live.status, live.code()), (409, "conflict"));
    let unknown = fleet
        .fuse
        .post_raw("/v1/environments/fuse-x?action=migrate", "{}");
    unknown
        .await
        .is_error(404, "not_found", "vm fuse-x not found");

    let mut qemu = FakeAgent::start().await.unwrap();
    let body = json!({"id": "gpus", "url": qemu.url(), "token": TOKEN, "backend": "qemu",
        "capacity": {"vm_count": 5}});
    fleet.fuse.post("/v1/hosts", &body).await.is(201);
    let text = "no other host can take vm fuse-a: host \"gpus\" has another backend than \
                \"firecracker\"";
    refuse(json!({"target_host_id": "gpus"}), 503, "unavailable", text).await;
    let on_qemu = json!({"task_id": "q", "spec": {"host_id": "gpus"}});
    fleet.fuse.create(&on_qemu).await.is(201);
    let unable = fleet
        .fuse
        .post_raw("/v1/environments/fuse-q?action=migrate", "{}");
    unable
        .await
        .is_error(501, "unimplemented", "migrate not supported by provider");
    let drain = fleet
        .fuse
        .post_raw("/v1/hosts/gpus?action=drain&evict=migrate", "");
    drain
        .await
        .is_error(501, "unimplemented", "migrate not supported by provider");
    fleet.fuse.delete("/v1/environments/fuse-q").await.is(204);

    fleet.act("/v1/hosts/other?action=cordon").await;
    let full = fleet.migrate(&json!({})).await;
    assert_eq!((full.status, full.code()), (503, "unavailable"));
    assert!(
        full.message()
            .starts_with("no other host can take vm fuse-a: "),
        "{}",
        full.text
    );
    assert!(full.text.contains("rejected_state"), "{}", full.text);
    let text = "no other host can take vm fuse-a: pinned host cannot take this environment: \
                host \"other\" is cordoned, not active";
    refuse(json!({"target_host_id": "other"}), 503, "unavailable", text).await;
    fleet.is_as_before("refusals").await;
    qemu.stop().await;

    fleet.act("/v1/hosts/other?action=uncordon").await;
    let drained = fleet.fuse.post_raw(&format!("{A}?action=drain"), "").await;
    drained.is(200);
    let text = "vm not running: vm fuse-a is draining";
    refuse(json!({}), 409, "conflict", text).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_pin_moves_only_when_a_target_is_named() {
    let fleet = Fleet::start().await;
    let pinned = json!({"task_id": "p", "spec": {"host_id": "h"}});
    fleet.fuse.create(&pinned).await.is(201);
    let path = "/v1/environments/fuse-p?action=migrate";
    let refused = fleet.fuse.post(path, &json!({})).await;
    assert_eq!(refused.status, 503);
    assert!(
        refused.message().contains("it is pinned to host h"),
        "{}",
        refused.text
    );
    let moved = fleet
        .fuse
        .post(path, &json!({"target_host_id": "other"}))
        .await
        .is(201);
    assert_eq!(moved["spec"]["host_id"], "other");
    fleet.stop().await;
}

#[tokio::test]
async fn whatever_fails_before_the_cut_the_source_goes_on() {
    let fleet = Fleet::start().await;
    let (source, target) = (true, false);
    for (at, step, status) in [
        (source, Step::Snapshot, 500),
        (source, Step::Artifact, 404),
        (target, Step::Pull, 422),
        (target, Step::Create, 500),
        (target, Step::Upload, 500),
        (target, Step::StartAgent, 500),
    ] {
        let agent = if at == source {
            &fleet.agent
        } else {
            &fleet.other
        };
        agent.fail(step, 1, status, "the disk is broken");
        let case = format!("{step:?}");
        let failed = fleet.migrate(&json!({})).await;
        assert_eq!(failed.status, 500, "{case}: {}", failed.text);
        assert!(
            failed.message().contains("the disk is broken"),
            "{case}: {}",
            failed.text
        );
        let error = fleet.fuse.get(A).await.is(200)["error"].clone();
        let error = error.as_str().unwrap();
        assert!(error.starts_with("migrate: "), "{case}: {error}");
        fleet.is_as_before(&case).await;
    }
    // A workload that does not stop is not cut off.
    fleet
        .agent
        .on_exec(|argv| exits(i32::from(argv.iter().any(|word| word.contains("drain")))));
    let failed = fleet.migrate(&json!({})).await;
    assert!(
        failed.message().contains("drain command: exit status 1"),
        "{}",
        failed.text
    );
    fleet.agent.on_exec(|_| exits(0));
    fleet.is_as_before("drain").await;
    assert!(fleet.audit("vm.migrated").await.is_empty());
    fleet.migrate(&json!({})).await.is(201);
    fleet.stop().await;
}

#[tokio::test]
async fn a_source_that_is_destroyed_meanwhile_leaves_nothing_anywhere() {
    let fleet = Fleet::start().await;
    let mut gate = fleet.other.hold(Step::Create);
    let request = json!({});
    let (moved, gone) = tokio::join!(fleet.migrate(&request), async {
        gate.reached().await;
        let gone = fleet.fuse.delete(A);
        let (gone, ()) = tokio::join!(gone, async {
            fleet
                .fuse
                .until(A, |answer| !answer.text.contains("\"running\""))
                .await;
            gate.open();
        });
        gone
    });
    assert_eq!(gone.status, 204, "{}", gone.text);
    assert_eq!(
        (moved.status, moved.code()),
        (409, "conflict"),
        "{}",
        moved.text
    );
    assert!(fleet.agent.vms().is_empty() && fleet.agent.snapshots().is_empty());
    let list = fleet.fuse.get("/v1/environments").await;
    assert_eq!(list.is(200)["environments"], json!([]));
    fleet.other.until(|other| other.vms().is_empty()).await;
    assert_eq!(
        (fleet.charged("h").await, fleet.charged("other").await),
        (json!(0), json!(0))
    );
    fleet.stop().await;
}

#[tokio::test]
async fn a_target_that_is_destroyed_meanwhile_leaves_the_source() {
    let fleet = Fleet::start().await;
    let mut gate = fleet.other.hold(Step::Create);
    let request = json!({});
    let (moved, ()) = tokio::join!(fleet.migrate(&request), async {
        gate.reached().await;
        let list = fleet
            .fuse
            .get("/v1/environments?host_id=other")
            .await
            .is(200);
        let id = list["environments"][0]["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/environments/{id}");
        let gone = fleet.fuse.delete(&path);
        let (gone, ()) = tokio::join!(gone, async {
            fleet
                .fuse
                .until(&path, |answer| !answer.text.contains("provisioning"))
                .await;
            gate.open();
        });
        assert_eq!(gone.status, 204, "{}", gone.text);
    });
    assert_eq!(
        (moved.status, moved.code()),
        (409, "conflict"),
        "{}",
        moved.text
    );
    fleet.other.until(|other| other.vms().is_empty()).await;
    fleet.is_as_before("the target is gone").await;
    fleet.stop().await;
}

/// Moves, and stops one of the two agents when the move has come to the gate.
async fn moved_without(fuse: &Orchestrator, mut gate: Gate, agent: &mut FakeAgent) -> Answer {
    let request = json!({});
    let (moved, ()) = tokio::join!(fuse.post(MIGRATE, &request), async {
        gate.reached().await;
        agent.stop().await;
        gate.open();
    });
    moved
}

#[tokio::test]
async fn a_target_that_goes_away_meanwhile_leaves_the_source() {
    let mut fleet = Fleet::start().await;
    let gate = fleet.agent.hold(Step::Exec);
    let moved = moved_without(&fleet.fuse, gate, &mut fleet.other).await;
    assert_eq!(moved.status, 500, "{}", moved.text);
    fleet.other.start_again().await.unwrap();
    fleet.is_as_before("the target is away").await;
    fleet.migrate(&json!({})).await.is(201);
    fleet.stop().await;
}

/// From the cut on the new place counts, whatever becomes of the old one.
#[tokio::test]
async fn a_source_that_goes_away_meanwhile_is_cleared_up_when_it_is_back() {
    let mut fleet = Fleet::start().await;
    let gate = fleet.other.hold(Step::Create);
    let moved = moved_without(&fleet.fuse, gate, &mut fleet.agent).await;
    let id = moved.is(201)["id"].as_str().unwrap().to_owned();
    let left = fleet.fuse.get(A).await.is(200);
    assert_eq!(left["state"], "destroying");
    assert_eq!(left["task_id"], "", "it has moved on");
    assert_eq!(fleet.fuse.get("/v1/tasks/a").await.is(200)["vm_id"], id);
    fleet.agent.start_again().await.unwrap();
    fleet.fuse.until(A, |answer| answer.status == 404).await;
    assert!(fleet.agent.vms().is_empty());
    assert_eq!(
        (fleet.charged("h").await, fleet.charged("other").await),
        (json!(0), json!(1))
    );
    fleet.stop().await;
}

/// Recovery takes up at once what could not be put back.
#[tokio::test]
async fn a_source_that_cannot_be_put_back_yet_is_put_back_later() {
    let fleet = Fleet::start().await;
    fleet.other.fail(Step::Create, 1, 500, "the disk is broken");
    fleet
        .agent
        .fail(Step::StartAgent, 1, 500, "the guest is slow");
    let failed = fleet.migrate(&json!({})).await;
    assert!(
        failed.message().contains("the disk is broken"),
        "{}",
        failed.text
    );
    let said = fleet
        .fuse
        .until(A, |answer| answer.text.contains("migrate: interrupted"))
        .await;
    assert_eq!(said.is(200)["state"], "running");
    fleet.is_as_before("put back later").await;
    fleet.stop().await;
}

/// One after the other, past those that have to stay; and not again and again.
#[tokio::test]
async fn a_host_is_emptied_by_moving_what_can_be_moved() {
    let fleet = Fleet::start().await;
    let on_h = async |task: &str, spec: Value| {
        fleet.act("/v1/hosts/other?action=cordon").await;
        let body = json!({"task_id": task, "spec": spec});
        fleet.fuse.create(&body).await.is(201);
        fleet.act("/v1/hosts/other?action=uncordon").await;
    };
    on_h("b", json!({})).await;
    on_h("pinned", json!({"host_id": "h"})).await;
    // First in order, and nobody takes it: that is in nobody's way.
    on_h("0-labelled", json!({"region": "", "cpus": 12})).await;
    let small = json!({"id": "other", "url": fleet.other.url(), "token": TOKEN,
        "capacity": {"vm_count": 10, "cpus": 8}});
    fleet.fuse.post("/v1/hosts", &small).await.is(201);
    fleet.act("/v1/hosts/h?action=drain&evict=migrate").await;
    let at_h = "/v1/environments?host_id=h";
    let left = |answer: &Answer| {
        let list: Value = serde_json::from_str(&answer.text).unwrap();
        let all = list["environments"].as_array().unwrap().clone();
        let ids: Vec<_> = all
            .iter()
            .map(|one| one["id"].as_str().unwrap().to_owned())
            .collect();
        ids
    };
    let rest = ["fuse-0-labelled", "fuse-pinned"];
    fleet.fuse.until(at_h, |answer| left(answer) == rest).await;
    assert_eq!(fleet.other.vms().len(), 2);
    assert_eq!(fleet.audit("vm.migrated").await.len(), 2);
    let why = fleet
        .fuse
        .until("/v1/environments/fuse-0-labelled", |answer| {
            answer.text.contains("no other host can take")
        })
        .await;
    assert_eq!(why.is(200)["state"], "running");
    // Room somewhere lets it go.
    let large = json!({"id": "other", "url": fleet.other.url(), "token": TOKEN,
        "capacity": {"vm_count": 10}});
    fleet.fuse.post("/v1/hosts", &large).await.is(201);
    fleet
        .fuse
        .until(at_h, |answer| left(answer) == ["fuse-pinned"])
        .await;
    fleet.act("/v1/hosts/h?action=uncordon").await;
    fleet.stop().await;
}

#[tokio::test]
async fn without_hosts_there_is_nowhere_to_go() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let refused = fuse.post(MIGRATE, &json!({})).await;
    refused.is_error(501, "unimplemented", "migrate not supported by provider");
    fuse.stop().await;
}
