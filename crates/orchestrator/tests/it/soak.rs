//! Hours in minutes: clients make, use and destroy environments while hosts fail and the orchestrator
//! is killed, and every so often everything is let settle and checked. `make soak` runs it;
//! `FUSE_SOAK_MINUTES` says how long, `FUSE_SOAK_SEED` repeats what a run did.

use std::{
    collections::BTreeMap,
    io::Write as _,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fuse_testkit::fake_agent::Step;
use reqwest::Method;
use serde_json::json;

use crate::{
    matrix::{Fleet, check_hosts, check_store},
    program::Program,
};

/// What happens between two checks.
const TURNS: u32 = 150;
const TASKS: u64 = 8;

/// Numbers that follow from the first one (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn say(text: &str) {
    let line = format!("soak: {text}\n");
    std::io::stderr().lock().write_all(line.as_bytes()).unwrap();
}

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(default, |text| text.parse().unwrap())
}

/// Everything that a run did, counted.
#[derive(Default)]
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn note(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs for as long as it is told: make soak"]
async fn soak() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("FUSE_SOAK_SEED", now.as_secs().max(1));
    let until = Instant::now() + Duration::from_secs(60 * number("FUSE_SOAK_MINUTES", 30));
    say(&format!("seed {seed}"));
    let mut dice = Dice(seed);
    let mut counts = Counts::default();
    let fleet = Fleet::new().await;
    let mut fuse = fleet.start();
    fleet.register(&fuse).await;
    let mut rounds = 0;
    while Instant::now() < until {
        for _ in 0..TURNS {
            turn(&fleet, &mut fuse, &mut dice, &mut counts).await;
        }
        rounds += 1;
        for agent in &fleet.agents {
            agent.heal();
        }
        // Five failures in a row and a VM is given up; a new process tries it again.
        fuse.end();
        fuse = fleet.start();
        let place = format!("seed {seed}, round {rounds}");
        fleet.settle(&fuse).await;
        check_hosts(&fleet, &fuse, &place).await;
        fuse.end();
        check_store(&fleet, &place).await;
        fuse = fleet.start();
    }
    fuse.end();
    say(&format!(
        "{rounds} rounds of {TURNS} turns, every check held"
    ));
    for (what, count) in counts.0 {
        say(&format!("{count:>8} {what}"));
    }
}

async fn turn(fleet: &Fleet, fuse: &mut Program, dice: &mut Dice, counts: &mut Counts) {
    let task = format!("t{}", dice.roll(TASKS));
    let environment = format!("/v1/environments/fuse-{task}");
    let act = |action: &str| format!("{environment}?action={action}");
    let snapshot = fleet.agents[usize::from(dice.roll(2) == 1)]
        .snapshots()
        .into_iter()
        .find(|id| !id.starts_with("fork-seed-"))
        .unwrap_or_else(|| "snap-none".to_owned());
    let (name, method, path, body) = match dice.roll(22) {
        0..=6 => (
            "create",
            Method::POST,
            "/v1/environments".to_owned(),
            Some(json!({"task_id": task, "startup_script": "true"})),
        ),
        7..=10 => ("destroy", Method::DELETE, environment, None),
        11 => ("fork", Method::POST, act("fork"), Some(json!({}))),
        12 => ("drain", Method::POST, act("drain"), None),
        13 => ("rotate", Method::POST, act("rotate-token"), None),
        14 => (
            "snapshot",
            Method::POST,
            format!("{environment}/snapshots"),
            Some(json!({})),
        ),
        15 => (
            "exec",
            Method::POST,
            act("exec"),
            Some(json!({"cmd": ["true"]})),
        ),
        16 => (
            "restore",
            Method::POST,
            format!("/v1/snapshots/{snapshot}?action=restore"),
            None,
        ),
        17 => (
            "delete snapshot",
            Method::DELETE,
            format!("/v1/snapshots/{snapshot}"),
            None,
        ),
        fault => return break_something(fleet, fuse, fault, dice, counts).await,
    };
    let mut request = fuse
        .http
        .request(method, format!("{}{path}", fuse.base))
        .bearer_auth("master");
    if let Some(body) = body {
        request = request.json(&body);
    }
    let status = request.send().await.unwrap().status().as_u16();
    counts.note(&format!("{name} {status}"));
    forget_forks(fuse, counts).await;
}

/// Nobody else destroys forks: without this they fill the fleet.
async fn forget_forks(fuse: &Program, counts: &mut Counts) {
    let (_, list) = fuse
        .call(Method::GET, "/v1/environments?limit=200", None)
        .await;
    for record in list["environments"].as_array().into_iter().flatten() {
        let id = record["id"].as_str().unwrap_or_default();
        if id.starts_with("fuse-fork-") && record["state"] == "running" {
            let path = format!("/v1/environments/{id}");
            let (status, _) = fuse.call(Method::DELETE, &path, None).await;
            counts.note(&format!("destroy fork {status}"));
        }
    }
}

async fn break_something(
    fleet: &Fleet,
    fuse: &mut Program,
    fault: u64,
    dice: &mut Dice,
    counts: &mut Counts,
) {
    let agent = &fleet.agents[usize::from(dice.roll(2) == 1)];
    let steps = [
        Step::Create,
        Step::Upload,
        Step::Exec,
        Step::StartAgent,
        Step::Delete,
        Step::List,
        Step::Snapshot,
        Step::Fork,
        Step::Restore,
    ];
    let step = steps[usize::try_from(dice.roll(9)).unwrap()];
    match fault {
        18 => {
            agent.fail(step, 2, 500, "out of order");
            counts.note("fault: 500");
        }
        19 => {
            agent.fail(step, 1, 200, "<html>a proxy</html>");
            counts.note("fault: garbage");
        }
        20 => {
            let vms = agent.vms();
            if let Some(vm) = vms.first() {
                match dice.roll(3) {
                    0 => agent.lose_vm(vm),
                    1 => agent.reboot(vm),
                    _ => agent.end_vm(vm),
                }
                counts.note("fault: a VM is lost, boots anew or ends");
            }
        }
        _ => {
            fuse.signal("-KILL");
            let _killed = fuse.child.wait();
            *fuse = fleet.start();
            counts.note("fault: kill -9 of the orchestrator");
        }
    }
}
