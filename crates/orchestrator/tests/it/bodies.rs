//! Request bodies: bounded, JSON, required or not, on every route that reads one. The
//! routes come from the OpenAPI document, so that a new one is among them.

use fuse_orchestrator::openapi::document;
use reqwest::Method;
use serde_json::Value;

use crate::{
    contract::filled,
    support::{Answer, Options, Orchestrator},
};

/// A route that reads a body: path, limit, whether it may be left out.
struct WithBody {
    path: String,
    limit: usize,
    required: bool,
}

fn routes_with_bodies() -> Vec<WithBody> {
    let document = document();
    let mut routes = Vec::new();
    let mut add = |path: String, body: &Value| {
        if body.is_null() {
            return;
        }
        let digits = body["description"]
            .as_str()
            .unwrap()
            .split(' ')
            .nth(2)
            .unwrap();
        routes.push(WithBody {
            path,
            limit: digits.parse().unwrap(),
            required: body["required"] == true,
        });
    };
    for (path, item) in document["paths"].as_object().unwrap() {
        let operation = &item["post"];
        match operation["x-actions"].as_array() {
            None => add(filled(path), &operation["requestBody"]),
            Some(actions) => {
                for action in actions {
                    let name = action["action"].as_str().unwrap();
                    add(
                        format!("{}?action={name}", filled(path)),
                        &action["requestBody"],
                    );
                }
            }
        }
    }
    assert!(routes.len() >= 4);
    routes
}

fn chunked(bytes: &[u8]) -> reqwest::Body {
    let chunks: Vec<_> = bytes
        .chunks(16_384)
        .map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec()))
        .collect();
    reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))
}

#[tokio::test]
async fn bodies_are_bounded_on_every_route_declared_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    for route in routes_with_bodies() {
        let message = match route.path.ends_with("/computer") {
            true => "computer action body too large".to_owned(),
            false => format!(
                "request body exceeds the {} byte limit for this endpoint",
                route.limit
            ),
        };
        let over = format!("{{\"pad\":\"{}\"}}", "x".repeat(route.limit)).into_bytes();
        let answer = fuse.post_raw(&route.path, over.clone()).await;
        answer.is_error(413, "payload_too_large", &message);
        assert!(answer.header("x-request-id").starts_with("req_"));
        let answer = fuse.post_raw(&route.path, chunked(&over)).await;
        answer.is_error(413, "payload_too_large", &message);
        // At the limit it is read, and then found wanting for another reason.
        let mut at = br#"{"pad":""#.to_vec();
        at.resize(route.limit - 2, b'x');
        at.extend(br#""}"#);
        for body in [at.clone().into(), chunked(&at)] {
            let answer = fuse.post_raw(&route.path, body).await;
            assert_ne!(answer.status, 413, "{}: {}", route.path, answer.text);
        }
    }
    fuse.stop().await;
}

#[tokio::test]
async fn bodies_are_json_objects_whatever_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    let is_refused = |answer: &Answer, path: &str, body: &str| {
        assert_eq!(
            (answer.status, answer.code()),
            (400, "invalid_argument"),
            "{path} {body}"
        );
        assert!(
            answer.message().starts_with("invalid JSON body: "),
            "{path} {body}: {}",
            answer.text
        );
    };
    for route in routes_with_bodies() {
        for body in [
            "{",
            "[]",
            "3",
            "\"x\"",
            "nonsense",
            "{\"a\":}",
            "\u{feff}{}",
            "{\"a\":1,}",
        ] {
            let answer = fuse.post_raw(&route.path, body).await;
            is_refused(&answer, &route.path, body);
            let answer = fuse.post_raw(&route.path, chunked(body.as_bytes())).await;
            is_refused(&answer, &route.path, body);
        }
        for body in ["", " \n", "\t"] {
            for bytes in [body.to_owned().into(), chunked(body.as_bytes())] {
                let answer = fuse.post_raw(&route.path, bytes).await;
                if route.required {
                    is_refused(&answer, &route.path, body);
                } else {
                    assert!(!answer.message().contains("JSON"), "{}", answer.text);
                }
            }
        }
    }
    // The type is not looked at, unknown fields pass, and what follows is not read.
    for (n, (kind, tail)) in [
        ("text/plain", ""),
        ("application/x-www-form-urlencoded", " trailing"),
        ("nonsense", "{"),
    ]
    .into_iter()
    .enumerate()
    {
        let request = fuse
            .request(Method::POST, "/v1/environments")
            .header("Content-Type", kind)
            .body(format!(
                r#"{{"task_id":"t{n}","spec":null,"unknown":[1]}}{tail}"#
            ));
        Orchestrator::send(request).await.is(201);
    }
    fuse.stop().await;
}
