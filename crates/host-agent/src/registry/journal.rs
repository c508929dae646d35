//! What has to be undone of a VM.
//!
//! Each step of a bring-up registers what it may leave behind before it runs; undoing goes through
//! the entries in reverse. Every undo succeeds when there is nothing to undo, so the same list
//! serves a failed create, a delete, and the sweep of whatever a killed agent left ([`Journal::all`]).
//! Entries whose undo fails stay, so that a repeat goes on where it stopped.

use std::sync::Arc;

use super::error::UndoError;
use super::host::Host;
use super::meta::Meta;
use crate::fail_point::place;
use crate::vmm::process::{Process, ProcessId, with_argument};

/// A thing that a VM may own on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undo {
    /// Its state directory, disk and log included.
    Directory,
    /// Its devices.
    Gpus,
    /// Its sockets.
    Sockets,
    /// Its device.
    Tap,
    /// Its packet rules.
    Rules,
    /// Its control group, with whatever the VMM left in it.
    Group,
    /// Its VMM.
    Process,
}

impl Undo {
    fn name(self) -> &'static str {
        match self {
            Self::Directory => "undo directory",
            Self::Sockets => "undo sockets",
            Self::Tap => "undo tap",
            Self::Rules => "undo rules",
            Self::Group => "undo group",
            Self::Process => "undo process",
            Self::Gpus => "undo gpus",
        }
    }
}

/// Things to undo, in the order they were made.
#[derive(Debug, Default)]
pub(super) struct Journal {
    entries: Vec<Undo>,
}

impl Journal {
    /// Everything that a VM can own.
    pub(super) fn all() -> Self {
        use Undo::{Directory, Gpus, Group, Process, Rules, Sockets, Tap};
        Self {
            entries: vec![Directory, Gpus, Sockets, Tap, Rules, Group, Process],
        }
    }

    /// Registers what the next step may leave behind.
    pub(super) fn will(&mut self, undo: Undo) {
        self.entries.push(undo);
    }

    /// Undoes everything, last first. All entries are tried.
    ///
    /// # Errors
    /// The first that failed; those that failed are still registered.
    pub(super) async fn undo(&mut self, host: &Host, meta: &Meta) -> Result<(), UndoError> {
        let mut failed = Vec::new();
        let mut first = None;
        while let Some(entry) = self.entries.pop() {
            place(entry.name());
            let undone = undo(entry, host, meta).await;
            place(entry.name());
            if let Err(error) = undone {
                failed.push(entry);
                // A VMM that still runs uses the rest: taking it away would not help.
                let stop = entry == Undo::Process;
                first.get_or_insert(error);
                if stop {
                    break;
                }
            }
        }
        failed.reverse();
        self.entries.append(&mut failed);
        first.map_or(Ok(()), Err)
    }
}

async fn undo(entry: Undo, host: &Host, meta: &Meta) -> Result<(), UndoError> {
    match entry {
        Undo::Process => stop_process(host, meta).await,
        Undo::Rules => host
            .firewall
            .clear(meta.slot.index)
            .await
            .map_err(UndoError::Firewall),
        Undo::Tap => host
            .links
            .remove(&meta.slot.tap)
            .await
            .map_err(UndoError::Link),
        Undo::Group => host.empty_group(meta).await,
        Undo::Sockets => remove_sockets(host, &meta.vm_id),
        // Before the directory goes, and with it the word of who had them.
        Undo::Gpus => {
            if !meta.gpus.mdevs.is_empty() {
                host.recarve.run(&meta.vm_id).await;
            }
            Ok(())
        }
        Undo::Directory => {
            let (metas, id) = (Arc::clone(&host.metas), meta.vm_id.clone());
            let removed = tokio::task::spawn_blocking(move || metas.remove(&id)).await;
            removed
                .unwrap_or_else(|lost| Err(std::io::Error::other(lost)))
                .map_err(|source| {
                    let path = host.metas.dir(&meta.vm_id).display().to_string();
                    UndoError::Files { path, source }
                })
        }
    }
}

/// Ends the VM's VMM: the one that the meta names, else whatever serves its control socket.
pub(super) async fn stop_process(host: &Host, meta: &Meta) -> Result<(), UndoError> {
    let candidates: Vec<ProcessId> = match meta.process {
        Some(id) => vec![id],
        // The agent was killed after it started the VMM and before it wrote the pid down.
        None => {
            let sockets = host.vmm.sockets(&meta.vm_id, &host.metas.dir(&meta.vm_id));
            let mark = host.vmm.mark(&sockets);
            tokio::task::spawn_blocking(move || with_argument(&mark))
                .await
                .unwrap_or_default()
        }
    };
    for id in candidates {
        let failed = |source| UndoError::Process {
            pid: id.pid,
            source,
        };
        if let Some(process) = Process::find(id).map_err(failed)? {
            process.kill().await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Removes the VM's sockets, and the directory that its driver keeps for it.
pub(super) fn remove_sockets(host: &Host, vm_id: &str) -> Result<(), UndoError> {
    let sockets = host.vmm.sockets(vm_id, &host.metas.dir(vm_id));
    let files = host.vmm.socket_files(&sockets).into_iter();
    let files = files.map(|path| (std::fs::remove_file(&path), path));
    let home = host.vmm.home(vm_id).into_iter();
    let home = home.map(|path| (std::fs::remove_dir_all(&path), path));
    for (removed, path) in files.chain(home) {
        match removed {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(UndoError::Files {
                    path: path.display().to_string(),
                    source,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where tests make a bring-up fail.
#[cfg(test)]
pub(super) type Faults = std::sync::Mutex<Option<(super::bring_up::Step, When)>>;

/// Before a step's work, or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}
