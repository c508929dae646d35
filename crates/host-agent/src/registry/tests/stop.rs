//! Ending all VMs while no agent runs.

use std::sync::Arc;

use super::named;
use crate::registry::{HostError, Registry, StopError, stop_all};
use crate::testing::{Bench, in_netns, run};
use crate::vmm::Vmm;
use fuse_wire_host::VmState;

#[test]
fn everything_but_files_goes_and_the_next_agent_boots_again() {
    in_netns(|| async {
        let bench = Bench::new();
        let vmm = Arc::clone(&bench.vmm) as Arc<dyn Vmm>;
        let nft = bench.parts().nft;
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("a")).await.unwrap();
        let busy = stop_all(&bench.config, &vmm, &nft).await.unwrap_err();
        assert!(
            matches!(busy, StopError::State(HostError::Locked { .. })),
            "{busy:?}"
        );
        registry.shut_down().await;
        drop(registry);
        assert_eq!(stop_all(&bench.config, &vmm, &nft).await.unwrap(), 1);
        assert_eq!(bench.vmm.told().power_offs, 1);
        assert!(bench.vmm.processes().is_empty());
        assert!(!run("ip", &["-o", "link"]).contains("fcv"));
        assert!(!run("nft", &["list", "tables"]).contains("fuse"));
        assert!(bench.vm_dir("a").join("overlay.img").exists());
        assert_eq!(stop_all(&bench.config, &vmm, &nft).await.unwrap(), 0);
        let registry = Registry::start(bench.parts()).await.unwrap();
        while registry.get("a").unwrap().state != Some(VmState::Running) {
            tokio::task::yield_now().await;
        }
        registry.delete("a").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}
