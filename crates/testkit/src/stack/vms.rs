//! Environments of a stack, and their traces on the host.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::parts::Stack;
use crate::guest::Guest;
use crate::leftovers;

/// Guests that boot at the same time, over all stacks of this process: more make each other late on two cores.
static BOOTS: Semaphore = Semaphore::const_new(2);

/// What the agent recorded about one VM: enough to look for its traces later.
#[derive(Debug, Clone)]
pub struct VmRecord {
    /// VM id.
    pub id: String,
    /// Host interface.
    pub tap: String,
    /// Address in the guest.
    pub guest_ip: String,
    /// Host port of the guest agent.
    pub host_port: u64,
    /// Process of the VMM.
    pub pid: u32,
}

/// Waits until `count` more guests may boot. Hold the permit until they have.
///
/// # Errors
/// Never in practice: the semaphore is not closed.
pub async fn boot_permit(count: u32) -> Result<SemaphorePermit<'static>> {
    Ok(BOOTS.acquire_many(count).await?)
}

impl Stack {
    /// Creates an environment through the API and expects it to run.
    ///
    /// # Errors
    /// On any answer but 201.
    pub async fn create(&self, body: &Value) -> Result<Guest> {
        let object = self
            .api()?
            .post("/v1/environments", body)
            .await?
            .expect(201)?
            .json()?;
        ensure!(object["state"] == "running", "created but {object}");
        Guest::new(object, self.api()?, self.agent_api()?)
    }

    /// A small environment for task `task`; waits for its turn to boot.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn boot(&self, task: &str) -> Result<Guest> {
        let _turn = boot_permit(1).await?;
        self.create(&json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 256}}))
            .await
    }

    /// The environment `id`, created by other means.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn guest(&self, id: &str) -> Result<Guest> {
        let object = self
            .api()?
            .get(&format!("/v1/environments/{id}"))
            .await?
            .expect(200)?
            .json()?;
        Guest::new(object, self.api()?, self.agent_api()?)
    }

    /// What the agent keeps about VM `id`.
    ///
    /// # Errors
    /// When it keeps nothing.
    pub fn record(&self, id: &str) -> Result<VmRecord> {
        let path = self
            .fc_dir()
            .join("agent-state/vms")
            .join(id)
            .join("meta.json");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let meta: Value =
            serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        let text = |name: &str| {
            meta[name]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("{name} in {meta}"))
        };
        let number = |name: &str| {
            meta[name]
                .as_u64()
                .with_context(|| format!("{name} in {meta}"))
        };
        Ok(VmRecord {
            id: id.to_owned(),
            tap: text("tap")?,
            guest_ip: text("guest_ip")?,
            host_port: number("host_port")?,
            pid: u32::try_from(number("pid")?)?,
        })
    }

    /// Ids of the VMs that the agent lists.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn vm_ids(&self) -> Result<Vec<String>> {
        let list = self.agent_api()?.get("/v1/vm").await?.expect(200)?.json()?;
        let vms = list["vms"]
            .as_array()
            .with_context(|| format!("no vms in {list}"))?;
        Ok(vms
            .iter()
            .filter_map(|vm| vm["vm_id"].as_str().map(str::to_owned))
            .collect())
    }

    /// Fails when anything of the destroyed VM is still on the machine: process, tap, nft element, file, mount, control group.
    ///
    /// # Errors
    /// Lists what is left.
    pub fn expect_gone(&self, vm: &VmRecord) -> Result<()> {
        let mut left = self.traces(&vm.id);
        if leftovers::interfaces(&vm.tap).contains(&vm.tap) {
            left.push(format!("tap {}", vm.tap));
        }
        let table = leftovers::nft_table(&self.slot.nft_table()).unwrap_or_default();
        let words = |text: &str| {
            text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for trace in [&vm.guest_ip, &vm.host_port.to_string(), &vm.tap] {
            if words(&table).contains(trace) {
                left.push(format!("{trace} in the nftables table:\n{table}"));
            }
        }
        ensure!(
            left.is_empty(),
            "{} is gone but left:\n{}",
            vm.id,
            left.join("\n")
        );
        Ok(())
    }

    /// Processes, files, mounts and control groups that carry the name `id`.
    #[must_use]
    pub fn traces(&self, id: &str) -> Vec<String> {
        let dir = format!("{}/", self.dir().display());
        let processes = leftovers::processes_about(id)
            .into_iter()
            .filter(|p| p.cmdline.contains(&dir));
        let mut left: Vec<String> = processes
            .map(|p| format!("process {} {}", p.pid, p.cmdline))
            .collect();
        left.extend(
            leftovers::files_about(&self.fc_dir(), id)
                .into_iter()
                .map(|f| format!("file {f}")),
        );
        left.extend(
            leftovers::files_about(&self.socket_dir(), id)
                .into_iter()
                .map(|f| format!("file {f}")),
        );
        left.extend(
            leftovers::mounts(&self.dir())
                .into_iter()
                .filter(|m| m.contains(id))
                .map(|m| format!("mount {m}")),
        );
        let group = format!("/vm.{id}");
        left.extend(
            leftovers::vm_groups(&self.dir())
                .into_iter()
                .filter(|g| g.ends_with(&group))
                .map(|g| format!("control group {g}")),
        );
        left
    }
}
