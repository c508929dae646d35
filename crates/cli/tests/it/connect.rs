//! `connect` and `context`.

use axum::body::Body;
use axum::http::Response;

use crate::fake::{Fake, error, json};
use crate::fuse::User;

fn orchestrator() -> Fake {
    Fake::start(|seen| {
        let wants = seen.line.starts_with("GET /v1/hosts");
        wants.then(|| match seen.token.as_str() {
            "Bearer good" => json(200, r#"{"hosts":[]}"#),
            "" => error(401, "unauthorized", "missing or malformed credentials"),
            _ => error(401, "unauthorized", "invalid token"),
        })
    })
}

#[test]
fn a_probe_that_passes_is_remembered() {
    let server = orchestrator();
    let user = User::new();
    let run = user
        .run(&["connect", &server.url(), "--token", "good", "--master"])
        .ok();
    assert_eq!(
        run.stderr,
        format!("connected: context \"127.0.0.1\" -> {}\n", server.url())
    );
    assert_eq!(run.stdout, "");
    assert_eq!(server.lines(), ["GET /v1/version", "GET /v1/hosts?limit=1"]);
    assert_eq!(server.seen()[0].user_agent, "fuse-cli/dev");
    assert_eq!(
        user.config(),
        format!(
            "current_context: \"127.0.0.1\"\ncontexts:\n  - name: \"127.0.0.1\"\n    base_url: {}\n    \
             token: good\n    master: true\n",
            server.url()
        )
    );
    let listed = user.run(&["context", "list", "-o", "json"]).ok();
    assert_eq!(
        listed.json(),
        serde_json::json!([{"name": "127.0.0.1", "base_url": server.url(), "master": true, "current": true}])
    );
    let table = user.run(&["ctx", "ls"]).ok();
    assert!(table.stdout.contains("│ * │ 127.0.0.1 │") && !table.stdout.contains("good"));
}

#[test]
fn every_failure_names_its_layer_and_saves_nothing() {
    let user = User::new().with("FC_AGENT_TOKEN", "agents-own");
    let server = orchestrator();
    let run = user
        .run(&["connect", &server.url(), "--token", "agents-own"])
        .exits(1);
    let run = run
        .says("rejected the token")
        .says("ORCH_AUTH_TOKEN")
        .says("FC_AGENT_TOKEN");
    assert!(!run.stderr.contains("agents-own"), "{}", run.stderr);

    let agent = Fake::raw(|_| {
        Response::builder()
            .status(401)
            .header("server", "fc-agent/0.1")
            .body(Body::from("unauthorized"))
            .unwrap()
    });
    user.run(&["connect", &agent.url(), "--token", "good"])
        .exits(1)
        .says("is not a fuse orchestrator: fc-agent/0.1 answered")
        .says("8090");
    let other = Fake::raw(|_| json(200, r#"{"service":"grafana"}"#));
    user.run(&["connect", &other.url()])
        .exits(1)
        .says("service \"grafana\" answered");
    let nameless = Fake::raw(|_| json(418, ""));
    user.run(&["connect", &nameless.url()])
        .exits(1)
        .says("HTTP 418");

    let gone = server.url();
    drop(server);
    let run = user.run(&["connect", &gone, "--token", "good"]).exits(1);
    run.says("no orchestrator at")
        .says("connection refused")
        .says("8080")
        .says("--no-verify");
    user.run(&["connect", "http://no-such-host.invalid:8080"])
        .exits(1)
        .says("host not found");
    for url in ["10.0.0.5:8080", "localhost", "ftp://h"] {
        user.run(&["connect", url]).exits(1).says("scheme");
    }
    assert_eq!(user.config(), "");
    user.run(&["connect", &gone, "--no-verify"]).ok();
    assert!(user.config().contains(&gone));
}

#[test]
fn other_errors_do_not_count_against_the_token() {
    let server = Fake::start(|seen| {
        seen.line
            .starts_with("GET /v1/hosts")
            .then(|| error(403, "unauthorized", "no"))
    });
    User::new()
        .run(&["connect", &server.url(), "--token", "key"])
        .ok();
    let proxy = Fake::start(|seen| {
        seen.line
            .starts_with("GET /v1/hosts")
            .then(|| json(401, ""))
    });
    User::new()
        .run(&["connect", &proxy.url(), "--token", "key"])
        .exits(1);
}

#[test]
fn without_a_token_the_warning_is_definite() {
    let server = orchestrator();
    let user = User::new();
    user.run(&["connect", &server.url()])
        .ok()
        .says("this orchestrator requires a token");
    let open = Fake::start(|seen| {
        seen.line
            .starts_with("GET /v1/hosts")
            .then(|| json(200, r#"{"hosts":[]}"#))
    });
    user.run(&["connect", &open.url(), "--name", "open"])
        .ok()
        .says("without authentication");
}

#[test]
fn two_servers_of_one_host_name_do_not_overwrite_each_other() {
    let (first, second) = (orchestrator(), orchestrator());
    let user = User::new();
    user.run(&["connect", &first.url(), "--token", "good"]).ok();
    user.run(&["connect", &second.url(), "--token", "good"])
        .ok();
    let listed = user.run(&["context", "list", "-o", "json"]).ok().json();
    let port = second.url().rsplit(':').next().unwrap().to_owned();
    assert_eq!(listed[0]["name"], "127.0.0.1");
    assert_eq!(listed[1]["name"], format!("127.0.0.1-{port}"));
}

#[test]
fn contexts_are_used_and_removed() {
    let user = User::new();
    user.run(&["context", "current"])
        .exits(1)
        .says("fuse connect <url> --token <token>");
    user.run(&["context", "list"])
        .ok()
        .says("no results")
        .prints("");
    user.run(&["context", "list", "-o", "json"])
        .ok()
        .prints("[]\n");
    for name in ["a", "b"] {
        let url = format!("http://{name}.example:8080/v1");
        user.run(&[
            "connect",
            &url,
            "--name",
            name,
            "--no-verify",
            "--token",
            "t",
        ])
        .ok()
        .says("the /v1 prefix");
    }
    user.run(&["context", "use", "a"])
        .ok()
        .says("using context \"a\"");
    let current = user.run(&["context", "current"]).ok();
    assert!(
        current
            .stdout
            .starts_with("name               a\nbase url           http://a.example:8080\n")
    );
    user.run(&["context", "use", "zzz"])
        .exits(1)
        .says("unknown context \"zzz\"");
    user.run(&["--context", "zzz", "hosts"])
        .exits(1)
        .says("unknown context \"zzz\"");
    let removed = user.run(&["context", "rm", "a", "-o", "json"]).ok();
    assert_eq!(
        removed.json(),
        serde_json::json!({"id": "a", "action": "remove"})
    );
    user.run(&["hosts"])
        .exits(1)
        .says("no orchestrator selected");
    user.run(&["--context", "b", "context", "current"]).ok();
}

#[test]
fn a_token_may_be_in_a_file_that_no_error_repeats() {
    let server = orchestrator();
    let user = User::new();
    user.write("token", "good\n");
    let connect = |file: &str| {
        let args = ["connect", &server.url(), "--token-file", file];
        args.map(str::to_owned)
    };
    let run = |file: &str| user.run(&connect(file).each_ref().map(String::as_str));
    run("token").ok();
    assert!(user.config().contains("token: good\n"), "{}", user.config());
    let args = connect("-");
    user.run_with_input(&args.each_ref().map(String::as_str), "good")
        .ok();

    let long = "hush".repeat(5000);
    for (content, says) in [
        ("", "holds no token"),
        ("hush hush\n", "holds no token"),
        (&long, "holds no token"),
    ] {
        user.write("bad", content);
        let refused = run("bad").exits(1).says("bad").says(says);
        assert!(!refused.stderr.contains("hush"), "{}", refused.stderr);
    }
    run("nowhere")
        .exits(1)
        .says("could not read the token from nowhere");
    let both = [
        "connect",
        &server.url(),
        "--token",
        "good",
        "--token-file",
        "token",
    ];
    user.run(&both).exits(1).says("--token-file");

    let agent = Fake::start(|seen| {
        (seen.line == "POST /v1/hosts").then(|| json(201, &crate::fake::host("a", &[])))
    });
    let user = User::connected(&agent.url(), "tok");
    user.write("agent-token", "agents-own\n");
    user.register("--token-file", "agent-token").ok();
    let sent = agent.seen().pop().unwrap().body;
    assert!(sent.contains("agents-own"), "{sent}");
}
