//! Whether this host can really run guests: boots one and waits for its answer.
//!
//! A device node that exists, or a VMM that starts, proves nothing; only a guest that answers does.
//! The probe guest has no network, so the probe changes nothing on the host; it leaves no file.

use std::path::Path;
use std::time::{Duration, Instant};

use fuse_wire_guest::READY_PORT;
use fuse_wire_guest::boot::{BootParams, KERNEL_ARGS};
use serde::Serialize;
use thiserror::Error;

use crate::cgroup::Group;
use crate::config::Config;
use crate::disk::{OverlayError, Overlays};
use crate::guest::{ChannelError, ready};
use crate::preflight::{self, PreflightError};
use crate::report::chain;
use crate::vmm::process::log_tail;
use crate::vmm::{BootSource, MachineSpec, Process, Vmm, VmmError};

/// Memory of the probe guest in MiB.
const MEMORY_MIB: u32 = 256;

/// What a probe found, as it is printed.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether a guest answered in time.
    pub ok: bool,
    /// Program of the VMM.
    pub vmm: String,
    /// From power-on to the guest's answer, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why no guest answered.
#[derive(Debug, Error)]
enum ProbeError {
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error("cannot make a directory for the probe")]
    Directory(#[source] std::io::Error),
    #[error("cannot make the probe guest's disk")]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    BootParam(#[from] fuse_wire_guest::boot::BootParamError),
    #[error(transparent)]
    Vmm(#[from] VmmError),
    #[error("cannot watch the VMM")]
    Watch(#[source] std::io::Error),
    #[error("the probe guest's channel does not work")]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Ready(#[from] ready::ReadyError),
    #[error("the probe was interrupted")]
    Interrupted,
    #[error("the guest did not answer within {} s; the end of its log: {log}", .limit.as_secs())]
    Timeout { limit: Duration, log: String },
}

/// Boots a guest with `vmm` and waits up to `limit` for its answer.
pub async fn probe(config: &Config, vmm: &dyn Vmm, limit: Duration) -> Report {
    let mut report = Report {
        ok: false,
        vmm: config.paths.vmm.display().to_string(),
        boot_ms: None,
        reason: None,
    };
    match run(config, vmm, limit).await {
        Ok(took) => {
            report.ok = true;
            report.boot_ms = Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        }
        Err(error) => report.reason = Some(chain(&error)),
    }
    report
}

async fn run(config: &Config, vmm: &dyn Vmm, limit: Duration) -> Result<Duration, ProbeError> {
    preflight::machine(config)?;
    let mkfs = preflight::mkfs()?;
    let name = format!("probe-{}", std::process::id());
    let dir = std::env::temp_dir().join(format!("fuse-{name}"));
    std::fs::create_dir(&dir).map_err(ProbeError::Directory)?;
    let result = in_dir(config, vmm, &dir, &name, mkfs, limit).await;
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::warn!(dir = %dir.display(), %error, "the probe's directory stays");
    }
    result
}

async fn in_dir(
    config: &Config,
    vmm: &dyn Vmm,
    dir: &Path,
    vm_id: &str,
    mkfs: std::path::PathBuf,
    limit: Duration,
) -> Result<Duration, ProbeError> {
    let params = BootParams {
        vm_id: vm_id.into(),
        hostname: vm_id.into(),
        network: None,
    };
    let overlay = dir.join("overlay.img");
    Overlays::new(dir.join("templates"), mkfs)?.create(&overlay, 1)?;
    let spec = MachineSpec {
        vm_id: vm_id.to_owned(),
        cpus: 1,
        memory_mib: MEMORY_MIB,
        boot: BootSource {
            kernel: config.paths.kernel.clone(),
            initrd: config.paths.initrd.clone(),
            cmdline: format!("{KERNEL_ARGS} {}", params.to_cmdline()?),
        },
        base: config.paths.base.clone(),
        overlay,
        nic: None,
        log: dir.join("vmm.log"),
        huge_pages: false,
        devices: Vec::new(),
        number: 0,
        sockets: vmm.sockets(vm_id, dir),
        group: Group::default(),
    };
    let result = boot(vmm, &spec, limit).await;
    for file in vmm.socket_files(&spec.sockets) {
        let _gone = std::fs::remove_file(file);
    }
    result
}

async fn boot(vmm: &dyn Vmm, spec: &MachineSpec, limit: Duration) -> Result<Duration, ProbeError> {
    let ended = || VmmError::Ended {
        during: "the probe",
        log: log_tail(&spec.log),
    };
    let process = Process::find(vmm.spawn(spec)?)
        .map_err(ProbeError::Watch)?
        .ok_or_else(ended)?;
    let answer = async {
        vmm.open(spec, &process).await?;
        vmm.configure(spec, &process).await?;
        let transport = vmm.transport(&spec.sockets);
        let mut listener = transport.listen(READY_PORT).await?;
        let begun = Instant::now();
        vmm.boot(spec).await?;
        ready::wait(listener.as_mut(), &spec.vm_id).await?;
        Ok(begun.elapsed())
    };
    let result = tokio::select! {
        result = answer => result,
        () = process.ended() => Err(ended().into()),
        // The VMM is in a session of its own and would outlive a ^C.
        _ = tokio::signal::ctrl_c() => Err(ProbeError::Interrupted),
        () = tokio::time::sleep(limit) => {
            Err(ProbeError::Timeout { limit, log: log_tail(&spec.log) })
        }
    };
    if let Err(error) = process.kill().await {
        tracing::warn!(pid = process.id().pid, %error, "the probe's VMM stays");
    }
    result
}
