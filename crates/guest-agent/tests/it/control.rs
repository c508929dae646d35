//! The control API of a real guest.

use fuse_wire_guest::Blob;
use fuse_wire_guest::control::{
    ClockRequest, ClockResponse, ExecRequest, UploadFile, UploadRequest, UploadResponse, path,
};

use crate::guest::{Guest, Vm};

#[tokio::test]
async fn a_host_works_with_its_guest() {
    let Some(vm) = Vm::new("guest::control").await else {
        return;
    };
    let guest = vm.boot().await;

    let megabyte: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let request = ExecRequest {
        cmd: vec!["tee".into(), "/dev/stderr".into()],
        stdin_b64: Some(Blob(megabyte.clone())),
        timeout_ms: 60_000,
        ..ExecRequest::default()
    };
    let response = guest.exec(&request).await;
    assert!(response.stdout_b64.0 == megabyte && response.stderr_b64.0 == megabyte);

    let file = |path: &str, mode: Option<&str>| UploadFile {
        path: path.into(),
        mode: mode.map(str::to_owned),
        content_b64: Blob(b"x\0y".to_vec()),
    };
    let files = vec![
        file("/opt/a/b", Some("0755")),
        file("/fuse/tls/key.pem", Some("0777")),
        file("//fuse/./manifest.json", None),
    ];
    let upload: UploadResponse = guest
        .json("POST", path::FILES, &UploadRequest { files })
        .await;
    assert_eq!(upload.written, 3);
    let modes = guest.sh("stat -c '%a %s' /opt/a/b /fuse/tls /fuse/tls/key.pem /fuse/manifest.json | cut -d' ' -f1").await;
    assert_eq!(modes, "755\n700\n600\n600");
    let refused = UploadRequest {
        files: vec![file("/fuse", None)],
    };
    let body = serde_json::to_vec(&refused).unwrap();
    assert_eq!(guest.call("POST", path::FILES, body).await.0, 400);

    let big = vec![5; 24 << 20];
    let (code, _) = guest
        .call("PUT", "/v1/file?path=/root/big&mode=0600", big)
        .await;
    assert_eq!(
        (code, guest.sh("stat -c '%a %s' /root/big").await.as_str()),
        (200, "600 25165824")
    );

    clock_is_set_unless_it_is_right_enough(&guest).await;

    // What a command started in the background stays, until its own end.
    let pid = guest.sh("setsid sleep 600 >/dev/null 2>&1 & echo $!").await;
    guest
        .sh(&format!(
            "kill -0 {pid}; ls -d /sys/fs/cgroup/fuse.user/exec-*"
        ))
        .await;
    // A time limit ends also what left the process group.
    let request = ExecRequest {
        cmd: ["sh", "-c", "setsid sleep 601 & sleep 602"]
            .map(str::to_owned)
            .to_vec(),
        timeout_ms: 1_500,
        ..ExecRequest::default()
    };
    let response = guest.exec(&request).await;
    assert_eq!((response.exit_code, response.timed_out), (124, true));
    let left = guest.run("pgrep -f 'sleep 60[12]'").await;
    assert_eq!(
        left.exit_code,
        1,
        "{}",
        String::from_utf8_lossy(&left.stdout_b64.0)
    );
    // Its group goes with the last process.
    guest
        .sh(&format!(
            "kill -KILL {pid}; while kill -0 {pid} 2>/dev/null; do :; done"
        ))
        .await;
    let groups = guest
        .sh("ls -d /sys/fs/cgroup/fuse.user/exec-* | wc -l")
        .await;
    assert_eq!(groups, "1", "groups of ended commands are left");
    guest.kill().await;
}

#[tokio::test]
async fn a_host_that_leaves_ends_its_commands_and_can_come_back() {
    let Some(vm) = Vm::new("guest::reconnect").await else {
        return;
    };
    let mut guest = vm.boot().await;
    let boot_id = guest.status().await.boot_id;
    for round in 0..4 {
        let file = format!("/run/round-{round}");
        let script = format!("echo $$ > {file}; sleep 1000 & wait");
        let running = guest.run(&script);
        let seen = format!("until [ -s {file} ]; do :; done");
        let started = guest.sh(&seen);
        tokio::select! {
            _ = running => panic!("the command ended by itself"),
            _ = started => {}
        }
        // In turn the caller alone goes away, and the whole session in the
        // middle of a transfer.
        if round % 2 == 1 {
            let put = guest.call("PUT", "/v1/file?path=/root/x", vec![1; 8 << 20]);
            let read = guest.sh("head -c 6000000 /dev/zero");
            let soon = guest.sh("true");
            tokio::select! { _ = put => {}, _ = read => {}, _ = soon => {} }
            guest.reconnect().await;
        }
        guest
            .sh(&format!(
                "while kill -0 $(cat {file}) 2>/dev/null; do :; done"
            ))
            .await;
        guest.sh("! pgrep -f 'slee[p] 1000'").await;
    }
    assert_eq!(guest.status().await.boot_id, boot_id);
    guest.kill().await;
}

async fn clock_is_set_unless_it_is_right_enough(guest: &Guest) {
    let clock = ClockRequest {
        unix_micros: 2_000_000_000_000_000,
        tolerance_micros: 0,
    };
    let set: ClockResponse = guest.json("POST", path::CLOCK, &clock).await;
    assert!(set.offset_micros > 0);
    assert_eq!(guest.sh("date -u +%Y").await, "2033");
    // Nearly right is right enough, if the host says so.
    let near = ClockRequest {
        unix_micros: 2_000_000_900_000_000,
        tolerance_micros: 1_800_000_000,
    };
    let left: ClockResponse = guest.json("POST", path::CLOCK, &near).await;
    assert_eq!(left.offset_micros, 0);
    let exact = ClockRequest {
        tolerance_micros: 60_000_000,
        ..near
    };
    let set: ClockResponse = guest.json("POST", path::CLOCK, &exact).await;
    assert!(set.offset_micros > 60_000_000, "{set:?}");
}
