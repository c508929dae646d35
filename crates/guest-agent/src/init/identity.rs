//! Who this guest is: host name, machine id, name servers.
//!
//! A fork boots a copy of another VM's disk, so everything here is set at every
//! boot from the boot parameters and never trusted to be right on the disk.
//! What a user wrote into these files by hand is kept. A machine id that is not this
//! guest's says that the disk comes from another one: what only one machine may have
//! (SSH host keys, the saved random seed) is made anew.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use fuse_wire_guest::BootParams;
use sha2::{Digest as _, Sha256};

use super::InitError;
use super::mounts::write;
use super::root;

/// Ends a line of a file that belongs to us.
const MARK: &str = "# set by fuse at boot";

const RESOLV_CONF: &str = "/etc/resolv.conf";
const MACHINE_ID: &str = "/etc/machine-id";

/// Directories with keys that a machine shows to others, and the first and last letters of their names.
const HOST_KEYS: [(&str, &str, &[&str]); 2] = [
    ("etc/ssh", "ssh_host_", &["_key", "_key.pub"]),
    ("etc/dropbear", "dropbear_", &["_host_key"]),
];
/// What a system keeps of its randomness from one boot to the next.
const RANDOM_SEEDS: [&str; 4] = [
    "var/lib/systemd/random-seed",
    "var/lib/urandom/random-seed",
    "var/lib/misc/random-seed",
    "var/lib/random-seed",
];

/// Applies the parameters to the running system.
pub(super) fn apply(params: &BootParams) -> Result<(), InitError> {
    rustix::system::sethostname(params.hostname.as_bytes())
        .map_err(|e| InitError::file("set the host name", Path::new(&params.hostname), e))?;
    super::mounts::make_dir(Path::new("/etc"))?;
    write("/etc/hostname", &format!("{}\n", params.hostname))?;
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    write("/etc/hosts", &hosts_with(&hosts, &params.hostname))?;
    let uuid = root::overlay_uuid()
        .map_err(|e| InitError::file("read the identity of", Path::new("/dev/vdb"), e))?;
    let id = format!("{}\n", machine_id(&params.vm_id, &uuid));
    let present = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    if present != id {
        if forget_other(Path::new("/"))? {
            make_host_keys();
        }
        // Last: a boot that does not come as far does it again.
        write(MACHINE_ID, &id)?;
    }
    if let Some(network) = &params.network {
        let servers: Vec<String> = network.dns.iter().map(ToString::to_string).collect();
        name_servers(&servers)?;
    }
    Ok(())
}

/// Removes what another machine must not have, too. Whether there were host keys.
fn forget_other(root: &Path) -> Result<bool, InitError> {
    for seed in RANDOM_SEEDS {
        remove(&root.join(seed))?;
    }
    let mut had_keys = false;
    for (dir, head, tails) in HOST_KEYS {
        // Without the directory there are none.
        for entry in fs::read_dir(root.join(dir)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(head) && tails.iter().any(|tail| name.ends_with(tail)) {
                remove(&entry.path())?;
                had_keys = true;
            }
        }
    }
    Ok(had_keys)
}

fn remove(path: &Path) -> Result<(), InitError> {
    use std::io::ErrorKind;
    match fs::remove_file(path) {
        // Something else of that name is no seed and no key.
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
            ) =>
        {
            Err(InitError::file("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Host keys in the place of those that were removed, if this image can make any. Before anything
/// is started that would show them, and before anybody else reaps.
fn make_host_keys() {
    let made = Command::new("/usr/bin/ssh-keygen")
        .arg("-A")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match made {
        Ok(status) if status.success() => tracing::info!("new SSH host keys"),
        Ok(status) => tracing::warn!(%status, "ssh-keygen -A failed: there are no SSH host keys"),
        Err(error) => tracing::warn!(%error, "no ssh-keygen: there are no SSH host keys"),
    }
}

fn name_servers(servers: &[String]) -> Result<(), InitError> {
    let path = Path::new(RESOLV_CONF);
    let present = fs::read_to_string(path).unwrap_or_default();
    let foreign = present.contains("nameserver") && !present.contains(MARK);
    if foreign || servers.is_empty() {
        return Ok(());
    }
    // A link into a resolver's directory that nobody fills is of no use.
    if path.is_symlink() && !path.exists() {
        fs::remove_file(path).map_err(|e| InitError::file("replace", path, e))?;
    }
    let lines: String = servers
        .iter()
        .map(|server| format!("nameserver {server}\n"))
        .collect();
    write(RESOLV_CONF, &format!("{MARK}\n{lines}"))
}

/// The hosts file with our line for the host name, and one for localhost if there is none.
fn hosts_with(present: &str, hostname: &str) -> String {
    let mut lines: Vec<String> = present
        .lines()
        .filter(|line| !line.ends_with(MARK))
        .map(str::to_owned)
        .collect();
    let names_localhost = |line: &String| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace()
            .skip(1)
            .any(|name| name == "localhost")
    };
    if !lines.iter().any(names_localhost) {
        lines.insert(0, "127.0.0.1 localhost".to_owned());
        lines.insert(1, "::1 localhost ip6-localhost ip6-loopback".to_owned());
    }
    lines.push(format!("127.0.1.1 {hostname} {MARK}"));
    lines.join("\n") + "\n"
}

/// 32 hex digits that differ between VMs and stay the same from boot to boot:
/// a fork has another VM id, a new VM of an old name another file system.
fn machine_id(vm_id: &str, overlay: &[u8; 16]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"fuse machine-id\0");
    hash.update(vm_id);
    hash.update([0]);
    hash.update(overlay);
    hash.finalize()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_replaces_the_name_and_keeps_what_users_wrote() {
        let first = hosts_with("10.0.0.9 db # mine\n", "one");
        assert!(first.contains("127.0.0.1 localhost\n"), "{first}");
        let second = hosts_with(&first, "two");
        assert!(second.contains("10.0.0.9 db # mine\n"), "{second}");
        assert!(
            second.contains("127.0.1.1 two") && !second.contains(" one "),
            "{second}"
        );
        assert_eq!(hosts_with(&second, "two"), second);
    }

    #[test]
    fn what_only_one_machine_may_have_is_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let write = |path: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), path).unwrap();
        };
        assert!(!forget_other(root.path()).unwrap(), "there is nothing");
        let (own, others) = (
            [
                "etc/ssh/ssh_host_rsa_key",
                "etc/ssh/ssh_host_rsa_key.pub",
                "etc/dropbear/dropbear_ed25519_host_key",
                "var/lib/systemd/random-seed",
            ],
            [
                "etc/ssh/sshd_config",
                "etc/ssh/ssh_host_notes",
                "root/.ssh/id_rsa",
            ],
        );
        own.into_iter().chain(others).for_each(write);
        assert!(forget_other(root.path()).unwrap());
        let left = |paths: &[&str]| paths.iter().filter(|path| at(path).exists()).count();
        assert_eq!((left(&own), left(&others)), (0, others.len()));
        write("var/lib/systemd/random-seed");
        assert!(!forget_other(root.path()).unwrap(), "no keys, no new keys");
    }

    #[test]
    fn machine_ids_differ_by_vm_and_by_disk() {
        let id = machine_id("a", &[1; 16]);
        assert_eq!(id.len(), 32);
        assert_eq!(id, machine_id("a", &[1; 16]));
        assert_ne!(id, machine_id("b", &[1; 16]));
        assert_ne!(id, machine_id("a", &[2; 16]));
    }
}
