//! `fc-agent`: the host agent of a machine that runs Firecracker.

use std::error::Error;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use fuse_host_agent::config::{Backend, Config, FIRECRACKER};
use fuse_host_agent::program::{self, Program, Purpose};
use fuse_host_agent::vmm::firecracker::{Firecracker, Jailer};
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
        let sockets = sockets::prepare_dir(&config.paths.sockets, config.backend.prefix)?;
        let vmm = config.paths.vmm.clone();
        let driver = Firecracker::new(vmm, sockets, config.vms.memory_limit);
        let Some(jailer) = config.jailer.clone() else {
            return Ok(Arc::new(driver));
        };
        let mut private = std::fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(&jailer.dir)?;
        let dir = std::fs::canonicalize(&jailer.dir)?;
        Ok(Arc::new(driver.jailed(Jailer { dir, ..jailer })))
    }
}
