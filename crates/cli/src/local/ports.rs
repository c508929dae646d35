//! Is a port free, and if not, who has it.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use super::Error;

/// Fails when something listens on the port.
///
/// # Errors
/// Naming the port, and the program that holds it when that can be found out.
pub(crate) fn require_free(
    port: u16,
    purpose: &'static str,
    flag: &'static str,
) -> Result<(), Error> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::PortInUse {
            port,
            purpose,
            by: holder(port),
            flag,
        }),
    }
}

/// The program that listens on a port, as `name (process N)`. Without root only one's own show.
fn holder(port: u16) -> Option<String> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| listening_inode(&table, port))?;
    let socket = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        let Some(pid) = name
            .to_str()
            .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        if holds(&process.path(), &socket) {
            let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (process {pid})", comm.trim()));
        }
    }
    None
}

fn holds(process: &Path, socket: &str) -> bool {
    let open = fs::read_dir(process.join("fd"));
    open.into_iter()
        .flatten()
        .flatten()
        .any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == socket))
}

/// Finds a listening socket (state 0A) in the kernel's table of TCP sockets.
fn listening_inode(table: &str, port: u16) -> Option<String> {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&suffix) && *fields.get(3)? == "0A";
        listens
            .then(|| fields.get(9).map(|inode| (*inode).to_owned()))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_names_its_holder() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = require_free(port, "orchestrator", "--orchestrator-port")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with(&format!("port {port} (orchestrator) is in use by ")),
            "{text}"
        );
        assert!(
            text.contains(&format!("process {}", std::process::id())),
            "{text}"
        );
        drop(listener);
        require_free(port, "orchestrator", "--orchestrator-port").unwrap();
    }
}
