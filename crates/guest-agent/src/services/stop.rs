//! Stops services in the order that their needs ask for.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::plan::Plan;
use super::podman::Podman;
use super::{MANIFEST, SOCKET};

/// Longest time that one container gets to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks all containers of services to stop, and ends those that do not. Nothing to do where podman does not serve.
/// What goes wrong is told, and is no reason not to go on.
pub(crate) fn stop(deadline: Instant) -> Vec<String> {
    if !Path::new(SOCKET).exists() {
        return Vec::new();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(all(&Podman::at(SOCKET), deadline)),
        Err(error) => vec![error.to_string()],
    }
}

async fn all(podman: &Podman, deadline: Instant) -> Vec<String> {
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
        let of_group = listed.iter().filter(|container| {
            container
                .service()
                .is_some_and(|name| group.contains(&name))
        });
        let stops = of_group.map(|container| podman.stop(&container.id, patience));
        let outcomes = join_all(stops).await;
        failed.extend(outcomes.into_iter().filter_map(|outcome| {
            let error = outcome.err()?;
            Some(error.to_string())
        }));
    }
    failed
}
