//! The contract's rules at the edge, over real connections.

use crate::testing::{Served, in_netns, status, text};

#[test]
fn every_route_asks_for_the_token_first() {
    in_netns(|| async {
        let served = Served::start(&[]).await;
        for path in ["/", "/healthz", "/v1/capacity", "/v1/vm", "/nowhere"] {
            for header in [
                "",
                "Authorization: Bearer wrong\r\n",
                "Authorization: t0ken\r\n",
            ] {
                let request =
                    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n");
                let answer = served.raw(&request).await;
                assert_eq!(
                    (status(&answer), text(&answer)),
                    ("401", "unauthorized"),
                    "{path}"
                );
                assert!(answer.contains("server: fc-agent/0.1"), "{answer}");
                assert!(answer.contains("text/plain"), "{answer}");
                assert!(answer.contains("content-length: 12"), "{answer}");
            }
        }
        let health = served.send("GET", "/healthz", "", "").await;
        assert_eq!(text(&health), r#"{"ok":true,"app_name":"fc-agent"}"#);
        let capacity = served.send("GET", "/v1/capacity", "", "").await;
        assert!(
            text(&capacity).contains(r#""gpus":0,"gpu_devices":[]"#),
            "{capacity}"
        );
        served.stop().await;
    });
}

#[test]
fn callers_of_other_generations_are_told_who_is_behind() {
    in_netns(|| async {
        let served = Served::start(&[]).await;
        for (stated, want, says) in [
            ("", "200", ""),
            ("1-1", "200", ""),
            ("1-7", "200", ""),
            ("2-3", "426", "update this agent, which is behind"),
            ("0-0", "426", "update the caller, which is behind"),
        ] {
            let header = match stated {
                "" => String::new(),
                stated => format!("fuse-generations: {stated}\r\n"),
            };
            let answer = served.send("GET", "/healthz", &header, "").await;
            assert_eq!(status(&answer), want, "{stated}: {answer}");
            assert!(text(&answer).contains(says), "{stated}: {answer}");
            assert!(answer.contains("fuse-generations: 1-1\r\n"), "{answer}");
        }
        served.stop().await;
    });
}

#[test]
fn unknown_routes_and_methods() {
    in_netns(|| async {
        let served = Served::start(&[]).await;
        for (method, path, want) in [
            ("GET", "/v2", "404"),
            ("POST", "/healthz", "404"),
            ("PUT", "/v1/vm", "404"),
            ("DELETE", "/v1/vm", "404"),
            ("POST", "/v1/vm/a/snapshot", "404"),
            ("PATCH", "/v1/vm", "501"),
            ("OPTIONS", "/nowhere", "501"),
        ] {
            let answer = served.send(method, path, "", "").await;
            assert_eq!(status(&answer), want, "{method} {path}: {answer}");
        }
        assert_eq!(text(&served.send("GET", "/v2", "", "").await), "not found");
        served.stop().await;
    });
}

#[test]
fn bodies_follow_the_rules() {
    in_netns(|| async {
        let served = Served::start(&[("FC_AGENT_MAX_BODY_BYTES", "2048")]).await;
        let exec = "/v1/vm/absent/exec";
        let long = "x".repeat(3000);
        for (headers, body, want, says) in [
            (
                "Transfer-Encoding: Chunked\r\n",
                "0\r\n\r\n",
                "411",
                "Content-Length",
            ),
            (
                "Content-Length: 3000\r\n",
                long.as_str(),
                "413",
                "larger than 2048",
            ),
            (
                "Content-Length: 2\r\n",
                "[]",
                "400",
                "must be a JSON object",
            ),
            ("Content-Length: 1\r\n", "{", "400", "not valid JSON"),
            ("", "", "400", "cmd"),
            ("Content-Length: 2\r\n", "{}", "400", "cmd"),
            ("Content-Length: 10\r\n", r#"{"cmd":[]}"#, "400", "cmd"),
            (
                "Content-Length: 11\r\n",
                r#"{"cmd":"x"}"#,
                "400",
                "expected a sequence",
            ),
            (
                "Content-Length: 13\r\n",
                r#"{"cmd":["x"]}"#,
                "404",
                "vm not found",
            ),
        ] {
            let answer = served.send("POST", exec, headers, body).await;
            assert_eq!(status(&answer), want, "{body}: {answer}");
            assert!(text(&answer).contains(says), "{body}: {answer}");
        }
        let bad = served
            .send("POST", exec, "Content-Length: -1\r\n", "")
            .await;
        assert_eq!(status(&bad), "400", "{bad}");
        served.stop().await;
    });
}

#[test]
fn a_body_that_stops_is_refused() {
    in_netns(|| async {
        let served = Served::start(&[("FC_AGENT_REQUEST_TIMEOUT", "1")]).await;
        let headers = "Content-Length: 50\r\n";
        let answer = served.send("POST", "/v1/vm", headers, r#"{"name":"#).await;
        assert_eq!(status(&answer), "400", "{answer}");
        assert!(text(&answer).contains("declared length"), "{answer}");
        served.stop().await;
    });
}

#[test]
fn a_vm_over_http() {
    in_netns(|| async {
        let served = Served::start(&[]).await;
        let made = served
            .post("/v1/vm", r#"{"name":"My VM","owner":"f"}"#)
            .await;
        assert_eq!(status(&made), "200", "{made}");
        assert!(
            text(&made).starts_with(r#"{"vm_id":"my-vm","url":"127.0.0.1:19551""#),
            "{made}"
        );
        let again = served.post("/v1/vm", r#"{"name":"my-vm"}"#).await;
        assert_eq!(status(&again), "409", "{again}");
        let list = served.send("GET", "/v1/vm?prefix=My%20", "", "").await;
        assert!(text(&list).contains(r#""state":"running""#), "{list}");
        let none = served.send("GET", "/v1/vm?prefix=other", "", "").await;
        assert!(text(&none).starts_with(r#"{"vms":[]"#), "{none}");
        let missing = served.post("/v1/vm/no/restore", "{}").await;
        assert_eq!(status(&missing), "400", "{missing}");
        assert_eq!(text(&missing), "missing field: snapshot_id");
        let unknown = served.send("DELETE", "/v1/snapshots/snap-0", "", "").await;
        assert_eq!(
            (status(&unknown), text(&unknown)),
            ("404", "snapshot not found")
        );
        let plain = served
            .send("GET", "/v1/vm/my-vm/attach?tty=1", "", "")
            .await;
        assert_eq!(status(&plain), "400", "{plain}");
        // The id is sanitised like the name.
        let exec = served
            .post("/v1/vm/My%20VM/exec", r#"{"cmd":["echo","hi"]}"#)
            .await;
        assert!(text(&exec).contains(r#""stdout":"ZWNobyBoaQ==""#), "{exec}");
        let upload = r#"{"files":[{"path":"/a","content_b64":"aGk="}]}"#;
        let upload = served.post("/v1/vm/my-vm/upload", upload).await;
        assert_eq!(text(&upload), r#"{"ok":true}"#);
        let bad = served.post("/v1/vm/my-vm/upload", r#"{"path":"/a"}"#).await;
        assert_eq!(
            (status(&bad), text(&bad)),
            ("400", "missing field: content_b64")
        );
        let bad = served
            .post("/v1/vm/absent/start-agent", r#"{"manifest_path":"/m"}"#)
            .await;
        assert_eq!(
            (status(&bad), text(&bad)),
            ("400", "missing field: secrets_path")
        );
        let start = r#"{"manifest_path":"/m","secrets_path":"/s","expose":[{"port":80}]}"#;
        let start = served.post("/v1/vm/my-vm/start-agent", start).await;
        assert!(
            text(&start).contains(r#""endpoints":[{"as":"","url":"127.0.0.1:20000""#),
            "{start}"
        );
        let figures = served.send("GET", "/metrics", "", "").await;
        assert_eq!(status(&figures), "200", "{figures}");
        for line in [
            "fuse_agent_vms{state=\"running\"} 1",
            "fuse_agent_creates_total{outcome=\"ok\"} 1",
            "fuse_agent_create_seconds_count{part=\"total\"} 1",
            "process_resident_memory_bytes ",
        ] {
            assert!(figures.contains(line), "{line}\n{figures}");
        }
        let gone = served.send("DELETE", "/v1/vm/my-vm", "", "").await;
        assert_eq!((status(&gone), text(&gone)), ("204", ""));
        let gone = served.send("DELETE", "/v1/vm/my-vm", "", "").await;
        assert_eq!((status(&gone), text(&gone)), ("404", "vm not found"));
        served.stop().await;
    });
}

#[test]
fn a_client_that_leaves_ends_its_command() {
    in_netns(|| async {
        let served = Served::start(&[]).await;
        served.post("/v1/vm", r#"{"name":"vm"}"#).await;
        let command = served.post("/v1/vm/vm/exec", r#"{"cmd":["forever"]}"#);
        tokio::select! {
            answer = command => panic!("{answer}"),
            () = until(|| served.registry.leases("vm") == 1) => {}
        }
        until(|| served.registry.leases("vm") == 0).await;
        let gone = served.send("DELETE", "/v1/vm/vm", "", "").await;
        assert_eq!(status(&gone), "204");
        served.stop().await;
    });
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}
