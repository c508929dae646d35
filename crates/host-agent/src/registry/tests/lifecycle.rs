//! Using, losing and deleting VMs.

use super::named;
use crate::registry::{DeleteError, LeaseError, Registry, VmError};
use crate::report::chain;
use crate::testing::{Bench, in_netns};
use crate::vmm::fake::Behaviour;
use fuse_wire_host::{ExecRequest, FileUpload, UploadRequest, VmState};

fn exec(cmd: &[&str]) -> ExecRequest {
    let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
    ExecRequest {
        cmd,
        timeout_ms: Some(2500),
        ..ExecRequest::default()
    }
}

#[test]
fn commands_and_files_reach_the_guest() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let done = registry
            .lease("vm")
            .unwrap()
            .exec(exec(&["echo", "a b"]))
            .await
            .unwrap();
        assert_eq!(done.stdout, b"echo a b");
        let file = FileUpload {
            path: "/a".into(),
            content: b"x\0y".to_vec(),
            mode: Some("0600".into()),
        };
        let upload = UploadRequest { files: vec![file] };
        registry.lease("vm").unwrap().upload(upload).await.unwrap();
        let told = bench.vmm.told();
        assert_eq!(told.execs[0].timeout_ms, 2500);
        assert_eq!(told.uploads[0].files[0].content_b64.0, b"x\0y");
        let refused = registry
            .lease("vm")
            .unwrap()
            .exec(exec(&["refuse"]))
            .await
            .unwrap_err();
        assert_eq!(refused.to_string(), "no such directory");
        assert!(matches!(
            registry.lease("other"),
            Err(LeaseError::Vm(VmError::NotFound))
        ));
        registry.delete("vm").await.unwrap();
    });
}

#[test]
fn large_files_travel_alone_and_in_order() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let file = |path: &str, size: usize| FileUpload {
            path: path.into(),
            content: vec![7; size],
            mode: Some("0600".into()),
        };
        let half = 700 * 1024;
        let files = vec![
            file("/a", 1),
            file("/b", half),
            file("/c", half),
            file("/large one", 2 * 1024 * 1024),
            file("/d", 1),
        ];
        registry
            .lease("vm")
            .unwrap()
            .upload(UploadRequest { files })
            .await
            .unwrap();
        let told = bench.vmm.told();
        let paths = |n: usize| -> Vec<_> {
            told.uploads[n]
                .files
                .iter()
                .map(|file| file.path.as_str())
                .collect()
        };
        assert_eq!(paths(0), ["/a", "/b"]);
        assert_eq!(paths(1), ["/c"]);
        assert_eq!(paths(2), ["path=%2Flarge+one&mode=0600"]);
        assert_eq!(paths(3), ["/d"]);
        assert_eq!(
            told.uploads[2].files[0].content_b64.0.len(),
            2 * 1024 * 1024
        );
        registry.delete("vm").await.unwrap();
    });
}

#[test]
fn a_delete_ends_what_runs_in_the_guest() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let lease = registry.lease("vm").unwrap();
        let command = async move { lease.exec(exec(&["forever"])).await };
        let delete = async {
            while bench.vmm.told().execs.is_empty() {
                tokio::task::yield_now().await;
            }
            registry.delete("vm").await
        };
        let (command, delete) = tokio::join!(command, delete);
        delete.unwrap();
        assert!(matches!(command.unwrap_err(), LeaseError::Deleted { .. }));
        assert_eq!(bench.leftovers(), Vec::<String>::new());
        let again = registry.delete("vm").await.unwrap_err();
        assert!(
            matches!(again, DeleteError::Vm(VmError::NotFound)),
            "{again:?}"
        );
    });
}

#[test]
fn a_vmm_that_ends_stops_the_vm_and_says_so() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let lease = registry.lease("vm").unwrap();
        let command = async move { lease.exec(exec(&["forever"])).await };
        let crash = async {
            while bench.vmm.told().execs.is_empty() {
                tokio::task::yield_now().await;
            }
            bench.vmm.crash("vm");
        };
        let (command, ()) = tokio::join!(command, crash);
        let error = command.unwrap_err();
        assert!(matches!(error, LeaseError::Stopped { .. }), "{error:?}");
        assert!(error.to_string().contains("vmm started"), "{error}");
        assert_eq!(registry.get("vm").unwrap().state, Some(VmState::Stopped));
        assert!(matches!(
            registry.lease("vm"),
            Err(LeaseError::Stopped { .. })
        ));
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_vm_can_be_deleted_while_it_boots() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        bench.vmm.behave(Behaviour::Silent);
        let create = registry.create(named("vm"));
        let delete = async {
            while bench.vmm.processes().is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(registry.get("vm").unwrap().state, Some(VmState::Creating));
            assert!(matches!(
                registry.lease("vm"),
                Err(LeaseError::Booting { .. })
            ));
            // Two at once: both are told that it is gone.
            let (one, two) = tokio::join!(registry.delete("vm"), registry.delete("vm"));
            one.unwrap();
            two.unwrap();
        };
        let (create, ()) = tokio::join!(create, delete);
        assert!(chain(&create.unwrap_err()).contains("deleted while it was being created"));
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}
