//! "Another machine": a network namespace joined to the host by a veth pair.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};

use crate::slot::Slot;

/// How long a connection attempt may take before the answer is "cannot be reached".
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// Table of the rules that lose packets, in the namespace only.
const LOSS: &str = "loss";

/// A namespace with one address, and the host's address on the same link. Removed on drop.
#[derive(Debug)]
pub struct Outside {
    name: String,
    link: String,
    /// The host's address on the link.
    pub host_ip: IpAddr,
    /// The other machine's address.
    pub ip: IpAddr,
}

impl Outside {
    /// Makes the namespace of `slot`. Its only route leads to the host.
    ///
    /// # Errors
    /// When a step fails (no root, no `ip`).
    pub fn create(slot: &Slot) -> Result<Self> {
        let (name, link) = (slot.namespace(), slot.outside_link());
        let [host_ip, ip] = slot.outside_addresses();
        let outside = Self {
            name,
            link,
            host_ip: host_ip.parse()?,
            ip: ip.parse()?,
        };
        let (ns, host_end) = (outside.name.as_str(), outside.link.as_str());
        let inner_end = format!("{host_end}i");
        run(&["netns", "add", ns])?;
        run(&[
            "link", "add", host_end, "type", "veth", "peer", "name", &inner_end,
        ])?;
        run(&["link", "set", &inner_end, "netns", ns])?;
        run(&["addr", "add", &format!("{host_ip}/30"), "dev", host_end])?;
        run(&["link", "set", host_end, "up"])?;
        run(&[
            "-n",
            ns,
            "addr",
            "add",
            &format!("{ip}/30"),
            "dev",
            &inner_end,
        ])?;
        run(&["-n", ns, "link", "set", &inner_end, "up"])?;
        run(&["-n", ns, "link", "set", "lo", "up"])?;
        run(&["-n", ns, "route", "add", "default", "via", &host_ip])?;
        Ok(outside)
    }

    /// Loses one packet of `one_in`, at random and in both directions, until [`Self::lose_nothing`].
    /// By packet rules, because not every kernel has `netem`.
    ///
    /// # Errors
    /// When the rules are refused.
    pub fn lose(&self, one_in: u32) -> Result<()> {
        let lossy = format!("numgen random mod {one_in} 0 counter drop");
        let chain = |hook: &str| {
            format!("chain {hook} {{ type filter hook {hook} priority 0; {lossy}; }};")
        };
        let (from, to) = (chain("input"), chain("output"));
        self.nft(&format!("table inet {LOSS} {{ {from} {to} }}"))
            .map(drop)
    }

    /// Ends [`Self::lose`] and answers how many packets were lost.
    ///
    /// # Errors
    /// When nothing was to be lost.
    pub fn lose_nothing(&self) -> Result<u64> {
        let rules = self.nft(&format!("list table inet {LOSS}"))?;
        self.nft(&format!("delete table inet {LOSS}"))?;
        let counted = rules.split("counter packets ").skip(1);
        let lost = counted.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        Ok(lost.sum())
    }

    fn nft(&self, rules: &str) -> Result<String> {
        run(&["netns", "exec", &self.name, "nft", rules])
    }

    /// Runs `work` on a thread inside the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or what `work` returns.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = format!("/run/netns/{}", self.name);
        let namespace = File::open(&path).with_context(|| format!("open {path}"))?;
        let inside = move || -> Result<T> {
            setns(namespace, CloneFlags::CLONE_NEWNET).context("enter the namespace")?;
            work()
        };
        // The thread is thrown away afterwards, so nothing else ever runs in the namespace.
        std::thread::spawn(inside)
            .join()
            .map_err(|_| anyhow!("a thread in namespace {} panicked", self.name))?
    }

    /// Sends `request` to `address` from the namespace and reads the whole answer.
    ///
    /// # Errors
    /// When the address cannot be reached within 3 s or the connection breaks.
    pub fn ask(&self, address: SocketAddr, request: &'static str) -> Result<String> {
        self.run(move || ask(address, request))
    }

    /// Listens on `port` in the namespace and reports each peer's address; answers `hello` and closes.
    ///
    /// # Errors
    /// When the port cannot be bound.
    pub fn serve(&self, port: u16) -> Result<Receiver<IpAddr>> {
        let ip = self.ip;
        let listener = self.run(move || TcpListener::bind((ip, port)).context("listen outside"))?;
        let (sender, peers) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                greet(stream, &sender);
            }
        });
        Ok(peers)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Best effort; the slot's next owner cleans up what is left.
        let _gone = run(&["netns", "delete", &self.name]);
        let _gone = run(&["link", "delete", &self.link]);
    }
}

/// Listens on `port` of every host address and reports each peer's address; answers `hello` and closes.
///
/// # Errors
/// When the port cannot be bound.
pub fn serve_on_host(port: u16) -> Result<Receiver<IpAddr>> {
    let listener =
        TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("listen on {port}"))?;
    let (sender, peers) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            greet(stream, &sender);
        }
    });
    Ok(peers)
}

/// Sends `request` to `address` from the host and reads the whole answer.
///
/// # Errors
/// When the address cannot be reached within 3 s or the connection breaks.
pub fn ask(address: SocketAddr, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_DEADLINE)
        .with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(CONNECT_DEADLINE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .with_context(|| format!("read from {address}"))?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn greet(mut stream: TcpStream, peers: &std::sync::mpsc::Sender<IpAddr>) {
    if let Ok(peer) = stream.peer_addr() {
        // The test may have ended, or the peer left: neither matters to a greeter.
        let _ended = peers.send(peer.ip());
        let _left = stream.write_all(b"hello\n");
    }
}

fn run(args: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(args).output().context("start ip")?;
    ensure!(
        output.status.success(),
        "ip {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_the_other_machine_reach_each_other() {
        if let Some(reason) = crate::missing_for_guests() {
            crate::skip!("outside::reach", "{reason}");
        }
        let slot = Slot::claim().unwrap();
        let outside = Outside::create(&slot).unwrap();
        let peers = outside.serve(slot.spare_port(0)).unwrap();
        assert_eq!(
            ask((outside.ip, slot.spare_port(0)).into(), "").unwrap(),
            "hello\n"
        );
        assert_eq!(peers.recv().unwrap(), outside.host_ip);
        let peers = serve_on_host(slot.spare_port(1)).unwrap();
        assert_eq!(
            outside
                .ask((outside.host_ip, slot.spare_port(1)).into(), "")
                .unwrap(),
            "hello\n"
        );
        assert_eq!(peers.recv().unwrap(), outside.ip);
        drop(outside);
        assert!(crate::leftovers::find(&slot).is_empty());
    }
}
