//! Guests behind a jailer: a user and a root directory of their own, and everything else as without.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use fuse_wire_host::{SnapshotRequest, VmState};

use crate::agent::{Agent, FC};
use crate::machine::{Image, on_a_machine};
use crate::snapshots::{cycle, forks, goes_on};

/// The user of VM number 0.
const FIRST_UID: u32 = 200_000;

/// A stand-in for Firecracker's jailer, with its arguments: a user, and a root directory with devices of
/// its own, in which what an emulator needs of this machine is mounted for it alone.
const JAILER: &str = r#"#!/bin/sh -e
while [ "$1" != -- ]; do
  case $1 in
    --id) id=$2 ;; --exec-file) exec=$2 ;; --uid) uid=$2 ;; --gid) gid=$2 ;; --chroot-base-dir) base=$2 ;;
    *) echo "unknown argument $1" >&2; exit 1 ;;
  esac
  shift 2
done
shift
name=$(basename "$exec")
root=$base/$name/$id/root
mkdir -p "$root"
cp -L "$exec" "$root/$name"
exec unshare --mount --propagation private sh -e -c '
  root=$1 user=$2 name=$3
  shift 3
  for dir in usr lib lib64 bin sbin etc proc; do
    [ -e "/$dir" ] || continue
    mkdir -p "$root/$dir"
    mount --rbind "/$dir" "$root/$dir"
  done
  mkdir -p "$root/dev"
  mount -t tmpfs -o mode=755 none "$root/dev"
  mkdir "$root/dev/net"
  mknod "$root/dev/null" c 1 3
  mknod "$root/dev/urandom" c 1 9
  mknod "$root/dev/net/tun" c 10 200
  chown "$user" "$root/dev/net/tun"
  chmod 666 "$root/dev/null" "$root/dev/urandom"
  exec chroot --userspec="$user" --groups= "$root" "/$name" "$@"' sh "$root" "$uid:$gid" "$name" --id "$id" "$@"
"#;

async fn jailed(dir: &Path, image: &Image) -> Agent {
    let (jailer, vmm) = (dir.join("jailer"), dir.join("firecracker"));
    fs::write(&jailer, JAILER).unwrap();
    fs::set_permissions(&jailer, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&image.emulator, &vmm).unwrap();
    let uid = FIRST_UID.to_string();
    let settings = [
        ("FC_JAILER_BIN", jailer.to_str().unwrap()),
        ("FC_BIN", vmm.to_str().unwrap()),
        ("FC_JAILER_UID_BASE", &uid),
    ];
    Agent::start(FC, image, &settings).await
}

/// Where a VM is jailed.
fn home(agent: &Agent, vm: &str) -> PathBuf {
    let jails = agent.dir().join("agent-state/jail/firecracker");
    jails.join(vm).canonicalize().unwrap()
}

/// Every process of a VM is in its root directory, under its user, in its group; nobody else reaches its
/// sockets and its disk.
fn confined(agent: &Agent, vm: &str, uid: u32) {
    let root = home(agent, vm).join("root");
    let mut inside = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(seen) = fs::read_link(entry.path().join("root")) else {
            continue;
        };
        if seen != root {
            continue;
        }
        inside += 1;
        let status = fs::read_to_string(entry.path().join("status")).unwrap();
        for line in [
            format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"),
            format!("Gid:\t{uid}\t{uid}\t{uid}\t{uid}\n"),
            "CapEff:\t0000000000000000\n".to_owned(),
        ] {
            assert!(status.contains(&line), "{line}: {status}");
        }
        let pid = entry.file_name().to_str().unwrap().parse().unwrap();
        assert!(agent.cgroups().group(vm).holds(pid), "{pid}");
    }
    assert!(inside >= 1, "nobody is in {}", root.display());
    for (file, mode) in [
        ("run/api.sock", 0o600),
        ("run/v.sock", 0o600),
        ("overlay", 0o600),
        ("run", 0o700),
    ] {
        let meta = fs::symlink_metadata(root.join(file)).unwrap();
        assert_eq!((meta.mode() & 0o777, meta.uid()), (mode, uid), "{file}");
    }
    for file in ["kernel", "initrd", "base"] {
        let meta = fs::symlink_metadata(root.join(file)).unwrap();
        assert_eq!((meta.mode() & 0o022, meta.uid()), (0, 0), "{file}");
    }
    // What a snapshot needs is in the jail only while it is written or read.
    for file in ["vmstate", "mem"] {
        assert!(!root.join(file).exists(), "{file} stays");
    }
    let disk = agent
        .dir()
        .join(format!("agent-state/vms/{vm}/overlay.img"));
    let disk = fs::metadata(disk).unwrap();
    assert_eq!((disk.mode() & 0o777, disk.uid()), (0o600, uid));
}

#[test]
fn jailed_guests_are_saved_restored_and_forked_in_their_jails() {
    on_a_machine("jailed", |image, _outside| async move {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = jailed(dir.path(), &image).await;
        agent.create("a").await;
        confined(&agent, "a", FIRST_UID + 1);
        // Each kills the agent too: it finds the VM again by its group.
        cycle(&mut agent, 1, false).await;
        confined(&agent, "a", FIRST_UID + 1);
        cycle(&mut agent, 2, true).await;
        goes_on(&mut agent).await;
        confined(&agent, "a", FIRST_UID + 1);
        forks(&agent).await;

        // Two at a time are two users.
        agent.create("b").await;
        confined(&agent, "b", FIRST_UID + 2);
        let jails = agent.dir().join("agent-state/jail");
        assert_eq!(fs::metadata(&jails).unwrap().mode() & 0o777, 0o700);
        agent.client.delete("b").await.unwrap();
        let live = SnapshotRequest {
            live: Some(true),
            ..SnapshotRequest::default()
        };
        agent.client.snapshot("a", &live).await.unwrap();
        let state = agent.client.get("a").await.unwrap().state;
        assert_eq!(state, Some(VmState::Running));
        let home = home(&agent, "a");
        agent.client.delete("a").await.unwrap();
        assert!(!home.exists());
        assert_eq!(agent.leftovers(), Vec::<String>::new());
    });
}
