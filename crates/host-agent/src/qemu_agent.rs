//! `qemu-agent`: the host agent of a machine that gives GPUs to its guests.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use fuse_host_agent::config::{AcceleratorChoice, Backend, Config, QEMU, QemuSettings};
use fuse_host_agent::program::{self, Program, Purpose};
use fuse_host_agent::vmm::qemu::{Options, Qemu, accel};
use fuse_host_agent::vmm::{Vmm, sockets};
use fuse_qemu::Accelerator;

fn main() -> ExitCode {
    program::main(&QemuAgent)
}

struct QemuAgent;

#[async_trait]
impl Program for QemuAgent {
    fn backend(&self) -> Backend {
        QEMU
    }

    fn about(&self) -> &'static str {
        "Host agent for machines whose GPUs guests are given"
    }

    async fn driver(
        &self,
        config: &Config,
        purpose: Purpose,
    ) -> Result<Arc<dyn Vmm>, Box<dyn Error + Send + Sync>> {
        let sockets = sockets::prepare_dir(&config.paths.sockets, config.backend.prefix)?;
        let settings = config
            .qemu
            .as_ref()
            .ok_or("these are another agent's settings")?;
        let options = Options {
            accelerator: accelerator(config, settings, purpose).await,
            firmware: settings.firmware.clone(),
            run_as: settings.run_as,
        };
        Ok(Arc::new(Qemu::new(
            config.paths.vmm.clone(),
            sockets,
            options,
        )))
    }
}

async fn accelerator(config: &Config, settings: &QemuSettings, purpose: Purpose) -> Accelerator {
    match (purpose, settings.accelerator) {
        (Purpose::Serve, _) => accel::choose(config, settings).await,
        // A probe shows what happens with KVM where there is any; it does not ask another one first. Where
        // the agent's has failed already, guests are emulated.
        (_, AcceleratorChoice::Auto)
            if accel::can_open_kvm() && accel::verdict_of_this_boot(config) != Some(false) =>
        {
            Accelerator::Kvm
        }
        (_, AcceleratorChoice::Kvm) => Accelerator::Kvm,
        (_, AcceleratorChoice::Auto | AcceleratorChoice::Tcg) => Accelerator::Tcg,
    }
}
