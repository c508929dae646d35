//! Requests, errors, bounds.

use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use fuse_client::api::{
    CreateEnvironment, CreateSnapshot, ErrorCode, ExecRequest, ListEnvironments, ListSnapshots,
    MigrateEnvironment, PageQuery,
};
use fuse_client::{BaseUrl, Client, Error, Options, Reason, Token};
use tokio::net::TcpListener;

use crate::server::{Server, environment, json};

const SNAPSHOT: &str = r#"{"id":"s","vm_id":"fuse-a","state":"creating","kind":"disk",
    "created_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}"#;

#[tokio::test]
async fn every_call_has_its_method_path_and_body() {
    let server = Server::start(|seen, _| match seen.line.as_str() {
        line if line.starts_with("GET /v1/hosts?") => json(200, r#"{"hosts":[]}"#),
        line if line.starts_with("GET /v1/environments?") => json(200, r#"{"environments":[]}"#),
        "POST /v1/environments/fuse-a?action=exec" => {
            json(200, r#"{"exit_code":3,"stdout":"o","stderr":"e"}"#)
        }
        "POST /v1/environments" => json(202, &environment("provisioning")),
        "DELETE /v1/environments/a%2Fb" => {
            Response::builder().status(204).body(Body::empty()).unwrap()
        }
        _ => json(200, &environment("running")),
    })
    .await;
    let client = server.client();

    let page = PageQuery {
        limit: Some("10".into()),
        cursor: Some("c d".into()),
    };
    client.hosts(&page).await.unwrap();
    let query = ListEnvironments {
        state: "running".into(),
        ..ListEnvironments::default()
    };
    client.environments(&query).await.unwrap();
    let request = CreateEnvironment {
        task_id: "a".into(),
        ..CreateEnvironment::default()
    };
    let created = client.create_in_background(&request).await.unwrap();
    assert!(created.in_progress);
    assert_eq!(created.environment.state, "provisioning");
    client.create(&request).await.unwrap();
    let exec = ExecRequest {
        cmd: vec!["true".into()],
        ..ExecRequest::default()
    };
    let result = client.exec("fuse-a", &exec).await.unwrap();
    assert_eq!(
        (
            result.exit_code,
            result.stdout.as_str(),
            result.stderr.as_str()
        ),
        (3, "o", "e")
    );
    client.destroy("a/b").await.unwrap();
    client.cordon_host("h1").await.unwrap();
    client.uncordon_host("h1").await.unwrap();
    client.remove_host("h1").await.unwrap();

    let seen = server.seen();
    let lines: Vec<_> = seen.iter().map(|seen| seen.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "GET /v1/hosts?limit=10&cursor=c+d",
            "GET /v1/environments?state=running",
            "POST /v1/environments",
            "POST /v1/environments",
            "POST /v1/environments/fuse-a?action=exec",
            "DELETE /v1/environments/a%2Fb",
            "POST /v1/hosts/h1?action=cordon",
            "POST /v1/hosts/h1?action=uncordon",
            "DELETE /v1/hosts/h1",
        ]
    );
    assert!(
        seen.iter()
            .all(|seen| seen.header("authorization") == "Bearer secret-token")
    );
    assert!(
        seen.iter()
            .all(|seen| seen.header("user-agent") == "test/1")
    );
    assert_eq!(seen[2].header("prefer"), "respond-async");
    assert_eq!(seen[3].header("prefer"), "");
    assert_eq!(seen[2].body, r#"{"task_id":"a","spec":{}}"#);
    assert_eq!(seen[4].body, r#"{"cmd":["true"]}"#);
}

#[tokio::test]
async fn calls_of_snapshots_and_moves() {
    let server = Server::start(|seen, _| match seen.line.as_str() {
        line if line.starts_with("GET /v1/snapshots?") => json(200, r#"{"snapshots":[]}"#),
        "POST /v1/environments/fuse-a/snapshots" => json(202, SNAPSHOT),
        line if line.starts_with("POST /v1/hosts/") => {
            Response::builder().status(204).body(Body::empty()).unwrap()
        }
        _ => json(200, &environment("running")),
    })
    .await;
    let client = server.client();
    client.drain_host("h1", "drain").await.unwrap();
    let nothing = CreateSnapshot::default();
    let begun = client.create_snapshot_in_background("fuse-a", &nothing);
    assert_eq!(begun.await.unwrap().state, "creating");
    let layers = ListSnapshots {
        layer_key: "k".into(),
        arch: "amd64".into(),
        ..ListSnapshots::default()
    };
    client.snapshots(&layers).await.unwrap();
    let target = MigrateEnvironment {
        target_host_id: "h2".into(),
        ..MigrateEnvironment::default()
    };
    client.migrate("fuse-a", &target).await.unwrap();

    let seen = server.seen();
    let lines: Vec<_> = seen.iter().map(|seen| seen.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "POST /v1/hosts/h1?action=drain&evict=drain",
            "POST /v1/environments/fuse-a/snapshots",
            "GET /v1/snapshots?layer_key=k&arch=amd64",
            "POST /v1/environments/fuse-a?action=migrate",
        ]
    );
    assert_eq!(seen[1].header("prefer"), "respond-async");
    assert_eq!(seen[3].body, r#"{"target_host_id":"h2"}"#);
}

#[tokio::test]
async fn a_prefix_of_the_base_url_is_kept() {
    let server = Server::start(|_, _| json(200, r#"{"status":"ok"}"#)).await;
    server.client_at("/fuse/v1", None).health().await.unwrap();
    assert_eq!(server.seen()[0].line, "GET /fuse/health");
    assert_eq!(server.seen()[0].header("authorization"), "");
}

#[tokio::test]
async fn an_error_answer_is_carried_whole() {
    let server = Server::start(|_, _| {
        json(
            409,
            r#"{"error":{"code":"conflict","message":"busy","details":{"vm_id":"fuse-a"}}}"#,
        )
    })
    .await;
    let error = server.client().environment("a").await.unwrap_err();
    let api = error.api().unwrap();
    assert_eq!((api.status, api.code), (409, Some(ErrorCode::Conflict)));
    assert_eq!(api.details["vm_id"], "fuse-a");
    assert_eq!(api.request_id.as_deref(), Some("req_42"));
    assert_eq!(error.to_string(), "busy");
}

#[tokio::test]
async fn redirects_are_refused() {
    let server = Server::start(|_, _| {
        Response::builder()
            .status(307)
            .header("location", "http://elsewhere/")
            .body(Body::empty())
            .unwrap()
    })
    .await;
    let error = server.client().environment("a").await.unwrap_err();
    assert!(
        matches!(&error, Error::Redirected { location, .. } if location == "http://elsewhere/")
    );
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_body_that_is_not_the_answer_says_so() {
    let server = Server::start(|_, _| json(200, "<html>")).await;
    let error = server.client().environment("a").await.unwrap_err();
    assert!(matches!(error, Error::Decode { .. }), "{error}");
}

#[tokio::test]
async fn reasons_of_no_answer() {
    let client = |url: &str| {
        let mut options = Options::new(BaseUrl::parse(url).unwrap(), None, "test/1");
        options.request_timeout = Duration::from_millis(200);
        options.retry_refused = false;
        Client::new(options).unwrap()
    };
    let reason = |error: Error| match error {
        Error::Transport { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let refused = client(&format!("http://{free}"))
        .health()
        .await
        .unwrap_err();
    assert_eq!(reason(refused), Reason::Refused);

    let unknown = client("http://no-such-host.invalid")
        .health()
        .await
        .unwrap_err();
    assert_eq!(reason(unknown), Reason::HostNotFound);

    // Accepts and stays silent.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    assert_eq!(
        reason(client(&url).health().await.unwrap_err()),
        Reason::TimedOut
    );

    // Accepts and hangs up.
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (outcome, ()) = tokio::join!(async { client(&url).health().await }, async {
        // The connection of the call that timed out above comes first.
        drop(silent.accept().await.unwrap());
        drop(silent.accept().await.unwrap());
    });
    assert_eq!(reason(outcome.unwrap_err()), Reason::Lost);
}

#[tokio::test]
async fn a_refused_connection_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let base = BaseUrl::parse(&format!("http://{address}")).unwrap();
    let client = Client::new(Options::new(base, None, "test/1")).unwrap();
    let request = CreateEnvironment {
        task_id: "a".into(),
        ..CreateEnvironment::default()
    };
    let error = client.create(&request).await.unwrap_err();
    let refused = matches!(
        error,
        Error::Transport {
            reason: Reason::Refused,
            ..
        }
    );
    assert!(refused, "{error:?}");

    // A server that comes up while a call is being tried again is found, also by a POST:
    // nothing of it was sent before.
    let late = async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let listener = TcpListener::bind(address).await.unwrap();
        let answer = || async { environment("running") };
        let app = axum::Router::new().fallback(answer);
        axum::serve(listener, app).await.unwrap();
    };
    tokio::select! {
        outcome = client.create(&request) => assert_eq!(outcome.unwrap().state, "running"),
        () = late => unreachable!("the server does not end"),
    }
}

#[tokio::test]
async fn a_lost_answer_is_not_asked_for_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let client = Client::new(Options::new(base, None, "test/1")).unwrap();
    let calls = async {
        for lost in [
            client.destroy("a").await.unwrap_err(),
            client.environment("a").await.map(drop).unwrap_err(),
        ] {
            let reason = Reason::Lost;
            assert!(
                matches!(&lost, Error::Transport { reason: r, .. } if *r == reason),
                "{lost:?}"
            );
        }
    };
    let server = async {
        let mut count = 0;
        loop {
            drop(listener.accept().await.unwrap());
            count += 1;
            assert!(count <= 2, "a call came again");
        }
    };
    tokio::select! {
        () = calls => {}
        () = server => {}
    }
}

#[tokio::test]
async fn whatever_answers_is_an_identity() {
    let orchestrator =
        Server::start(|_, _| json(200, r#"{"service":"fuse-orchestrator","version":"dev"}"#)).await;
    let identity = orchestrator.client().identity().await.unwrap();
    assert!(identity.is_orchestrator());
    assert_eq!(identity.version.as_deref(), Some("dev"));

    let agent = Server::start(|_, _| {
        Response::builder()
            .status(401)
            .header("server", "fc-agent/0.1")
            .body(Body::from("unauthorized"))
            .unwrap()
    })
    .await;
    let identity = agent.client().identity().await.unwrap();
    assert!(!identity.is_orchestrator());
    assert_eq!(identity.server.as_deref(), Some("fc-agent/0.1"));
}

#[test]
fn the_token_is_in_no_debug_output() {
    let base = BaseUrl::parse("http://127.0.0.1:1").unwrap();
    let options = Options::new(base, Some(Token::new("hunter2")), "test/1");
    assert!(!format!("{options:?}").contains("hunter2"));
    let client = Client::new(options).unwrap();
    assert!(!format!("{client:?}").contains("hunter2"));
}

#[test]
fn a_token_that_is_no_header_is_refused() {
    let base = BaseUrl::parse("http://127.0.0.1:1").unwrap();
    let error = Client::new(Options::new(base, Some(Token::new("a\nb")), "test/1")).unwrap_err();
    assert!(matches!(error, Error::InvalidToken));
}
