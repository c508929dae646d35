//! What the contract says differently of hosts that give devices to their guests.

use crate::config::QEMU;
use crate::testing::{Served, in_netns};

#[test]
fn the_snapshot_family_is_refused_whether_or_not_there_is_a_vm() {
    in_netns(|| async {
        let served = Served::of(QEMU, &[]).await;
        let body = r#"{"snapshot_id":"snap-1"}"#;
        for (method, path, body) in [
            ("POST", "/v1/vm/none/snapshot", "{}"),
            ("GET", "/v1/vm/none/snapshots", ""),
            ("POST", "/v1/vm/none/restore", body),
            ("POST", "/v1/vm/none/fork", body),
            ("DELETE", "/v1/snapshots/snap-1", ""),
            ("DELETE", "/v1/vm/none/snapshots/snap-1", ""),
        ] {
            let length = format!("Content-Length: {}\r\n", body.len());
            let answer = served.send(method, path, &length, body).await;
            assert!(
                answer.starts_with("HTTP/1.1 501 "),
                "{method} {path}: {answer}"
            );
            assert!(answer.contains("qemu-agent has no snapshots"), "{answer}");
            assert!(answer.contains("server: qemu-agent/0.1"), "{answer}");
        }
        for path in ["/v1/vm/none/restore", "/v1/vm/none/fork"] {
            let answer = served.post(path, "{}").await;
            assert!(answer.contains("missing field: snapshot_id"), "{answer}");
        }
        served.stop().await;
    });
}

#[test]
fn artifacts_are_as_unknown_as_any_other_route() {
    in_netns(|| async {
        let served = Served::of(QEMU, &[]).await;
        let digest = "a".repeat(64);
        let pull = r#"{"peer_url":"http://h:1","grant":"g"}"#;
        let date = |line: &&str| !line.to_lowercase().starts_with("date:");
        for (method, path, body) in [
            ("GET", format!("/v1/artifacts/{digest}"), ""),
            ("POST", format!("/v1/artifacts/{digest}/pull"), pull),
            ("GET", "/v1/artifacts/pulls/p1".to_owned(), ""),
            ("PUT", format!("/v1/artifacts/{digest}"), "{}"),
        ] {
            let length = format!("Content-Length: {}\r\n", body.len());
            let answer = served.send(method, &path, &length, body).await;
            assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
            assert!(answer.ends_with("\r\n\r\nnot found"), "{path}: {answer}");
            let unknown = served.send(method, "/v1/frob", &length, body).await;
            let lines = |text: &str| {
                text.lines()
                    .filter(date)
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert_eq!(lines(&answer), lines(&unknown));
        }
        // Without the token nothing is said of it either: no grant opens it.
        let grant = format!("X-Fuse-Artifact-Grant: v1.{digest}.1.00.00\r\n");
        let path = format!("/v1/artifacts/{digest}");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{grant}\r\n");
        let answer = served.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        served.stop().await;
    });
}

#[test]
fn capacity_has_the_inventory_and_a_wrong_one_is_said() {
    in_netns(|| async {
        let served = Served::of(QEMU, &[]).await;
        let file = served.bench.dir.path().join("vfio-inventory.txt");
        let line = "2 A100 65:00.0 65:00.1 | uuid=GPU-1;model=NVIDIA A100;mig_mode=Disabled\n";
        std::fs::write(&file, line).unwrap();
        let answer = served.send("GET", "/v1/capacity", "", "").await;
        for part in [
            r#""gpus":2,"gpu_kind":"a100","gpu_devices":[{"index":0,"uuid":"GPU-1""#,
            r#""pci_bus_id":"0000:65:00.0""#,
            r#""mig_capable":true"#,
        ] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
        assert!(
            !answer.contains("mig_instances") && !answer.contains("mig_profiles"),
            "{answer}"
        );
        std::fs::write(&file, "2 A100\n").unwrap();
        let answer = served.send("GET", "/v1/capacity", "", "").await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert!(
            answer.contains("vfio-inventory.txt:1: expected <count>"),
            "{answer}"
        );
        served.stop().await;
    });
}

#[test]
fn what_a_create_cannot_have_is_said_with_the_device() {
    in_netns(|| async {
        let served = Served::of(QEMU, &[]).await;
        for (body, status, part) in [
            (
                r#"{"gpus":1}"#,
                409,
                "not enough free GPUs: 1 asked for, 0 free",
            ),
            (
                r#"{"gpu_uuids":["GPU-9"]}"#,
                409,
                "GPU GPU-9 is not in this host's inventory",
            ),
            (
                r#"{"gpus":1,"gpu_profile":"1g.10gb","gpu_uuids":["GPU-9"]}"#,
                400,
                "whole GPUs",
            ),
            (
                r#"{"gpus":1,"gpu_profile":"1g.10gb"}"#,
                409,
                "not enough free 1g.10gb instances",
            ),
            (r#"{"gpus":-1}"#, 400, ""),
        ] {
            let answer = served.post("/v1/vm", body).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{body}: {answer}"
            );
            assert!(answer.contains(part), "{answer}");
        }
        served.stop().await;
        // The other agent has none at all.
        let served = Served::start(&[]).await;
        let answer = served.post("/v1/vm", r#"{"gpus":1}"#).await;
        assert!(
            answer.contains("409") && answer.contains("this host has none"),
            "{answer}"
        );
        served.stop().await;
    });
}
