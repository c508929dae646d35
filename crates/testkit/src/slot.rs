//! Network slots: everything machine-wide that one stack needs under a name of its own.
//!
//! A slot is a number that decides subnet, tap prefix, nftables table, ports and directory, held by a file lock for
//! as long as the process lives. Whoever takes a slot first removes what a killed predecessor left in it, so an
//! aborted run cleans up in the next one. The default names and ports of a user's own stack are never used.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::leftovers;

/// Number of slots of one machine.
const SLOTS: u16 = 24;
/// First port of slot 0; below the ephemeral range and above the default ports of agents (19550-19899).
const FIRST_PORT: u16 = 21000;
/// Ports of one slot: 249 guests, published ports, and the two listeners.
const PORTS_PER_SLOT: u16 = 400;
/// Second octet of slot 0's subnet; the default plan is 10.200.
const FIRST_SUBNET: u16 = 210;

/// Slots that this process holds, for [`Slot::purge_held`].
static HELD: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A claimed slot. Dropping it frees it.
#[derive(Debug)]
pub struct Slot {
    number: u16,
    lock: File,
}

impl Slot {
    /// Claims the first free slot and removes what a dead predecessor left in it.
    ///
    /// # Errors
    /// When all slots are taken, or the leftovers of a predecessor cannot be removed.
    pub fn claim() -> Result<Self> {
        let root = root()?;
        for number in 0..SLOTS {
            let path = lock_path(&root, number);
            let lock = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .with_context(|| format!("open {}", path.display()))?;
            if lock.try_lock().is_err() {
                continue;
            }
            let slot = Self::hold(number, lock);
            leftovers::purge(&slot).with_context(|| format!("clean up slot {number}"))?;
            if slot.ports_are_free() {
                return Ok(slot);
            }
        }
        bail!(
            "all {SLOTS} test slots are taken (locks in {})",
            root.display()
        )
    }

    /// Removes what killed runs left in slots that nobody holds now.
    ///
    /// # Errors
    /// When leftovers cannot be removed.
    pub fn sweep() -> Result<()> {
        let root = root()?;
        for number in 0..SLOTS {
            let path = lock_path(&root, number);
            let Ok(lock) = OpenOptions::new().append(true).open(&path) else {
                continue;
            };
            if lock.try_lock().is_ok() {
                leftovers::purge(&Self::hold(number, lock))?;
            }
        }
        Ok(())
    }

    /// Removes everything of all slots that this process holds: for a run that is being interrupted.
    ///
    /// # Errors
    /// When something could not be removed.
    pub fn purge_held() -> Result<()> {
        let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let root = root()?;
        for number in held {
            // The lock file is only opened, not locked: this process has the lock.
            let lock = File::open(lock_path(&root, number))?;
            let slot = std::mem::ManuallyDrop::new(Self { number, lock });
            leftovers::purge(&slot)?;
        }
        Ok(())
    }

    fn hold(number: u16, lock: File) -> Self {
        HELD.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number);
        Self { number, lock }
    }

    /// Directory of this slot: short, because Unix socket paths end at 107 bytes.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/fuse-testkit/s{}", self.number))
    }

    /// Guest subnet, `10.x.0.0/16`.
    #[must_use]
    pub fn subnet(&self) -> String {
        format!("10.{}.0.0/16", FIRST_SUBNET + self.number)
    }

    /// Address of guest `index` in [`Self::subnet`].
    #[must_use]
    pub fn guest_ip(&self, index: u8) -> String {
        format!("10.{}.{index}.2", FIRST_SUBNET + self.number)
    }

    /// Prefix of tap names.
    #[must_use]
    pub fn tap_prefix(&self) -> String {
        // Letters only: the digits behind the prefix are the guest's number.
        let letter = char::from_u32(u32::from(b'a') + u32::from(self.number)).unwrap_or('z');
        format!("ft{letter}v")
    }

    /// Name of the nftables table.
    #[must_use]
    pub fn nft_table(&self) -> String {
        format!("fuse_ft{}", self.number)
    }

    /// Port of guest 0; guest N is published on this + N.
    #[must_use]
    pub fn guest_port_base(&self) -> u16 {
        FIRST_PORT + self.number * PORTS_PER_SLOT
    }

    /// First and last port for published guest ports.
    #[must_use]
    pub fn expose_ports(&self) -> (u16, u16) {
        (self.guest_port_base() + 250, self.guest_port_base() + 389)
    }

    /// Port of the orchestrator.
    #[must_use]
    pub fn orchestrator_port(&self) -> u16 {
        self.guest_port_base() + 390
    }

    /// Port of the host agent.
    #[must_use]
    pub fn agent_port(&self) -> u16 {
        self.guest_port_base() + 391
    }

    /// A port of this slot that no program of the stack uses, for a test's own listener: `n` in 0..8.
    #[must_use]
    pub fn spare_port(&self, n: u16) -> u16 {
        self.guest_port_base() + 392 + n % 8
    }

    /// Name of the network namespace that plays another machine.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("ft{}out", self.number)
    }

    /// Host end of the link to [`Self::namespace`].
    #[must_use]
    pub fn outside_link(&self) -> String {
        format!("ft{}o", self.number)
    }

    /// The host's and the other machine's address on that link (a /30 of the benchmarking range).
    #[must_use]
    pub fn outside_addresses(&self) -> [String; 2] {
        [
            format!("198.18.{}.1", self.number),
            format!("198.18.{}.2", self.number),
        ]
    }

    /// Variables that keep an `fc-agent` inside this slot.
    #[must_use]
    pub fn agent_env(&self) -> Vec<(String, String)> {
        let (low, high) = self.expose_ports();
        [
            ("FUSE_SUBNET", self.subnet()),
            ("FUSE_TAP_PREFIX", self.tap_prefix()),
            ("FUSE_NFT_TABLE", self.nft_table()),
            ("FUSE_HOST_PORT_BASE", self.guest_port_base().to_string()),
            ("FUSE_EXPOSE_PORT_RANGE", format!("{low}-{high}")),
            ("FC_AGENT_PORT", self.agent_port().to_string()),
            ("PUBLIC_HOST", "127.0.0.1".into()),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect()
    }

    fn ports_are_free(&self) -> bool {
        [self.orchestrator_port(), self.agent_port()]
            .into_iter()
            .all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        HELD.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.number);
        // Closing the file would free it too; a child that inherited the descriptor must not keep it.
        let _unlocked = self.lock.unlock();
    }
}

fn lock_path(root: &Path, number: u16) -> PathBuf {
    root.join(format!("slot-{number}.lock"))
}

fn root() -> Result<PathBuf> {
    let root = Path::new("/tmp/fuse-testkit").to_owned();
    std::fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    Ok(root)
}

/// A TCP port of the loopback address that nothing listens on right now.
///
/// # Errors
/// When no port can be bound.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("bind a free port")?;
    Ok(listener.local_addr()?.port())
}
