//! What the VMs of a registry run on: settings, stores, networking, the VMM driver.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::{NoSnapshots, StepError, UndoError};
use super::logs::Failures;
use super::meta::{Meta, MetaError, Metas};
use super::tables::Tables;
use crate::artifact::Artifacts;
use crate::cgroup::{Cgroups, Controller, Limits, Mode};
use crate::config::{Config, PublicHost};
use crate::disk::{ImageError, Images, OverlayError, Overlays};
use crate::file_error::{FileError, failed};
use crate::gpu::{Claim, Recarve};
use crate::metrics::Metrics;
use crate::net::{Binding, Firewall, FirewallError, Forward, LinkError, Links};
use crate::snapshot::Snapshots;
use crate::vmm::{BootSource, HostDevice, MachineSpec, Nic, Vmm};
use fuse_wire_guest::boot::{BootParams, KERNEL_ARGS, Network};
use fuse_wire_host::name;
use fuse_wire_host::start_agent::Protocol;

/// What a registry is made from.
#[derive(Debug, Clone)]
pub struct HostParts {
    /// Settings.
    pub config: Arc<Config>,
    /// Host part of URLs.
    pub public_host: PublicHost,
    /// Driver of the VMM.
    pub vmm: Arc<dyn Vmm>,
    /// The nft program.
    pub nft: PathBuf,
    /// The mkfs.ext4 program.
    pub mkfs: PathBuf,
}

