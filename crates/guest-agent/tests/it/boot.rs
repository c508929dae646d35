//! What a guest looks like after boot, and how boots fail.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::process::Command;

use fuse_wire_guest::control::{PowerAction, PowerRequest, path};

use crate::guest::Vm;

#[tokio::test]
async fn a_guest_comes_up_as_itself_and_goes_down_clean() {
    let Some(vm) = Vm::new("guest::boot").await else {
        return;
    };
    let overlay = vm.overlay_path();
    let guest = vm.boot().await;
    let ready = guest.ready.clone();
    assert_eq!(
        (ready.vm_id.as_str(), ready.error.as_deref()),
        ("vm-it", None)
    );
    assert_eq!(
        (ready.generation, guest.status().await.boot_id),
        (1, ready.boot_id)
    );

    assert_eq!(
        guest.sh("hostname; cat /etc/hostname").await,
        "vm-it-host\nvm-it-host"
    );
    assert!(
        guest
            .sh("getent hosts vm-it-host localhost")
            .await
            .contains("127.0.1.1")
    );
    let machine_id = guest.sh("cat /etc/machine-id").await;
    assert_eq!(machine_id.len(), 32);
    let kinds = guest.sh("for m in / /proc /sys /sys/fs/cgroup /dev /dev/pts /dev/shm /run /tmp /fuse /var/lib/containers; do stat -f -c %T $m; done").await;
    let expected = "overlayfs proc sysfs cgroup2fs tmpfs devpts tmpfs tmpfs tmpfs tmpfs ext2/ext3";
    assert_eq!(
        kinds.split_whitespace().collect::<Vec<_>>().join(" "),
        expected
    );
    assert_eq!(guest.sh("stat -c %a /fuse /tmp").await, "700\n1777");
    let network = guest
        .sh("ip -br addr show eth0; ip route; cat /etc/resolv.conf")
        .await;
    assert!(network.contains("10.0.2.15/24") && network.contains("default via 10.0.2.2"));
    assert!(network.contains("nameserver 10.0.2.3"), "{network}");
    // The base is not writable, not even for root.
    assert_ne!(
        guest
            .run("dd if=/dev/zero of=/dev/vda bs=512 count=1")
            .await
            .exit_code,
        0
    );

    guest.sh("echo kept > /root/kept; mv /usr/share/bash-completion /usr/share/moved 2>/dev/null || true").await;
    let down = PowerRequest {
        action: PowerAction::Poweroff,
    };
    let (code, _) = guest
        .call("POST", path::POWER, serde_json::to_vec(&down).unwrap())
        .await;
    assert_eq!(code, 202);
    let mut vm = guest.ended().await;
    let superblock = Command::new("dumpe2fs")
        .arg("-h")
        .arg(&overlay)
        .output()
        .unwrap();
    let superblock = String::from_utf8_lossy(&superblock.stdout).into_owned();
    assert!(
        superblock.contains("Filesystem state:         clean"),
        "{superblock}"
    );
    assert!(!superblock.contains("needs_recovery"), "{superblock}");

    // Another VM on a copy of the disk is another machine with the same files.
    vm.vm_id = "vm-fork".into();
    let guest = vm.boot().await;
    assert_eq!(
        guest.sh("cat /root/kept; hostname").await,
        "kept\nvm-fork-host"
    );
    assert!(!guest.sh("cat /etc/hosts").await.contains("vm-it-host"));
    assert_ne!(guest.sh("cat /etc/machine-id").await, machine_id);
    guest.kill().await;
}

#[tokio::test]
async fn a_guest_that_cannot_run_says_why() {
    let Some(mut vm) = Vm::new("guest::failures").await else {
        return;
    };

    // Data that is not ours stays.
    let mut disk = File::options().write(true).open(vm.overlay_path()).unwrap();
    disk.seek(SeekFrom::Start(4096)).unwrap();
    disk.write_all(b"somebody's data").unwrap();
    let guest = vm.boot().await;
    let error = guest.ready.error.clone().unwrap();
    assert!(
        error.contains("/dev/vdb is neither blank nor an ext4"),
        "{error}"
    );
    assert_eq!(guest.status().await.error.as_deref(), Some(error.as_str()));
    let (code, body) = guest
        .call(
            "POST",
            path::EXEC,
            br#"{"cmd":["true"],"timeout_ms":1}"#.to_vec(),
        )
        .await;
    assert_eq!(code, 503);
    assert!(String::from_utf8_lossy(&body).contains("refusing to format"));
    vm = guest.kill().await;

    vm.overlay = false;
    let guest = vm.boot().await;
    assert!(
        guest.ready.error.clone().unwrap().contains("no /dev/vdb"),
        "{:?}",
        guest.ready
    );
    vm = guest.kill().await;

    // A base image without a shell, on a formatted overlay.
    let empty = tempfile::tempdir().unwrap();
    let base = empty.path().join("base.ext4");
    File::create(&base).unwrap().set_len(16 << 20).unwrap();
    for disk in [&base, &vm.overlay_path()] {
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(disk)
            .status()
            .unwrap();
        assert!(made.success());
    }
    vm.overlay = true;
    vm.base = Some(base);
    let guest = vm.boot().await;
    let error = guest.ready.error.clone().unwrap();
    assert!(error.contains("no usable /bin/sh"), "{error}");
    guest.kill().await;
}
