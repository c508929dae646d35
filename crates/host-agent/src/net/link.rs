//! TAP devices of VMs, over rtnetlink.
//!
//! Making and removing are idempotent: making starts by removing whatever has the name, removing
//! succeeds when nothing has it.

use std::path::PathBuf;

use futures_util::TryStreamExt as _;
use rtnetlink::LinkUnspec;
use thiserror::Error;
use tokio::task::JoinSet;

use super::plan::{LINK_PREFIX, Slot};
use crate::sys;

/// A netlink connection of the agent.
#[derive(Debug)]
pub struct Links {
    handle: rtnetlink::Handle,
    /// Runs the connection; ends with this value.
    _connection: JoinSet<()>,
}

/// A failed change of a device.
#[derive(Debug, Error)]
pub enum LinkError {
    /// No netlink socket.
    #[error("cannot open a netlink socket")]
    Open(#[source] std::io::Error),
    /// The device could not be made.
    #[error("cannot create the tap device {tap}")]
    Create {
        /// Name of the device.
        tap: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A netlink request failed.
    #[error("cannot {what} {tap}")]
    Netlink {
        /// What was tried.
        what: &'static str,
        /// Name of the device.
        tap: String,
        /// The reason.
        #[source]
        source: rtnetlink::Error,
    },
    /// The device vanished between two steps.
    #[error("the tap device {tap} vanished while it was set up")]
    Vanished {
        /// Name of the device.
        tap: String,
    },
    /// A kernel setting could not be written.
    #[error("cannot write {path}")]
    Setting {
        /// The file.
        path: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

impl Links {
    /// Opens a connection. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open() -> Result<Self, LinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Open)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        Ok(Self {
            handle,
            _connection: tasks,
        })
    }

    /// Lets the host forward IPv4 between interfaces.
    ///
    /// # Errors
    /// The setting cannot be written.
    pub async fn enable_forwarding(&self) -> Result<(), LinkError> {
        set("/proc/sys/net/ipv4/ip_forward".into(), "1").await
    }

    /// Makes the slot's device anew, for a user other than root if there is one, gives it the host's
    /// address and brings it up.
    ///
    /// # Errors
    /// Any step fails; the device may be left half made and is then for [`Self::remove`].
    pub async fn create(&self, slot: &Slot, user: Option<u32>) -> Result<(), LinkError> {
        self.remove(&slot.tap).await?;
        let name = slot.tap.clone();
        tokio::task::spawn_blocking(move || sys::create_tap(&name, user))
            .await
            .unwrap_or_else(|e| Err(std::io::Error::other(e)))
            .map_err(|source| LinkError::Create {
                tap: slot.tap.clone(),
                source,
            })?;
        let index = self
            .index_of(&slot.tap)
            .await?
            .ok_or_else(|| LinkError::Vanished {
                tap: slot.tap.clone(),
            })?;
        self.settings(&slot.tap).await?;
        self.handle
            .address()
            .add(index, slot.host_ip.into(), LINK_PREFIX)
            .execute()
            .await
            .map_err(|source| netlink("assign an address to", &slot.tap, source))?;
        self.handle
            .link()
            .set(LinkUnspec::new_with_index(index).up().build())
            .execute()
            .await
            .map_err(|source| netlink("bring up", &slot.tap, source))
    }

    /// Removes the device if it exists.
    ///
    /// # Errors
    /// It exists and cannot be removed.
    pub async fn remove(&self, tap: &str) -> Result<(), LinkError> {
        let Some(index) = self.index_of(tap).await? else {
            return Ok(());
        };
        match self.handle.link().del(index).execute().await {
            Err(e) if !is_missing(&e) => Err(netlink("remove", tap, e)),
            _ => Ok(()),
        }
    }

    /// Names of all devices that start with `prefix` and end in digits: those that a plan with
    /// that prefix would make.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub async fn with_prefix(&self, prefix: &str) -> Result<Vec<String>, LinkError> {
        let mut links = self.handle.link().get().execute();
        let mut found = Vec::new();
        let failed = |source| netlink("list devices named like", prefix, source);
        while let Some(link) = links.try_next().await.map_err(failed)? {
            found.extend(link_name(&link).filter(|name| {
                name.strip_prefix(prefix)
                    .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
            }));
        }
        Ok(found)
    }

    async fn index_of(&self, tap: &str) -> Result<Option<u32>, LinkError> {
        let mut links = self.handle.link().get().match_name(tap).execute();
        match links.try_next().await {
            Ok(link) => Ok(link.map(|link| link.header.index)),
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(netlink("look up", tap, e)),
        }
    }

    /// Loopback-sourced traffic may leave through the tap (so that `127.0.0.1:<port>` reaches the
    /// guest), and the guest gets no IPv6 way around the rules.
    async fn settings(&self, tap: &str) -> Result<(), LinkError> {
        set(
            format!("/proc/sys/net/ipv4/conf/{tap}/route_localnet").into(),
            "1",
        )
        .await?;
        let no_ipv6 = PathBuf::from(format!("/proc/sys/net/ipv6/conf/{tap}/disable_ipv6"));
        match set(no_ipv6, "1").await {
            // A kernel without IPv6 has nothing to switch off.
            Err(LinkError::Setting { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

fn link_name(link: &rtnetlink::packet_route::link::LinkMessage) -> Option<String> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            rtnetlink::packet_route::link::LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })
}

async fn set(path: PathBuf, value: &'static str) -> Result<(), LinkError> {
    tokio::fs::write(&path, value)
        .await
        .map_err(|source| LinkError::Setting {
            path: path.display().to_string(),
            source,
        })
}

fn netlink(what: &'static str, tap: &str, source: rtnetlink::Error) -> LinkError {
    LinkError::Netlink {
        what,
        tap: tap.to_owned(),
        source,
    }
}

fn is_missing(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -libc::ENODEV)
}
