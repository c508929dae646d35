//! `hosts` and `host`.

use serde_json::json as value;

use crate::fake::{Fake, empty, environment, error, events, host, json};
use crate::fuse::User;
use crate::terminal::Terminal;

const NOTE: &str =
    "note: last_seen is set at registration and not refreshed; it is not a liveness signal\n";

#[test]
fn registration_prints_the_published_block() {
    let server = Fake::start(|seen| {
        let warnings = ["declared cpus (32) exceeds probed host capacity (16)"];
        (seen.line == "POST /v1/hosts").then(|| json(201, &host("prod-east-1", &warnings)))
    });
    let user = User::connected(&server.url(), "tok").with("FC_AGENT_TOKEN", "agents-own");
    let args = [
        "host",
        "register",
        "prod-east-1",
        "--url",
        "http://10.0.0.5:8090",
        "--max-vms",
        "20",
    ];
    let run = user.run(&args).ok();
    let age = run
        .stdout
        .lines()
        .find(|line| line.starts_with("last seen"))
        .unwrap();
    let age = age
        .trim_start_matches("last seen     2026-01-15 10:00 ")
        .to_owned();
    assert_eq!(
        run.stdout,
        format!(
            "\
id            prod-east-1
url           http://10.0.0.5:8090
region        -
backend       firecracker
state         active
cpus          0 / 16
ram mb        0 / 65536
storage gb    0 / 500
vms           0 / 20
last seen     2026-01-15 10:00 {age}
created       2026-01-15 10:00
updated       2026-01-15 10:00
"
        )
    );
    assert_eq!(
        run.stderr,
        format!(
            "registered host \"prod-east-1\"\nwarning: declared cpus (32) exceeds probed host capacity (16)\n{NOTE}"
        )
    );
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(sent["token"], "agents-own");
    assert_eq!(sent["capacity"]["vm_count"], 20);

    // The other spelling, and JSON: the object on stdout, the note on stderr.
    let run = user
        .run(&[
            "-o",
            "json",
            "hosts",
            "register",
            "prod-east-1",
            "--url",
            "http://h:8090",
            "--max-vms",
            "20",
        ])
        .ok();
    assert_eq!(
        run.json()["warnings"][0],
        "declared cpus (32) exceeds probed host capacity (16)"
    );
    assert!(run.stderr.ends_with(NOTE), "{}", run.stderr);
}

#[test]
fn a_refused_agent_token_keeps_the_published_lines_and_adds_one() {
    let server = Fake::start(|seen| {
        (seen.line == "POST /v1/hosts").then(|| {
            error(
                502,
                "unauthorized",
                "host agent at http://10.0.0.5:8090 rejected the token. this must be its FC_AGENT_TOKEN, not the orchestrator token",
            )
        })
    });
    let user = User::connected(&server.url(), "tok");
    let register = |token: &str| user.register("--token", token).exits(1);
    assert_eq!(
        register("wrong").stderr,
        "unauthorized: host agent at http://10.0.0.5:8090 rejected the token. this must be its FC_AGENT_TOKEN, not the orchestrator token\n\
        \x20 re-run `fuse connect <url> --token <token>` with a valid token\n\
        \x20 the token at fault is this command's --token; the token of context \"test\" is fine\n"
    );
    register("tok").says("it is the orchestrator's own");
}

#[test]
fn what_can_be_checked_here_is_not_sent() {
    let server = Fake::start(|_| None);
    let user = User::connected(&server.url(), "tok");
    let register = |more: &[&str]| {
        let mut args = vec!["host", "register", "a"];
        args.extend(more);
        user.run(&args).exits(1)
    };
    register(&[]).says("--url");
    register(&["--url", "http://h", "--max-vms", "1"]).says("--no-verify");
    register(&["--url", "http://h", "--token", "t"]).says("--max-vms");
    register(&[
        "--url",
        "http://h",
        "--token",
        "t",
        "--max-vms",
        "1",
        "--gpus",
        "1",
    ])
    .says("invalid argument: gpus > 0 requires backend \"qemu\"");
    assert_eq!(server.lines(), Vec::<String>::new());
}

