//! Starting the surface and publishing ports.

use super::named;
use crate::registry::{Registry, SurfaceError};
use crate::report::chain;
use crate::testing::{Bench, in_netns, run};
use crate::vmm::fake::Behaviour;
use fuse_wire_host::StartAgentRequest;
use fuse_wire_host::start_agent::{Expose, Protocol};

fn request(expose: Vec<Expose>) -> StartAgentRequest {
    StartAgentRequest {
        manifest_path: "/fuse/manifest.json".into(),
        secrets_path: "/fuse/secrets.json".into(),
        auth_token: Some("s3cret".into()),
        expose,
        ..StartAgentRequest::default()
    }
}

fn port(name: &str, port: u16, protocol: Protocol) -> Expose {
    Expose {
        port,
        name: name.into(),
        protocol,
    }
}

fn rules() -> String {
    run("nft", &["list", "table", "inet", "fuse"])
}

#[test]
fn publishing_is_idempotent_and_outlives_the_agent() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let ports = vec![
            port("web", 80, Protocol::Tcp),
            port("dns", 53, Protocol::Udp),
        ];
        let first = registry
            .start_agent("vm", request(ports.clone()))
            .await
            .unwrap();
        let again = registry.start_agent("vm", request(ports)).await.unwrap();
        assert_eq!(first, again);
        assert_eq!(
            first.endpoints[0].url,
            format!("127.0.0.1:{}", first.endpoints[0].host_port)
        );
        let surface = &bench.vmm.told().surfaces[0];
        assert_eq!(surface.auth_token_file.as_deref(), Some("/fuse/auth-token"));
        assert_eq!(
            (surface.listen.as_str(), surface.vm_id.as_str()),
            ("0.0.0.0:9550", "vm")
        );
        let wanted = [
            "19551 : 10.200.1.2 . 9550".to_owned(),
            format!("{} : 10.200.1.2 . 80", first.endpoints[0].host_port),
            format!("{} : 10.200.1.2 . 53", first.endpoints[1].host_port),
        ];
        for element in &wanted {
            assert!(rules().contains(element), "{element} in {}", rules());
        }
        // Without ports the published ones stay.
        let none = registry
            .start_agent("vm", request(Vec::new()))
            .await
            .unwrap();
        assert!(none.endpoints.is_empty());
        registry.shut_down().await;
        drop(registry);
        run("nft", &["flush", "ruleset"]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        for element in &wanted {
            assert!(rules().contains(element), "{element} in {}", rules());
        }
        registry.create(named("b")).await.unwrap();
        let other = registry
            .start_agent("b", request(vec![port("web", 80, Protocol::Tcp)]))
            .await;
        assert_ne!(
            other.unwrap().endpoints[0].host_port,
            first.endpoints[0].host_port
        );
        registry.delete("b").await.unwrap();
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_surface_that_does_not_start_publishes_nothing() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        bench.vmm.behave(Behaviour::NoSurface);
        registry.create(named("vm")).await.unwrap();
        let ports = vec![port("web", 80, Protocol::Tcp)];
        let error = registry
            .start_agent("vm", request(ports))
            .await
            .unwrap_err();
        assert!(
            chain(&error).contains("certificate does not parse"),
            "{error:?}"
        );
        assert!(!chain(&error).contains("s3cret"));
        assert!(!rules().contains("10.200.1.2 . 9550"), "{}", rules());
        registry.delete("vm").await.unwrap();
    });
}

#[test]
fn a_range_without_a_free_port_is_named() {
    in_netns(|| async {
        let bench = Bench::with(&[("FUSE_EXPOSE_PORT_RANGE", "20000-20001")]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        // One of the two is somebody else's.
        let _other = std::net::TcpListener::bind("0.0.0.0:20000").unwrap();
        let one = registry
            .start_agent("vm", request(vec![port("a", 1, Protocol::Tcp)]))
            .await;
        assert_eq!(one.unwrap().endpoints[0].host_port, 20001);
        let two = registry
            .start_agent("vm", request(vec![port("b", 2, Protocol::Tcp)]))
            .await;
        let error = two.unwrap_err();
        assert!(
            matches!(
                error,
                SurfaceError::NoPort {
                    first: 20000,
                    last: 20001
                }
            ),
            "{error:?}"
        );
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}