/// A registry that cannot start.
#[derive(Debug, Error)]
pub enum HostError {
    /// Another agent has the state directory.
    #[error("another agent uses {}; stop it or choose another directory", .dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}", .dir.display())]
    State {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The VMs' state cannot be read.
    #[error("cannot read the state of the VMs")]
    Metas(#[source] MetaError),
    /// The image store cannot be used.
    #[error("cannot use the image store")]
    Images(#[source] ImageError),
    /// The overlay templates cannot be used.
    #[error("cannot use the overlay templates")]
    Overlays(#[source] OverlayError),
    /// The snapshots cannot be used.
    #[error("cannot use the snapshots")]
    Snapshots(#[source] FileError),
    /// Artifacts cannot be kept.
    #[error("cannot keep artifacts of other hosts")]
    Artifacts(#[source] crate::artifact::OpenError),
    /// Devices cannot be managed.
    #[error("cannot manage network devices")]
    Links(#[source] LinkError),
    /// Packet rules cannot be written.
    #[error("cannot write the packet rules")]
    Firewall(#[source] FirewallError),
    /// Figures cannot be kept.
    #[error("cannot keep figures")]
    Metrics(#[source] prometheus::Error),
    /// Control groups cannot be looked for.
    #[error("cannot look for control groups")]
    Cgroups(#[source] std::io::Error),
    /// The host does not limit what it is told to.
    #[error(
        "the host limits no {missing} of VMs: mount the control groups with these controllers, \
         under systemd with Delegate=yes in the agent's unit, or set FUSE_VM_LIMITS=auto and no \
         FC_JAILER_BIN"
    )]
    NoLimits {
        /// The controllers.
        missing: String,
    },
    /// Disks cannot be limited.
    #[error(
        "FUSE_VM_IO_MBPS and FUSE_VM_IOPS limit nothing here: {} is not on a block device of its \
         own, or the host has no io controller", .dir.display()
    )]
    NoDiskLimits {
        /// Where disks are.
        dir: PathBuf,
    },
}

/// What VMs run on.
#[derive(Debug)]
pub struct Host {
    /// Settings.
    pub config: Arc<Config>,
    pub(super) public_host: PublicHost,
    pub(super) vmm: Arc<dyn Vmm>,
    pub(super) images: Arc<Images>,
    pub(super) overlays: Arc<Overlays>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) artifacts: Artifacts,
    pub(super) metas: Arc<Metas>,
    pub(super) links: Links,
    /// The packet rules.
    pub firewall: Firewall,
    /// Partitioned cards.
    pub(super) recarve: Recarve,
    pub(super) cgroups: Cgroups,
    pub(super) tables: Tables,
    /// Turns to boot: a booting guest keeps a CPU busy.
    pub(super) boot_turns: Semaphore,
    /// The VMs' tasks.
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    /// Figures of what was done.
    pub(crate) metrics: Metrics,
    /// Creates that failed.
    pub(super) failures: Failures,
    /// Locked while the agent runs; the kernel unlocks it when it ends, however it ends.
    pub(super) _lock: std::fs::File,
    #[cfg(test)]
    pub(super) faults: super::journal::Faults,
}

impl Host {
    pub(super) fn snapshots_possible(&self) -> Result<(), NoSnapshots> {
        let app = self.config.backend.app_name;
        let possible = self.vmm.limits().snapshots;
        possible.then_some(()).ok_or(NoSnapshots { app })
    }

    /// Directory whose file system holds the VMs' disks.
    #[must_use]
    pub fn disk_dir(&self) -> &std::path::Path {
        &self.config.paths.state
    }

    /// Logs of the VMs that exist.
    #[must_use]
    pub fn logs(&self) -> Vec<PathBuf> {
        self.tables
            .all()
            .iter()
            .map(|vm| vm.log().to_owned())
            .collect()
    }

    pub(super) fn url(&self, host_port: u16) -> String {
        self.public_host.authority(host_port)
    }

    pub(super) fn log_of(&self, vm_id: &str) -> PathBuf {
        self.metas.dir(vm_id).join(self.config.backend.log)
    }

    pub(super) async fn save(&self, meta: &Meta) -> Result<(), MetaError> {
        let (metas, meta) = (Arc::clone(&self.metas), meta.clone());
        let saved = tokio::task::spawn_blocking(move || metas.save(&meta)).await;
        saved.unwrap_or_else(|lost| {
            Err(failed("write", &self.config.paths.state)(std::io::Error::other(lost)).into())
        })
    }

    /// What a VM may use of the host.
    pub(super) fn limits(&self, meta: &Meta) -> Limits {
        let memory = u64::from(meta.spec.memory_mb);
        Limits {
            cpus: meta.spec.cpus,
            memory_mib: memory + self.config.vms.overhead_mib,
            io: self.config.vms.io,
        }
    }

    /// Ends whatever is left in a VM's control group, and removes it.
    pub(super) async fn empty_group(&self, meta: &Meta) -> Result<(), UndoError> {
        let group = self.cgroups.group(&meta.vm_id);
        group.removed().await.map_err(UndoError::Group)
    }

    /// Takes away what holds the VMs' control groups, once there are none.
    pub fn leave_cgroups(&self) {
        self.cgroups.leave();
    }

    /// What the packet rules say of a VM.
    pub(super) fn binding(&self, meta: &Meta) -> Binding {
        binding(&self.config, meta)
    }

    /// The machine that a VM's meta describes.
    pub(super) fn machine(&self, meta: &Meta) -> Result<MachineSpec, StepError> {
        let dir = self.metas.dir(&meta.vm_id);
        let params = BootParams {
            vm_id: meta.vm_id.clone(),
            hostname: name::hostname(&meta.vm_id).to_owned(),
            network: Some(Network {
                address: meta.slot.guest_ip,
                prefix: crate::net::plan::LINK_PREFIX,
                gateway: meta.slot.host_ip,
                dns: self.config.net.dns.clone(),
            }),
        };
        Ok(MachineSpec {
            vm_id: meta.vm_id.clone(),
            cpus: meta.spec.cpus,
            memory_mib: meta.spec.memory_mb,
            huge_pages: meta.spec.huge_pages,
            boot: BootSource {
                kernel: self.config.paths.kernel.clone(),
                initrd: self.config.paths.initrd.clone(),
                cmdline: format!("{KERNEL_ARGS} {}", params.to_cmdline()?),
            },
            base: meta.disks.rootfs.clone(),
            overlay: meta.disks.overlay.clone(),
            nic: Some(Nic {
                tap: meta.slot.tap.clone(),
                mac: meta.slot.mac,
            }),
            log: self.log_of(&meta.vm_id),
            devices: devices(&meta.gpus),
            number: meta.slot.index,
            sockets: self.vmm.sockets(&meta.vm_id, &dir),
            group: self.cgroups.group(&meta.vm_id),
        })
    }
}

/// The devices of a claim, in the order that the guest sees them.
fn devices(claim: &Claim) -> Vec<HostDevice> {
    let slots = claim.slots.iter().copied().map(HostDevice::Pci);
    let mdevs = claim.mdevs.iter().cloned().map(HostDevice::Mediated);
    slots.chain(mdevs).collect()
}

/// What the packet rules say of a VM under `config`.
pub(super) fn binding(config: &Config, meta: &Meta) -> Binding {
    let fused = config.net.fused_port;
    let surface = Forward::new(meta.slot.host_port, fused, Protocol::Tcp);
    let published = meta.expose_endpoints.iter();
    let published = published.map(|p| Forward::new(p.host_port, p.port, p.protocol));
    let forwards = published
        .chain(meta.surface_published.then_some(surface))
        .collect();
    Binding {
        slot: meta.slot.clone(),
        forwards,
    }
}

/// The control groups under `config`, if there is enough of them.
///
/// # Errors
/// They cannot limit what `config` wants limited.
pub(super) fn cgroups(config: &Config) -> Result<Cgroups, HostError> {
    let vms = &config.vms;
    // Behind a jailer a group is also what a lost VMM is found by.
    let required = vms.limits == Mode::Required || config.jailer.is_some();
    if vms.limits == Mode::Off {
        return Ok(Cgroups::default());
    }
    let state = &config.paths.state;
    let groups = Cgroups::open(config.backend.app_name, state).map_err(HostError::Cgroups)?;
    // Without a bandwidth the io controller has nothing to do.
    let wanted = |controller: &Controller| *controller != Controller::Io || vms.io.any();
    let missing: Vec<_> = groups
        .missing()
        .filter(wanted)
        .map(Controller::name)
        .collect();
    if vms.io.any() && !groups.limits_disks() {
        return Err(HostError::NoDiskLimits { dir: state.clone() });
    }
    if !missing.is_empty() {
        let missing = missing.join(", ");
        if required {
            return Err(HostError::NoLimits { missing });
        }
        tracing::warn!(
            missing,
            "the host has no control groups for these: VMs are not limited in them"
        );
    }
    Ok(groups)
}