#[test]
fn lists_page_and_mark_the_active_host() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/hosts/h2" => Some(json(200, &host("h2", &[]))),
        "GET /v1/hosts/regster" => Some(error(404, "not_found", "host regster not found")),
        "GET /v1/hosts" | "GET /v1/hosts?limit=200" => Some(json(
            200,
            &format!(r#"{{"hosts":[{}],"next_cursor":"abc"}}"#, host("h1", &[])),
        )),
        line if line.contains("cursor=abc") => {
            Some(json(200, &format!(r#"{{"hosts":[{}]}}"#, host("h2", &[]))))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["host"]).ok().says("no active host");
    user.run(&["host", "regster"])
        .exits(1)
        .says("did you mean `fuse host register`?");
    user.run(&["host", "h2"]).ok().says("active host: h2");
    assert_eq!(
        user.run(&["host", "-o", "json"]).ok().json()["active_host"],
        "h2"
    );

    let first = user
        .run(&["hosts"])
        .ok()
        .says("--cursor abc")
        .says("--all-pages");
    assert!(first.stdout.contains("h1") && !first.stdout.contains("h2"));
    let all = user.run(&["hosts", "list", "--all-pages"]).ok();
    assert_eq!(all.stderr, "");
    assert!(
        all.stdout.contains("│   │ h1 │") && all.stdout.contains("│ * │ h2 │"),
        "{}",
        all.stdout
    );
    let json = user
        .run(&["hosts", "--all-pages", "-o", "json"])
        .ok()
        .json();
    assert_eq!(json["hosts"].as_array().unwrap().len(), 2);
    assert!(json.get("next_cursor").is_none());
}

#[test]
fn removal_asks_and_forgets_the_active_host() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/hosts/h1" => Some(json(200, &host("h1", &[]))),
        "DELETE /v1/hosts/h1"
        | "POST /v1/hosts/h1?action=cordon"
        | "POST /v1/hosts/h1?action=uncordon"
        | "POST /v1/hosts/h1?action=drain&evict=none"
        | "POST /v1/hosts/h1?action=drain&evict=drain" => Some(empty()),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["host", "h1"]).ok();
    let run = user.run(&["host", "cordon", "h1", "-o", "json"]).ok();
    assert_eq!(
        run.json(),
        serde_json::json!({"id": "h1", "action": "cordon"})
    );
    user.run(&["host", "uncordon", "h1"])
        .ok()
        .says("uncordoned host h1");
    user.run(&["host", "drain", "h1"])
        .ok()
        .says("draining host h1: nothing new is placed there");
    user.run(&["host", "drain", "h1", "--evict", "drain"])
        .ok()
        .says("what runs there is asked to stop");
    user.run(&["host", "remove", "h1"]).exits(1).says("--yes");
    assert!(!server.lines().iter().any(|line| line.starts_with("DELETE")));
    user.run(&["host", "rm", "h1", "--yes"])
        .ok()
        .says("removed host h1");
    assert!(!user.config().contains("active_host"));
}

/// A running environment, but for these fields.
fn staying(fields: &serde_json::Value) -> String {
    let mut staying: serde_json::Value = serde_json::from_str(&environment("running")).unwrap();
    let fields = fields.as_object().unwrap().clone();
    staying.as_object_mut().unwrap().extend(fields);
    staying.to_string()
}

/// A host that loses one environment with every look; what is left is there for good.
fn emptying(stays: &[serde_json::Value]) -> Fake {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let stays: Vec<_> = stays.iter().map(staying).collect();
    Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/hosts/h1?action=drain&evict=migrate" => Some(empty()),
        "GET /v1/events" => Some(events(&[("destroyed", ""), ("destroyed", "")])),
        line if line.starts_with("GET /v1/environments?host_id=h1") => {
            let look = looks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let all = ["fuse-a", "fuse-b"].map(|id| environment("running").replace("fuse-a", id));
            let mut there: Vec<_> = all.into_iter().skip(look.saturating_sub(1)).collect();
            there.extend(stays.clone());
            Some(json(
                200,
                &format!(r#"{{"environments":[{}]}}"#, there.join(",")),
            ))
        }
        _ => None,
    })
}

#[test]
fn a_drain_that_waits_shows_what_leaves() {
    let server = emptying(&[]);
    let user = User::connected(&server.url(), "tok");
    let args = ["host", "drain", "h1", "--evict", "migrate", "--wait"];
    let run = user.run(&args).ok();
    assert_eq!(
        run.stderr,
        "draining host h1: nothing new is placed there, what runs there is moved to other hosts, \
         one at a time\nfuse-a left, 1 environment is there\nfuse-b left, nothing is there\n\
         host h1 is empty\n"
    );
    let again = emptying(&[]);
    let user = User::connected(&again.url(), "tok");
    let run = user.run(&[&args[..], &["-o", "json"]].concat()).ok();
    assert_eq!(
        run.json(),
        serde_json::json!({"id": "h1", "action": "drain"})
    );
}

#[test]
fn a_drain_that_waits_names_what_stays_and_goes_on_without_its_command() {
    let server = emptying(&[
        value!({"id": "fuse-p", "spec": {"host_id": "h1"}}),
        value!({"id": "fuse-g", "spec": {"gpus": 1}}),
        value!({"id": "fuse-d", "state": "draining"}),
        value!({"id": "fuse-e", "error": "migrate: no other host can take vm fuse-e"}),
    ]);
    let user = User::connected(&server.url(), "tok");
    let args = ["host", "drain", "h1", "--evict", "migrate", "--wait"];
    let run = user.interrupted(&args, "fuse-b left").exits(130);
    let run = run
        .says("fuse environment migrate fuse-p --to HOST")
        .says("fuse-g stays for now: it has GPUs")
        .says("fuse environment destroy fuse-d")
        .says("fuse-e stays for now: migrate: no other host can take vm fuse-e")
        .says("host h1 goes on draining");
    assert_eq!(
        run.stderr.matches("fuse-g stays").count(),
        1,
        "{}",
        run.stderr
    );
}

#[test]
fn a_host_that_cannot_move_anything_says_what_else_there_is() {
    let server = Fake::start(|seen| {
        let refused = "POST /v1/hosts/g?action=drain&evict=migrate";
        let text = "migrate not supported by provider";
        (seen.line == refused).then(|| error(501, "unimplemented", text))
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["host", "drain", "g", "--evict", "migrate"])
        .exits(1)
        .says("stop it with --evict drain")
        .says("migrate not supported by provider");
}

#[test]
fn a_drain_says_when_there_is_nothing_to_drain() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "POST /v1/hosts/h1?action=drain&evict=none" => Some(empty()),
        line if line.starts_with("GET /v1/environments?host_id=h1") => {
            Some(json(200, r#"{"environments":[]}"#))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["host", "drain", "h1"])
        .ok()
        .says("draining host h1: nothing new is placed there, and nothing runs there");
}

#[test]
fn a_probe_shows_the_host_and_whose_token_is_refused() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "POST /v1/hosts/h1?action=probe" => {
            let warnings = ["declared cpus (32) exceeds probed host capacity (16)"];
            Some(json(200, &host("h1", &warnings)))
        }
        "POST /v1/hosts/h2?action=probe" => Some(error(
            502,
            "unauthorized",
            "host agent at http://10.0.0.5:8090 rejected the token. this must be its FC_AGENT_TOKEN, not the orchestrator token",
        )),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["host", "probe", "h1"]).ok();
    assert!(
        run.stdout.contains("cpus          0 / 16\n"),
        "{}",
        run.stdout
    );
    assert_eq!(
        run.stderr,
        format!(
            "probed host \"h1\"\nwarning: declared cpus (32) exceeds probed host capacity (16)\n{NOTE}"
        )
    );
    user.run(&["hosts", "probe", "h2"])
        .exits(1)
        .says("rejected the token")
        .says("the one that the host was registered with");
}

#[test]
fn devices_are_listed_when_asked_for() {
    let server = Fake::start(|seen| {
        let mut gpu: serde_json::Value = serde_json::from_str(&host("g", &[])).unwrap();
        gpu["capacity"]["gpu_devices"] = serde_json::json!([
            {"uuid": "GPU-1", "model": "NVIDIA A100", "pci_bus_id": "0000:3b:00.0",
             "memory_mb": 81_920, "driver_version": "550.54", "mig_capable": true,
             "mig_mode": "Enabled"},
        ]);
        match seen.line.as_str() {
            "GET /v1/hosts/g" => Some(json(200, &gpu.to_string())),
            "GET /v1/hosts/h" => Some(json(200, &host("h", &[]))),
            _ => None,
        }
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["host", "get", "g", "--devices"]).ok();
    assert!(
        run.stdout.contains(
            "│ GPU-1 │ NVIDIA A100 │ 0000:3b:00.0 │ 81920     │ 550.54 │ Enabled  │ yes │\n"
        ),
        "{}",
        run.stdout
    );
    user.run(&["host", "get", "h", "--devices"])
        .ok()
        .says("the host agent reported no GPUs");
    assert!(
        !user
            .run(&["host", "get", "g"])
            .ok()
            .stdout
            .contains("GPU-1")
    );
}

#[test]
fn placement_is_explained() {
    let server = Fake::start(|seen| {
        (seen.line == "POST /v1/placement/explain").then(|| {
            json(
                200,
                r#"{"policy":"spread","host_id":"a","rejected":{"state":1},"hosts":[
                    {"host_id":"a","state":"active","eligible":true,"rank":1,"score":1,
                     "free_cpus":4,"free_ram_mb":1024,"free_storage_gb":9,"free_vms":2},
                    {"host_id":"b","state":"cordoned","eligible":false,"score":1,
                     "free_cpus":4,"free_ram_mb":1024,"free_storage_gb":9,"free_vms":2,
                     "gate":"state","reason":"is cordoned, not active"}]}"#,
            )
        })
    });
    let user = User::connected(&server.url(), "tok");
    let args = [
        "environment",
        "create",
        "--explain",
        "--cpus",
        "2",
        "--label",
        "disk=nvme",
    ];
    let run = user.run(&args).ok();
    assert_eq!(
        run.stdout,
        "\
╭──────┬──────┬──────────┬──────┬────────┬─────┬─────────────────────────╮
│ RANK │ HOST │ STATE    │ CPUS │ RAM MB │ VMS │ WHY NOT                 │
├──────┼──────┼──────────┼──────┼────────┼─────┼─────────────────────────┤
│ 1    │ a    │ active   │ 4    │ 1024   │ 2   │ -                       │
│ -    │ b    │ cordoned │ 4    │ 1024   │ 2   │ is cordoned, not active │
╰──────┴──────┴──────────┴──────┴────────┴─────┴─────────────────────────╯
"
    );
    assert_eq!(
        run.stderr,
        "would go to host a (spread, 1 of 2 hosts fit)\n"
    );
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(
        (&sent["spec"]["cpus"], &sent["spec"]["labels"]["disk"]),
        (&2.into(), &"nvme".into())
    );
    assert_eq!(
        server.lines(),
        ["POST /v1/placement/explain"],
        "nothing is created"
    );
    let json = user.run(&[&args[..], &["-o", "json"]].concat()).ok().json();
    assert_eq!(json["hosts"][1]["gate"], "state");
}

#[test]
fn an_explanation_says_who_has_the_seed() {
    let server = Fake::start(|seen| {
        (seen.line == "POST /v1/placement/explain").then(|| {
            json(
                200,
                r#"{"policy":"spread","host_id":"a","rejected":{"seed":1},"hosts":[
                    {"host_id":"a","state":"active","eligible":true,"rank":1,"score":1,
                     "artifact_local":true,"free_cpus":4,"free_ram_mb":1024,"free_vms":2},
                    {"host_id":"b","state":"active","eligible":false,"score":1,
                     "free_cpus":4,"free_ram_mb":1024,"free_vms":2,"gate":"seed",
                     "reason":"does not have the seed snapshot, which cannot move"}]}"#,
            )
        })
    });
    let user = User::connected(&server.url(), "tok");
    let args = [
        "environment",
        "create",
        "--explain",
        "--seed-snapshot",
        "s-1",
    ];
    let run = user.run(&args).ok();
    let line = |n: usize| run.stdout.lines().nth(n).unwrap().to_owned();
    assert!(line(1).starts_with("│ RANK │ HOST │ STATE  │ SEED │ CPUS │"));
    assert!(line(3).starts_with("│ 1    │ a    │ active │ here │ 4    │"));
    assert!(line(4).starts_with("│ -    │ b    │ active │ -    │ 4    │"));
    assert!(line(4).contains("does not have the seed snapshot, which cannot move"));
    assert_eq!(
        run.stderr,
        "would go to host a (has the seed, spread, 1 of 2 hosts fit)\n"
    );
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(sent["seed_snapshot_id"], "s-1");
}

