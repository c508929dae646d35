//! Ends the guest: everything stopped, everything written.

use std::fs;
use std::time::Duration;

use fuse_wire_guest::control::PowerAction;
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal};
use rustix::system::RebootCommand;

use crate::cgroup::Cgroups;

/// How long processes may take to stop by themselves.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// A mount that belongs to the overlay disk's file system.
const OVERLAY_DISK_MOUNT: &str = "/var/lib/containers";

/// Stops what runs, makes the disk consistent and goes down. Returns only if
/// the kernel refuses.
pub(crate) async fn go_down(action: PowerAction, cgroups: Option<&Cgroups>) {
    tracing::info!(?action, "going down");
    stop_processes(cgroups).await;
    let down = tokio::task::spawn_blocking(move || {
        rustix::fs::sync();
        // With nothing left that writes, this makes the file system clean.
        let read_only = MountFlags::RDONLY;
        if let Err(error) = rustix::mount::mount_remount(OVERLAY_DISK_MOUNT, read_only, c"") {
            tracing::warn!(%error, "the disk is written back but still in use");
        }
        rustix::system::reboot(command(action))
    });
    if let Ok(Err(error)) = down.await {
        tracing::error!(%error, "the kernel does not go down");
    }
}

/// Asks all processes to stop, and ends those that do not.
async fn stop_processes(cgroups: Option<&Cgroups>) {
    let Some(init) = Pid::from_raw(1) else { return };
    if rustix::process::getpid() != init {
        return;
    }
    signal_others(Signal::TERM);
    let deadline = tokio::time::Instant::now() + STOP_PATIENCE;
    let mut check = tokio::time::interval(Duration::from_millis(20));
    while user_processes_left() && tokio::time::Instant::now() < deadline {
        check.tick().await;
    }
    if let Some(Err(error)) = cgroups.map(Cgroups::kill_users) {
        tracing::warn!(%error, "not all processes could be ended as a group");
    }
    signal_others(Signal::KILL);
}

/// Signals every process except this one and the kernel's own.
fn signal_others(signal: Signal) {
    for pid in other_processes() {
        // May have ended meanwhile.
        rustix::process::kill_process(pid, signal).ok();
    }
}

fn user_processes_left() -> bool {
    !other_processes().is_empty()
}

fn other_processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid > 1)
        // Threads of the kernel have no command line, and neither have zombies.
        .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty()))
        .filter_map(Pid::from_raw)
        .collect()
}

fn command(action: PowerAction) -> RebootCommand {
    match action {
        PowerAction::Poweroff if can_power_off() => RebootCommand::PowerOff,
        // A VMM without a power button ends when the guest restarts.
        PowerAction::Poweroff | PowerAction::Reboot => RebootCommand::Restart,
    }
}

/// Whether the machine has ACPI's fixed power hardware. Firecracker has not.
fn can_power_off() -> bool {
    const FLAGS: usize = 112;
    const HARDWARE_REDUCED: u32 = 1 << 20;
    let Ok(table) = fs::read("/sys/firmware/acpi/tables/FACP") else {
        return false;
    };
    let flags = table
        .get(FLAGS..FLAGS + 4)
        .and_then(|bytes| bytes.try_into().ok());
    flags.is_some_and(|bytes| u32::from_le_bytes(bytes) & HARDWARE_REDUCED == 0)
}
