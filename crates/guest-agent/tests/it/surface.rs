//! The public surface as PID 1 runs it.

use fuse_wire_guest::Blob;
use fuse_wire_guest::control::{
    ErrorBody, SurfaceRequest, SurfaceStatus, UploadFile, UploadRequest, UploadResponse, path,
};

use crate::guest::{Guest, Vm};

fn request() -> SurfaceRequest {
    SurfaceRequest {
        vm_id: "vm-it".into(),
        listen: "0.0.0.0:9550".into(),
        manifest_path: "/fuse/manifest.json".into(),
        secrets_path: "/fuse/secrets.json".into(),
        auth_token_file: Some("/fuse/auth-token".into()),
        ..SurfaceRequest::default()
    }
}

async fn upload(guest: &Guest, files: &[(&str, &str)]) {
    let file = |(path, content): &(&str, &str)| UploadFile {
        path: (*path).to_owned(),
        mode: None,
        content_b64: Blob::from(content.as_bytes()),
    };
    let request = UploadRequest {
        files: files.iter().map(file).collect(),
    };
    let _: UploadResponse = guest.json("POST", path::FILES, &request).await;
}

async fn start_error(guest: &Guest, request: &SurfaceRequest) -> (u16, String) {
    let (code, body) = guest
        .call("POST", path::SURFACE, serde_json::to_vec(request).unwrap())
        .await;
    (
        code,
        serde_json::from_slice::<ErrorBody>(&body).unwrap().error,
    )
}

fn curl(token: &str) -> String {
    let auth = format!("-H 'Authorization: Bearer {token}'");
    format!("curl -s -w ' %{{http_code}}' {auth} localhost:9550/v1/info")
}

const FILES: [(&str, &str); 2] = [
    ("/fuse/manifest.json", "{}"),
    ("/fuse/secrets.json", r#"{"K":"hunter2"}"#),
];

#[tokio::test]
async fn the_surface_follows_its_credentials_and_comes_back_when_it_is_killed() {
    let Some(vm) = Vm::new("guest::surface_credentials").await else {
        return;
    };
    let guest = vm.boot().await;

    // Its own words come back when it cannot serve.
    let (code, error) = start_error(&guest, &request()).await;
    assert_eq!(code, 422);
    assert!(error.contains("cannot read the manifest"), "{error}");
    upload(&guest, &FILES).await;
    let started: SurfaceStatus = guest.json("POST", path::SURFACE, &request()).await;
    assert!(started.running);

    assert_eq!(
        guest.sh(&curl("one")).await,
        "unauthorized 401",
        "locked without a token"
    );
    upload(&guest, &[("/fuse/auth-token", "one")]).await;
    let info = guest
        .sh(&format!("until {} | grep 200; do :; done", curl("one")))
        .await;
    assert!(info.contains(r#""secret_count":1"#), "{info}");
    upload(&guest, &[("/fuse/auth-token", "two")]).await;
    let rotated = format!(
        "until {} | grep 200; do :; done; {} | grep 401",
        curl("two"),
        curl("one")
    );
    guest.sh(&rotated).await;
    let seen = guest
        .sh("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '; dmesg")
        .await;
    assert!(!seen.contains("hunter2"));

    // Ended by force it comes back, with the token of now.
    let pid = started.pid.unwrap();
    guest
        .sh(&format!(
            "kill -KILL {pid}; until {} | grep 200; do :; done",
            curl("two")
        ))
        .await;
    let status = guest.status().await.surface;
    assert!(
        status.running && status.restarts >= 1 && status.pid != Some(pid),
        "{status:?}"
    );
    guest.kill().await;
}

#[tokio::test]
async fn the_surface_can_be_moved_and_replaced() {
    let Some(vm) = Vm::new("guest::surface_replaced").await else {
        return;
    };
    let guest = vm.boot().await;
    upload(&guest, &FILES).await;
    let _: SurfaceStatus = guest.json("POST", path::SURFACE, &request()).await;

    // Started again on another port it leaves the first one.
    let other = SurfaceRequest {
        listen: "0.0.0.0:9551".into(),
        ..request()
    };
    let _: SurfaceStatus = guest.json("POST", path::SURFACE, &other).await;
    guest
        .sh("curl -sf localhost:9551/health && ! curl -s localhost:9550/health")
        .await;

    // A port that somebody else has is not taken for success.
    let server = "python3 -m http.server 9550 >/dev/null 2>&1 &";
    guest
        .sh(&format!(
            "{server} until curl -s localhost:9550 >/dev/null; do :; done"
        ))
        .await;
    let (code, error) = start_error(&guest, &request()).await;
    assert_eq!(code, 400);
    assert!(
        error.contains("in the way of listening on 0.0.0.0:9550"),
        "{error}"
    );

    // A program of the user's takes its place.
    upload(
        &guest,
        &[("/opt/own", "#!/bin/sh\nexec python3 -m http.server 9552\n")],
    )
    .await;
    guest.sh("chmod +x /opt/own").await;
    let own = |port: u16, program: &str| SurfaceRequest {
        listen: format!("0.0.0.0:{port}"),
        binary_path: Some(program.to_owned()),
        ..request()
    };
    let started: SurfaceStatus = guest
        .json("POST", path::SURFACE, &own(9552, "/opt/own"))
        .await;
    assert!(started.running);
    let (_, error) = start_error(&guest, &own(9553, "/opt/absent")).await;
    assert!(error.contains("cannot start /opt/absent"), "{error}");
    guest.kill().await;
}