#[test]
fn the_form_asks_for_what_the_flags_leave_open() {
    let server =
        Fake::start(|seen| (seen.line == "POST /v1/hosts").then(|| json(201, &host("gpu-1", &[]))));
    let user = User::connected(&server.url(), "tok");
    let test = "hosts::the_form_asks_for_what_the_flags_leave_open";
    let fuse = env!("CARGO_BIN_EXE_fuse");
    let script = format!("{fuse} host register gpu-1 --cpus 4; echo \"status $?\"");
    let Some(terminal) = Terminal::run(test, user, &script) else {
        return;
    };
    terminal.answer("? Host URL", "http://10.0.0.5:8091");
    terminal.shows("not the orchestrator token");
    terminal.answer("? Host agent token", "sesame");
    terminal.answer("? Region", "us-east");
    terminal.shows("0 = probe from host agent");
    terminal.answer("? CPUs", "");
    terminal.answer("? RAM MB", "lots");
    terminal.shows("a whole number, 0 or more");
    terminal.erase("lots".len());
    terminal.answer("? RAM MB", "");
    terminal.answer("? Storage GB", "");
    terminal.shows("required, not probed");
    terminal.answer("? Max VMs", "8");
    terminal.shows("--mig-profile");
    terminal.answer("? GPUs", "2");
    terminal.answer("? GPU kind", "a100");
    terminal.shows("GPUs need qemu");
    terminal.answer("? Backend", "");
    let screen = terminal.shows("status 0");
    assert!(screen.contains("registered host \"gpu-1\""), "{screen}");
    assert!(!screen.contains("sesame"), "the token is masked: {screen}");
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(
        sent,
        serde_json::json!({
            "id": "gpu-1", "url": "http://10.0.0.5:8091", "token": "sesame", "region": "us-east",
            "backend": "qemu", "capacity": {"cpus": 4, "ram_mb": 0, "storage_gb": 0,
                "vm_count": 8, "gpus": 2, "gpu_kind": "a100"},
        })
    );
}
