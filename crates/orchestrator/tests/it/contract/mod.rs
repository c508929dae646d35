//! What holds on every route: layers and their order, paths and methods, request ids,
//! pages. The tables come from the OpenAPI document, so that a new route is in them.

mod environments;
mod hosts;
mod keys;
mod requests;
mod snapshots;

use std::{collections::BTreeMap, net::SocketAddr};

use fuse_control::Control;
use fuse_orchestrator::{AddressBlocks, Auth, openapi::document};
use fuse_store::{AuditFilter, Page};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{MASTER, Options, Orchestrator};

/// Methods by path, both as mounted; ids filled in.
fn paths() -> BTreeMap<String, Vec<String>> {
    let document = document();
    let mut paths = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys();
        paths.insert(filled(path), methods.map(|m| m.to_uppercase()).collect());
    }
    paths
}

pub(crate) fn filled(path: &str) -> String {
    let parts = path
        .split('/')
        .map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

fn bare(fuse: &Orchestrator, method: &str, path: &str) -> reqwest::RequestBuilder {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    crate::support::http_client().request(method, format!("{}{path}", fuse.base))
}

/// Sends these bytes on a connection of their own and reads the whole answer.
async fn raw(fuse: &Orchestrator, request: &str) -> String {
    let address: SocketAddr = fuse.base.trim_start_matches("http://").parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn audited(control: &Control, kind: &str) -> Vec<(String, Value)> {
    let filter = AuditFilter {
        kind: Some(kind.to_owned()),
        ..AuditFilter::default()
    };
    let page = Page {
        after: None,
        limit: 200,
    };
    let entries = control.audit_list(&filter, &page).await.unwrap().items;
    entries
        .into_iter()
        .map(|entry| {
            assert_eq!(entry.entity_type, "api");
            (entry.entity_id, Value::Object(entry.payload))
        })
        .collect()
}

/// The same, once there are as many: they are written behind the answer.
async fn audited_times(control: &Control, kind: &str, count: usize) -> Vec<(String, Value)> {
    let waited = async {
        loop {
            let entries = audited(control, kind).await;
            if entries.len() == count {
                return entries;
            }
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(20), waited).await;
    waited.expect("an audit event for each")
}

#[tokio::test]
async fn the_allowlist_comes_before_routes_credentials_and_bodies() {
    let fuse = Orchestrator::with(Options {
        allowlist: AddressBlocks::parse("192.0.2.0/24").unwrap(),
        ..Options::default()
    })
    .await;
    let mut refused = 0;
    for (path, methods) in paths() {
        for method in methods {
            let is_outer = [
                "/health",
                "/ready",
                "/metrics",
                "/v1/version",
                "/openapi.json",
            ]
            .contains(&path.as_str());
            let answer = Orchestrator::send(bare(&fuse, &method, &path)).await;
            if is_outer {
                assert_ne!(answer.status, 403, "{path}");
                continue;
            }
            refused += 1;
            answer.is_error(403, "forbidden", "source address not in allowlist");
            assert!(answer.header("x-request-id").starts_with("req_"), "{path}");
            assert_eq!(answer.header("server"), "fuse-orchestrator/dev", "{path}");
        }
    }
    // Nor is it told which paths and methods exist, or what is too large.
    for (method, path) in [
        ("GET", "/v1/nope"),
        ("PATCH", "/v1/environments"),
        ("GET", "/"),
    ] {
        refused += 1;
        let request = bare(&fuse, method, path).header("X-Request-ID", "mine");
        let answer = Orchestrator::send(request).await;
        answer.is_error(403, "forbidden", "source address not in allowlist");
        assert_eq!(
            (answer.header("allow"), answer.header("x-request-id")),
            ("", "mine")
        );
    }
    let entries = audited_times(&fuse.control, "ip.rejected", refused).await;
    let mine = json!({"method": "GET", "path": "/v1/nope", "request_id": "mine"});
    assert!(
        entries
            .iter()
            .any(|(peer, payload)| { peer.starts_with("127.0.0.1") && *payload == mine })
    );
    fuse.stop().await;
}

/// Keys without a master token: nobody can log in, and that somebody tried is known.
#[tokio::test]
async fn a_login_without_a_master_token_is_refused_and_audited() {
    let dir = tempfile::TempDir::new().unwrap();
    let fuse = Orchestrator::with(Options {
        auth: Auth::without_master(),
        ..Options::file(dir.path())
    })
    .await;
    let login = bare(&fuse, "POST", "/login").json(&json!({"token": "t"}));
    let answer = Orchestrator::send(login).await;
    let message = "login needs the master token and none is configured: set ORCH_AUTH_TOKEN";
    answer.is_error(401, "unauthorized", message);
    let (_, payload) = audited_times(&fuse.control, "auth.failed", 1)
        .await
        .remove(0);
    assert_eq!(
        (&payload["method"], &payload["path"]),
        (&json!("POST"), &json!("/login"))
    );
    fuse.stop().await;
}

/// Behind a trusted proxy it is the client that is let in or not, that is audited, and that guesses at the
/// login; from anybody else its header is nothing.
#[tokio::test]
async fn a_trusted_proxy_says_whom_it_speaks_for() {
    let blocks = |text| AddressBlocks::parse(text).unwrap();
    for (proxies, forwarded, source) in [
        ("127.0.0.0/8", "203.0.113.9", Some("203.0.113.9")),
        ("127.0.0.0/8", "192.0.2.1, 203.0.113.9", Some("203.0.113.9")),
        ("127.0.0.0/8", "203.0.113.9, 192.0.2.1", None),
        ("", "203.0.113.9", None),
        ("10.0.0.0/8", "203.0.113.9", None),
    ] {
        let fuse = Orchestrator::with(Options {
            allowlist: blocks("203.0.113.0/24"),
            proxies: blocks(proxies),
            ..Options::default()
        })
        .await;
        let ask = |method, path: &str| {
            bare(&fuse, method, path)
                .header("X-Forwarded-For", forwarded)
                .json(&json!({"token": "guess"}))
        };
        let answer = Orchestrator::send(ask("GET", "/v1/hosts")).await;
        let case = format!("{proxies} {forwarded}");
        assert_eq!(
            answer.status,
            if source.is_some() { 401 } else { 403 },
            "{case}"
        );
        if let Some(source) = source {
            for _ in 0..10 {
                Orchestrator::send(ask("POST", "/login")).await.is(401);
            }
            Orchestrator::send(ask("POST", "/login")).await.is(429);
            let other = ask("POST", "/login").header("X-Forwarded-For", "203.0.113.10");
            Orchestrator::send(other).await.is(401);
            let entries = audited_times(&fuse.control, "auth.failed", 12).await;
            let of_source = entries.iter().filter(|(peer, _)| peer == source);
            assert_eq!(of_source.count(), 11, "{entries:?}");
        }
        fuse.stop().await;
    }
}

/// The kernel names an IPv4 peer of a socket of both families by an IPv6 address.
#[tokio::test]
async fn peers_of_ipv4_are_that_on_a_socket_of_both_families() {
    for (list, is_let_in) in [
        ("127.0.0.0/8", true),
        ("::ffff:127.0.0.0/104", true),
        ("::/0", false),
    ] {
        let fuse = Orchestrator::with(Options {
            allowlist: AddressBlocks::parse(list).unwrap(),
            listen: ":0",
            ..Options::default()
        })
        .await;
        let answer = Orchestrator::send(bare(&fuse, "GET", "/v1/hosts")).await;
        assert_eq!(answer.status, if is_let_in { 401 } else { 403 }, "{list}");
        let kind = if is_let_in {
            "auth.failed"
        } else {
            "ip.rejected"
        };
        let (peer, _) = audited_times(&fuse.control, kind, 1).await.remove(0);
        assert!(peer.starts_with("127.0.0.1:"), "{peer}");
        fuse.stop().await;
    }
}

#[tokio::test]
async fn what_has_no_route_needs_no_credential_and_what_has_one_answers_405() {
    let fuse = Orchestrator::start().await;
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/environments/",
        "/v1/environments/x/",
        "/v1/environments/x/nope",
        "/v1/hosts/x/y",
        "/V1/environments",
        "/health/",
        "/login/",
        "/v2/environments",
    ] {
        for method in ["GET", "POST", "DELETE", "PATCH"] {
            let answer = Orchestrator::send(bare(&fuse, method, path)).await;
            let message = format!("no such route: {method} {path}");
            answer.is_error(404, "route_not_found", &message);
            assert_eq!(answer.header("allow"), "", "{path}");
        }
    }
    for (path, methods) in paths() {
        // Without a durable store keys have no route; the authorisation table has that.
        if path.starts_with("/v1/api-keys") {
            continue;
        }
        let mut allowed = methods.clone();
        if methods.iter().any(|method| method == "GET") {
            allowed.push("HEAD".to_owned());
        }
        allowed.sort();
        for method in [
            "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW",
        ] {
            if methods.iter().any(|mounted| mounted == method) {
                continue;
            }
            let answer = Orchestrator::send(bare(&fuse, method, &path)).await;
            let message = format!("no such route: {method} {path}");
            answer.is_error(405, "route_not_found", &message);
            let mut named: Vec<&str> = answer.header("allow").split(',').collect();
            named.sort_unstable();
            assert_eq!(named, allowed, "{method} {path}");
        }
    }
    fuse.stop().await;
}

#[tokio::test]
async fn odd_request_targets_are_answered() {
    let fuse = Orchestrator::start().await;
    let tail = format!(
        "HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {MASTER}\r\n\r\n"
    );
    for (target, status) in [
        ("OPTIONS *", "404 Not Found"),
        ("GET http://x/v1/environments", "200 OK"),
        ("GET /v1/./environments", "404 Not Found"),
        ("GET /v1/environments/../hosts", "404 Not Found"),
        ("GET //v1/environments", "404 Not Found"),
        ("GET /v1/environments/%00", "404 Not Found"),
        ("GET /v1/environments/%ff", "404 Not Found"),
        ("GET /v1/environments/a%2Fb", "404 Not Found"),
        ("GET /v1/environments?cursor=%ff", "400 Bad Request"),
        ("GET /v1/environments?limit=%00", "200 OK"),
        ("GET /v1/environments?&&=&limit=1&limit=x", "200 OK"),
        ("HEAD /v1/environments", "200 OK"),
        ("HEAD /v1/environments/x", "404 Not Found"),
    ] {
        let answer = raw(&fuse, &format!("{target} {tail}")).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{target}: {answer}"
        );
    }
    let answer = raw(&fuse, &format!("CONNECT x:443 {tail}")).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    fuse.stop().await;
}

#[tokio::test]
async fn ids_in_paths_are_decoded_once() {
    let fuse = Orchestrator::start().await;
    for (path, id) in [
        ("/v1/environments/a%2Fb", "a/b"),
        ("/v1/environments/a%252Fb", "a%2Fb"),
        ("/v1/environments/a+b", "a+b"),
        ("/v1/environments/%C3%A4", "ä"),
    ] {
        fuse.get(path)
            .await
            .is_error(404, "not_found", &format!("vm {id} not found"));
    }
    fuse.stop().await;
}

#[tokio::test]
async fn credentials_come_before_bodies_and_the_master_before_actions() {
    let dir = tempfile::tempdir().unwrap();
    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    let made = fuse.post_raw("/v1/api-keys", "").await.is(201);
    let key = made["key"].as_str().unwrap();
    let too_large = "x".repeat(2 << 20);
    for body in ["{", "", &too_large] {
        let post = |path: &str, token: &str| {
            let request = bare(&fuse, "POST", path)
                .bearer_auth(token)
                .body(body.to_owned());
            // A refusal may cut a body off that is still being sent.
            async {
                request
                    .send()
                    .await
                    .map(|response| response.status().as_u16())
            }
        };
        for path in ["/v1/environments", "/v1/hosts", "/v1/hosts/x?action=dance"] {
            if let Ok(status) = post(path, "wrong").await {
                assert_eq!(status, 401, "{path}");
            }
        }
        for path in [
            "/v1/hosts",
            "/v1/hosts/x",
            "/v1/hosts/x?action=dance",
            "/v1/environments/x?action=exec",
        ] {
            if let Ok(status) = post(path, key).await {
                assert_eq!(status, 403, "{path}");
            }
        }
    }
    let failed = audited(&fuse.control, "auth.failed").await;
    assert!(
        failed
            .iter()
            .any(|(_, payload)| payload["path"] == "/v1/hosts/x"),
        "{failed:?}"
    );
    fuse.stop().await;
}

#[tokio::test]
async fn request_ids_are_kept_or_made() {
    let fuse = Orchestrator::start().await;
    let longest = "a".repeat(128);
    let over = "a".repeat(129);
    for (path, token) in [
        ("/v1/environments", MASTER),
        ("/v1/environments", "wrong"),
        ("/v1/environments/x/events", MASTER),
        ("/v1/nope", MASTER),
        ("/logout", MASTER),
    ] {
        for (sent, kept) in [
            ("a", true),
            ("A-b_9", true),
            (longest.as_str(), true),
            (over.as_str(), false),
            ("", false),
            ("a b", false),
            ("a.b", false),
            ("ä", false),
        ] {
            let request = bare(&fuse, "GET", path)
                .bearer_auth(token)
                .header("X-Request-ID", sent);
            let answer = Orchestrator::send(request).await;
            let id = answer.header("x-request-id");
            if kept {
                assert_eq!(id, sent, "{path}");
            } else {
                let hex = id.strip_prefix("req_").unwrap();
                assert!(
                    hex.len() == 32 && hex.bytes().all(|b| b"0123456789abcdef".contains(&b)),
                    "{id}"
                );
            }
            assert_eq!(answer.header("server"), "fuse-orchestrator/dev", "{path}");
        }
    }
    let failed = audited(&fuse.control, "auth.failed").await;
    assert!(
        failed
            .iter()
            .any(|(_, payload)| payload["request_id"] == "A-b_9"),
        "{failed:?}"
    );
    fuse.stop().await;
}

#[tokio::test]
async fn page_sizes_are_clamped() {
    let fuse = Orchestrator::start().await;
    for n in 0..203 {
        fuse.create(&json!({"task_id": format!("t{n:03}")}))
            .await
            .is(201);
    }
    for (query, count) in [
        ("", 50),
        ("limit=", 50),
        ("limit=0", 50),
        ("limit=-7", 50),
        ("limit=ten", 50),
        ("limit=1.5", 50),
        ("limit=1", 1),
        ("limit=200", 200),
        ("limit=201", 200),
        ("limit=99999999999", 200),
        ("limit=3&limit=9", 3),
    ] {
        let page = fuse.get(&format!("/v1/environments?{query}")).await.is(200);
        assert_eq!(
            page["environments"].as_array().unwrap().len(),
            count,
            "{query}"
        );
        assert!(page["next_cursor"].is_string(), "{query}");
    }
    let first = fuse.get("/v1/environments?limit=200").await.is(200);
    let cursor = first["next_cursor"].as_str().unwrap();
    assert!(
        cursor
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)),
        "{cursor}"
    );
    let last = fuse
        .get(&format!("/v1/environments?limit=200&cursor={cursor}"))
        .await
        .is(200);
    assert_eq!(last["environments"].as_array().unwrap().len(), 3);
    assert!(last.get("next_cursor").is_none(), "{last}");
    for list in ["environments", "hosts", "audit", "dead-letters"] {
        for cursor in ["%21", "e30", "W10", "eyJpZCI6MX0", "bm9wZQ"] {
            let path = format!("/v1/{list}?cursor={cursor}");
            fuse.get(&path)
                .await
                .is_error(400, "invalid_argument", "invalid pagination cursor");
        }
    }
    fuse.stop().await;
}
