//! Who is told what time it is, and when.

use std::time::Duration;

use super::named;
use super::reattach::kill;
use crate::registry::Registry;
use crate::testing::{Bench, in_netns};
use fuse_wire_host::{SnapshotRequest, VmState};

/// Waits until guests were told so often.
async fn until_told(bench: &Bench, times: usize) {
    let told = async {
        while bench.vmm.told().clocks < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(told.is_ok(), "{} of {times}", bench.vmm.told().clocks);
}

#[test]
fn guests_are_told_the_time_until_they_have_heard_it() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        assert!(bench.vmm.told().clocks >= 1, "when it has booted");

        // After a pause, and the snapshot does not wait for a guest that does not hear.
        let live = || SnapshotRequest {
            live: Some(true),
            ..SnapshotRequest::default()
        };
        let before = bench.vmm.told().clocks;
        let taken = registry.snapshot("vm", live()).await.unwrap();
        assert!(bench.vmm.told().clocks > before, "after a pause");
        bench.vmm.deafen(3);
        let before = bench.vmm.told().clocks;
        registry.snapshot("vm", live()).await.unwrap();
        until_told(&bench, before + 1).await;

        let before = bench.vmm.told().clocks;
        let restored = registry.restore("vm", &taken.snapshot_id).await.unwrap();
        assert_eq!(restored.clock_synced, Some(true));
        assert!(bench.vmm.told().clocks > before, "after a restore");

        // The clock of the host was set.
        registry.create(named("other")).await.unwrap();
        bench.vmm.deafen(1);
        let before = bench.vmm.told().clocks;
        registry.set_clocks().await;
        assert!(bench.vmm.told().clocks >= before + 2, "not all");

        // Nobody knows for how long a guest was paused while there was no agent.
        kill(registry).await;
        let before = bench.vmm.told().clocks;
        bench.vmm.deafen(1);
        let registry = Registry::start(bench.parts()).await.unwrap();
        until_told(&bench, before + 2).await;

        // Who does not run is not told, and not waited for.
        bench.vmm.crash("vm");
        while registry
            .list("")
            .iter()
            .any(|vm| vm.state == Some(VmState::Running))
        {
            tokio::task::yield_now().await;
        }
        let before = bench.vmm.told().clocks;
        registry.set_clocks().await;
        assert_eq!(bench.vmm.told().clocks, before);
        for vm in ["vm", "other"] {
            registry.delete(vm).await.unwrap();
        }
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}
