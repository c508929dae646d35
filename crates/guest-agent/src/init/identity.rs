//! Who this guest is: host name, machine id, name servers.
//!
//! A fork boots a copy of another VM's disk, so everything here is set at every
//! boot from the boot parameters and never trusted to be right on the disk.
//! What a user wrote into these files by hand is kept.

use std::fs;
use std::path::Path;

use fuse_wire_guest::BootParams;
use sha2::{Digest as _, Sha256};

use super::InitError;
use super::mounts::write;
use super::root;

/// Ends a line of a file that belongs to us.
const MARK: &str = "# set by fuse at boot";

const RESOLV_CONF: &str = "/etc/resolv.conf";

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
    write(
        "/etc/machine-id",
        &format!("{}\n", machine_id(&params.vm_id, &uuid)),
    )?;
    if let Some(network) = &params.network {
        let servers: Vec<String> = network.dns.iter().map(ToString::to_string).collect();
        name_servers(&servers)?;
    }
    Ok(())
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
    fn machine_ids_differ_by_vm_and_by_disk() {
        let id = machine_id("a", &[1; 16]);
        assert_eq!(id.len(), 32);
        assert_eq!(id, machine_id("a", &[1; 16]));
        assert_ne!(id, machine_id("b", &[1; 16]));
        assert_ne!(id, machine_id("a", &[2; 16]));
    }
}
