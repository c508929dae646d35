//! The key of secrets at rest, from outside: changing it, and starting with a wrong one.

use std::process::Output;

use fuse_testkit::{
    SkipReason,
    fake_agent::{FakeAgent, TOKEN},
    postgres::{Durability, Postgres},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::program::{Program, command};

const OLD: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const NEW: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

fn env<'a>(database: &'a str, key: &'a str, previous: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("DATABASE_URL", database),
        ("ORCH_AUTH_TOKEN", "master"),
        ("ORCH_RECONCILE_INTERVAL_SECONDS", "1"),
        ("TOKEN_ENCRYPTION_KEY", key),
        ("TOKEN_ENCRYPTION_KEY_PREVIOUS", previous),
    ]
}

fn rekey(env: &[(&str, &str)]) -> Output {
    run("rekey", env)
}

fn backup_check(env: &[(&str, &str)]) -> Output {
    run("backup-check", env)
}

fn run(subcommand: &str, env: &[(&str, &str)]) -> Output {
    command()
        .arg(subcommand)
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn get(program: &Program, path: &str) -> (u16, Value) {
    program.call(Method::GET, path, None).await
}

/// Runs a command in the guest, which takes the host's token.
async fn exec(program: &Program) -> u16 {
    let body = json!({"cmd": ["true"]});
    let path = "/v1/environments/fuse-a?action=exec";
    program.call(Method::POST, path, Some(body)).await.0
}

async fn is_said(program: &Program, part: &str) {
    let (status, ready) = get(program, "/ready").await;
    assert_eq!(status, 503, "{ready}");
    let said = ready["checks"]["encryption_key"].as_str().unwrap();
    assert!(said.contains(part), "{said}");
    let (_, host) = get(program, "/v1/hosts/h").await;
    let marked = host["agent"]["error"].as_str().unwrap();
    assert!(marked.contains("TOKEN_ENCRYPTION_KEY"), "{marked}");
    assert_eq!(exec(program).await, 500);
}

async fn moves_to_another_key(database: &str) {
    let agent = FakeAgent::start().await.unwrap();
    let mut program = Program::start(&env(database, OLD, ""));
    let host = json!({"id": "h", "url": agent.url(), "token": TOKEN, "capacity": {"vm_count": 9}});
    let registered = program.call(Method::POST, "/v1/hosts", Some(host)).await;
    assert_eq!(registered.0, 201, "{registered:?}");
    let create = json!({"task_id": "a", "secrets": {"K": "v"}});
    program
        .call(Method::POST, "/v1/environments", Some(create))
        .await;
    crate::program::wait(&program, "/v1/environments/fuse-a", |answer| {
        answer.1["state"] == "running"
    })
    .await;
    assert_eq!(exec(&program).await, 200);
    program.end();

    let mut program = Program::start(&env(database, NEW, ""));
    assert!(
        program
            .said()
            .contains("TOKEN_ENCRYPTION_KEY does not open the secrets of")
    );
    is_said(
        &program,
        "TOKEN_ENCRYPTION_KEY does not open the secrets of environment fuse-a",
    )
    .await;
    program.end();
    let mut program = Program::start(&env(database, "", ""));
    is_said(&program, "TOKEN_ENCRYPTION_KEY is not set").await;
    program.end();
    // Nothing can be rewritten without the key that opens it.
    let failed = rekey(&env(database, NEW, ""));
    assert_eq!(failed.status.code(), Some(1));
    let why = text(&failed.stderr);
    assert!(why.contains("environment fuse-a, host h"), "{why}");

    // A backup is whole with the key that its secrets are sealed under.
    let whole = backup_check(&env(database, OLD, ""));
    let said = "1 hosts, 1 environments, 0 snapshots, 0 API keys; 3 secrets open\n";
    assert_eq!(text(&whole.stdout), said, "{whole:?}");
    assert_eq!(whole.status.code(), Some(0));
    let torn = backup_check(&env(database, NEW, ""));
    assert_eq!(torn.status.code(), Some(1));
    let why = text(&torn.stderr);
    assert!(
        why.contains("does not open the secrets of environment fuse-a, host h"),
        "{why}"
    );

    let keyless = text(&backup_check(&env(database, "", "")).stderr);
    assert!(
        keyless.contains("TOKEN_ENCRYPTION_KEY is not set"),
        "{keyless}"
    );

    let mut program = Program::start(&env(database, NEW, OLD));
    assert_eq!(exec(&program).await, 200);
    // One process at a time has a file.
    let is_shared = !database.starts_with("sqlite");
    if !is_shared {
        program.end();
    }
    let done = rekey(&env(database, NEW, OLD));
    let said = text(&done.stdout);
    assert_eq!(
        said, "3 rewritten, 3 under the current key now\n",
        "{done:?}"
    );
    let again = rekey(&env(database, NEW, OLD));
    assert_eq!(
        text(&again.stdout),
        "0 rewritten, 3 under the current key now\n"
    );
    if is_shared {
        program.end();
    }

    let program = Program::start(&env(database, NEW, ""));
    assert_eq!(exec(&program).await, 200);
    crate::program::wait(&program, "/ready", |answer| answer.0 == 200).await;
    let (_, ready) = get(&program, "/ready").await;
    assert_eq!(ready["checks"]["encryption_key"], Value::Null);
}

#[tokio::test]
async fn sqlite_moves_to_another_key() {
    let dir = tempfile::tempdir().unwrap();
    moves_to_another_key(&format!("sqlite://{}/fuse.db", dir.path().display())).await;
}

#[tokio::test]
async fn postgres_moves_to_another_key_and_says_what_it_cannot_read() {
    let server = match Postgres::start(Durability::Careless) {
        Ok(server) => server,
        Err(error) if error.is::<SkipReason>() => {
            return fuse_testkit::report_skip("rekey", &error.to_string());
        }
        Err(error) => panic!("{error:#}"),
    };
    let database = server.database().unwrap();
    moves_to_another_key(&database).await;

    // A record that cannot be understood stops the start, before anything is bound.
    server
        .query(&database, "UPDATE environments SET state = 'nonsense'")
        .unwrap();
    let refused = command().envs(env(&database, NEW, "")).output().unwrap();
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{why}");
    let last = why.lines().last().unwrap_or_default();
    assert!(
        last.contains("recovery failed") && last.contains("DATABASE_URL"),
        "{why}"
    );
    assert!(
        last.contains("environments") && last.contains("state"),
        "{why}"
    );
    let damaged = backup_check(&env(&database, NEW, ""));
    assert_eq!(damaged.status.code(), Some(1));
    let why = text(&damaged.stderr);
    assert!(why.contains("cannot be read in full"), "{why}");
}

#[test]
fn an_empty_store_is_no_backup() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}/fuse.db", dir.path().display());
    for (database, part) in [
        ("", "DATABASE_URL"),
        (file.as_str(), "there is nothing in it"),
    ] {
        let failed = backup_check(&env(database, NEW, ""));
        assert_eq!(failed.status.code(), Some(1));
        let why = text(&failed.stderr);
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn rekey_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}/fuse.db", dir.path().display());
    for (database, key, previous, part) in [
        ("", NEW, OLD, "DATABASE_URL"),
        (file.as_str(), "", "", "TOKEN_ENCRYPTION_KEY"),
        (file.as_str(), "", OLD, "TOKEN_ENCRYPTION_KEY_PREVIOUS"),
        (file.as_str(), NEW, "abc", "TOKEN_ENCRYPTION_KEY_PREVIOUS"),
    ] {
        let failed = rekey(&env(database, key, previous));
        assert_eq!(failed.status.code(), Some(1));
        let why = text(&failed.stderr);
        assert!(why.contains(part), "{part}: {why}");
    }
}
