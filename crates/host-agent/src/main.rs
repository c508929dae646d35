//! `fc-agent`: the host agent of a machine that runs Firecracker.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use fuse_host_agent::config::{Backend, Config, FIRECRACKER};
use fuse_host_agent::program::{self, Program, Purpose};
use fuse_host_agent::vmm::firecracker::Firecracker;
use fuse_host_agent::vmm::{Vmm, sockets};

fn main() -> ExitCode {
    program::main(&FcAgent)
}

struct FcAgent;

#[async_trait]
impl Program for FcAgent {
    fn backend(&self) -> Backend {
        FIRECRACKER
    }

    fn about(&self) -> &'static str {
        "Host agent for Firecracker machines"
    }

    async fn driver(
        &self,
        config: &Config,
        _: Purpose,
    ) -> Result<Arc<dyn Vmm>, Box<dyn Error + Send + Sync>> {
        sockets::prepare_dir(&config.paths.sockets, config.backend.prefix)?;
        Ok(Arc::new(Firecracker::new(
            config.paths.vmm.clone(),
            config.paths.sockets.clone(),
            config.vms.memory_limit,
        )))
    }
}
