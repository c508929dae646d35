//! What VMs print.

use std::io::Write as _;

use super::named;
use crate::registry::{LogError, Registry, VmError};
use crate::testing::{Bench, in_netns};
use crate::vmm::fake::Behaviour;

fn append(bench: &Bench, text: &str) {
    let log = bench.vm_dir("vm").join("fc.log");
    let mut log = std::fs::OpenOptions::new().append(true).open(log).unwrap();
    log.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_console_is_read_and_followed_until_the_vm_goes() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        append(&bench, "login: \n");
        let mut past = registry.console("vm", false).await.unwrap();
        let text = past.next().await.unwrap().unwrap();
        assert_eq!(text, "vmm started\nlogin: \n");
        assert!(past.next().await.unwrap().is_none());

        let mut console = registry.console("vm", true).await.unwrap();
        assert_eq!(console.next().await.unwrap().unwrap(), text);
        {
            let mut next = std::pin::pin!(console.next());
            assert!(futures_util::poll!(&mut next).is_pending());
            append(&bench, "more\n");
            assert_eq!(next.await.unwrap().unwrap(), "more\n");
        }
        // Cut to size: the follower goes on with what comes after that.
        let log = bench.vm_dir("vm").join("fc.log");
        assert!(crate::vmm::process::rotate_log(&log, 4).unwrap());
        append(&bench, "new\n");
        assert_eq!(console.next().await.unwrap().unwrap(), "new\n");
        // A reader gets what was moved away, too.
        let mut past = registry.console("vm", false).await.unwrap();
        assert_eq!(past.next().await.unwrap().unwrap(), "ore\n");
        assert_eq!(past.next().await.unwrap().unwrap(), "new\n");
        let (rest, deleted) = tokio::join!(console.next(), registry.delete("vm"));
        deleted.unwrap();
        assert!(rest.unwrap().is_none());
        let gone = registry.console("vm", true).await.unwrap_err();
        assert!(matches!(gone, LogError::Vm(VmError::NotFound)), "{gone:?}");
    });
}

#[test]
fn a_failed_create_is_remembered_and_nothing_else_of_it_is_left() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        assert!(registry.failed_create("vm").is_err());
        bench.vmm.behave(Behaviour::Refuse);
        registry.create(named("vm")).await.unwrap_err();
        let remembered = registry.failed_create("vm").unwrap();
        assert!(
            remembered.error.contains("no such kernel"),
            "{remembered:?}"
        );
        assert_eq!(remembered.console, "vmm started\n");
        assert!(remembered.timings_ms.steps.contains_key("spawn"));
        assert!(bench.leftovers().is_empty(), "{:?}", bench.leftovers());
        let _time: jiff::Timestamp = remembered.failed_at.parse().unwrap();
    });
}
