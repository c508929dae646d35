//! Whatever users do to their guest, its host still reaches it.

use fuse_wire_guest::control::ExecRequest;

use crate::guest::Vm;

#[tokio::test]
async fn the_control_channel_survives_its_users() {
    let Some(vm) = Vm::new("guest::survival").await else {
        return;
    };
    vm.set_overlay_size(256 << 20);
    let guest = vm.boot().await;
    let boot_id = guest.status().await.boot_id;

    // Everything that root can signal.
    guest.sh("sleep 600 >/dev/null 2>&1 & kill -KILL -1").await;
    assert_eq!(guest.sh("pgrep -c sleep || true").await, "0");

    // No block left.
    let fill = "dd if=/dev/zero of=/fill bs=1M 2>/dev/null; df --output=avail / | tail -1";
    let kib: u32 = guest.sh(fill).await.trim().parse().unwrap();
    assert!(kib < 256, "the disk is not full: {kib} KiB left");
    let put = guest
        .call("PUT", "/v1/file?path=/root/more", vec![1; 4 << 20])
        .await;
    assert_eq!(put.0, 507, "{put:?}");
    assert_eq!(
        guest
            .sh("ls -A /root | grep -c fuse-upload || true; rm /fill; echo ok")
            .await,
        "0\nok"
    );

    // All memory, over and over, also as files in memory.
    let hog = guest
        .run("head -c 2G /dev/zero > /tmp/fill; exec tail /dev/zero")
        .await;
    assert_eq!(hog.signal, Some(9), "it was not ended: {}", hog.exit_code);
    guest.sh("rm /tmp/fill").await;

    // All processes.
    let bomb = ExecRequest {
        cmd: ["sh", "-c", "b() { b | b & }; b; sleep 600"]
            .map(str::to_owned)
            .to_vec(),
        timeout_ms: 8_000,
        ..ExecRequest::default()
    };
    let (bombed, (code, _)) = tokio::join!(
        guest.exec(&bomb),
        guest.call("GET", "/v1/status", Vec::new())
    );
    assert_eq!((bombed.timed_out, code), (true, 200));
    // They were all killed at once; to be gone they need the CPU for a moment.
    guest
        .sh("until [ $(cat /sys/fs/cgroup/fuse.user/pids.current) -lt 20 ]; do :; done")
        .await;

    // The agent's own terminal and log.
    guest.run("stty -F /dev/console -ixon; printf '\\023' > /dev/console; dmesg -n 1; yes > /dev/kmsg & sleep 1; kill $!").await;

    assert_eq!(
        guest.status().await.boot_id,
        boot_id,
        "the guest has restarted"
    );
    assert_eq!(
        guest
            .sh("cat /proc/1/oom_score_adj /proc/self/oom_score_adj")
            .await,
        "-1000\n0"
    );
    guest.kill().await;
}
