//! Stops services in the order that their needs ask for.
//!
//! A container has stopped when its main process has ended; what podman does after that, taking networks and mounts down,
//! matters to nobody in a guest that is drained, and is not waited for.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::plan::Plan;
use super::podman::{Listed, Podman};
use super::{GROUP, MANIFEST, SOCKET};
use crate::sys;

/// Longest time that one container gets to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long podman may take to end one that did not.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// Asks all containers of services to stop, and has those ended that do not; then ends what kept them. Nothing to do
/// where podman does not serve. What goes wrong is told.
pub(crate) fn stop(deadline: Instant) -> Vec<String> {
    if !Path::new(SOCKET).exists() {
        return Vec::new();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let failed = match runtime {
        Ok(runtime) => runtime.block_on(async {
            let all = all(Podman::at(SOCKET), deadline);
            let outcome = tokio::time::timeout_at(deadline.into(), all).await;
            outcome.unwrap_or_else(|_| vec!["the time for it was over".to_owned()])
        }),
        Err(error) => vec![error.to_string()],
    };
    if failed.is_empty() {
        // No containers are left in it. Without it there was nothing to end.
        let _no_group = std::fs::write(Path::new(GROUP).join("cgroup.kill"), "1");
    }
    failed
}

async fn all(podman: Podman, deadline: Instant) -> Vec<String> {
    // Without a manifest that can be read there is no order to keep.
    let plan = Plan::read(Path::new(MANIFEST)).unwrap_or_default();
    let listed = match podman.list(true).await {
        Ok(listed) => listed,
        Err(error) => return vec![error.to_string()],
    };
    let mut failed = Vec::new();
    let order = plan.stop_order();
    let groups = order.len();
    for (done, group) in order.into_iter().enumerate() {
        // Everybody gets a fair part of the time that is left.
        let left = deadline.saturating_duration_since(Instant::now());
        let rest = u32::try_from(groups - done).unwrap_or(u32::MAX);
        let patience = PATIENCE.min(left / rest.max(1));
        let of_group = listed
            .iter()
            .filter(|it| it.service().is_some_and(|name| group.contains(&name)));
        let stops = of_group.map(|container| one(&podman, container, patience));
        failed.extend(join_all(stops).await.into_iter().filter_map(Result::err));
    }
    failed
}

/// Returns when the main process of a container has ended.
async fn one(podman: &Podman, container: &Listed, patience: Duration) -> Result<(), String> {
    let name = container.service().unwrap_or_default();
    let failed = |why: &str| format!("service {name}: {why}");
    let shown = podman.inspect(&container.id).await;
    let pid = shown.map_err(|e| failed(&e.to_string()))?.state.pid;
    let Some(pid) = Pid::from_raw(pid) else {
        // It does not run.
        return Ok(());
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::NONBLOCK) else {
        // It has ended since.
        return Ok(());
    };
    let process = sys::watch_fd(process).map_err(|e| failed(&e.to_string()))?;
    let ended = async { process.readable().await.map(drop) };
    let asked = async {
        // Its answer comes when everything is taken down, or never, if podman has lost the container.
        let answer = podman.stop(&container.id, patience).await;
        tokio::time::sleep(KILLED_WITHIN).await;
        answer
    };
    tokio::select! {
        biased;
        gone = ended => gone.map_err(|e| failed(&e.to_string())),
        answer = asked => {
            Err(failed(&answer.err().map_or("it goes on".to_owned(), |e| e.to_string())))
        }
    }
}
