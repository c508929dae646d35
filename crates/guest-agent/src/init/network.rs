//! Brings the guest's interfaces up, by netlink.

use std::net::Ipv4Addr;

use fuse_wire_guest::boot::Network;
use futures_util::TryStreamExt as _;
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use thiserror::Error;
use tokio::task::JoinSet;

const LOOPBACK: &str = "lo";

/// The only interface that a VM has beside loopback.
const INTERFACE: &str = "eth0";

/// Why the network is not up.
#[derive(Debug, Error)]
pub(crate) enum NetworkError {
    /// No netlink socket.
    #[error("cannot talk to the kernel about the network")]
    Socket(#[source] std::io::Error),
    /// The VM has no such interface.
    #[error("the VM has no network interface {name}")]
    NoInterface {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: Option<rtnetlink::Error>,
    },
    /// The kernel refused a change.
    #[error("cannot {step} {interface}")]
    Refused {
        /// What was to be done.
        step: &'static str,
        /// To which interface.
        interface: &'static str,
        /// What the kernel said.
        #[source]
        source: rtnetlink::Error,
    },
}

/// Brings up loopback and, if the VM has a network, its interface with address
/// and default route.
///
/// # Errors
/// An interface is missing or the kernel refuses a change.
pub(crate) async fn set_up(network: Option<&Network>) -> Result<(), NetworkError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NetworkError::Socket)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    bring_up(&handle, LOOPBACK).await?;
    let Some(network) = network else {
        return Ok(());
    };
    let index = find(&handle, INTERFACE).await?;
    let refused = |step| {
        move |source| NetworkError::Refused {
            step,
            interface: INTERFACE,
            source,
        }
    };
    handle
        .address()
        .add(index, network.address.into(), network.prefix)
        .execute()
        .await
        .map_err(refused("give an address to"))?;
    bring_up(&handle, INTERFACE).await?;
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .gateway(network.gateway)
        .output_interface(index)
        .build();
    handle
        .route()
        .add(route)
        .execute()
        .await
        .map_err(refused("add the default route over"))
}

async fn bring_up(handle: &Handle, name: &'static str) -> Result<(), NetworkError> {
    let index = find(handle, name).await?;
    let up = LinkUnspec::new_with_index(index).up().build();
    let refused = |source| NetworkError::Refused {
        step: "bring up",
        interface: name,
        source,
    };
    handle.link().set(up).execute().await.map_err(refused)
}

async fn find(handle: &Handle, name: &'static str) -> Result<u32, NetworkError> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    match links.try_next().await {
        Ok(Some(link)) => Ok(link.header.index),
        Ok(None) => Err(NetworkError::NoInterface { name, source: None }),
        Err(error) => Err(NetworkError::NoInterface {
            name,
            source: Some(error),
        }),
    }
}
