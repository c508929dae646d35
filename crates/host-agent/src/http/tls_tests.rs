//! A listener with a certificate, and what each kind of caller is told.

use std::path::Path;
use std::time::Duration;

use axum::{Json, Router, routing::get};
use fuse_daemon::tls::TlsFiles;
use fuse_wire_host::{AgentRoots, AgentToken, AgentUrl, HostClient, HostError, HostTransport};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::server;

/// A listener on the loopback, with a certificate of the files or without.
struct Listener {
    port: u16,
    shutdown: CancellationToken,
    serving: TaskTracker,
}

impl Listener {
    async fn start(files: Option<&TlsFiles>) -> Self {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let tls = files.map(|files| TlsAcceptor::from(files.load().unwrap()));
        let listener = server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let healthy = get(|| async { Json(json!({"ok": true, "app_name": "fc-agent"})) });
        let router = Router::new().route("/healthz", healthy);
        let (shutdown, serving) = (CancellationToken::new(), TaskTracker::new());
        let idle = Duration::from_secs(60);
        serving.spawn(server::serve(
            (listener, tls),
            router,
            idle,
            shutdown.clone(),
        ));
        serving.close();
        Self {
            port,
            shutdown,
            serving,
        }
    }

    /// What a caller gets who trusts these.
    async fn asked(&self, scheme: &str, host: &str, roots: &AgentRoots) -> Result<(), String> {
        let url = AgentUrl::parse(&format!("{scheme}://{host}:{}", self.port)).unwrap();
        let transport = HostTransport::trusting(roots).unwrap();
        let client = HostClient::new(transport, url, AgentToken::new("t"));
        let answer = client.health().await;
        if let Err(HostError::Unreachable { .. }) = &answer {
            assert!(answer.as_ref().unwrap_err().is_retryable());
        }
        answer.map(drop).map_err(|error| error.to_string())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.wait().await;
    }
}

fn certificate(dir: &Path, name: &str) -> TlsFiles {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let at = |end: &str| dir.join(format!("{name}.{end}")).display().to_string();
    std::fs::write(at("crt"), cert.pem()).unwrap();
    std::fs::write(at("key"), signing_key.serialize_pem()).unwrap();
    TlsFiles::named(("CERT", Some(at("crt"))), ("KEY", Some(at("key"))))
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn those_who_trust_the_certificate_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (
        certificate(dir.path(), "ours"),
        certificate(dir.path(), "other"),
    );
    let trusted = AgentRoots::read(&ours.certificate.file).unwrap();
    let listener = Listener::start(Some(&ours)).await;
    listener
        .asked("https", "localhost", &trusted)
        .await
        .unwrap();

    let strangers = [
        (
            "localhost",
            AgentRoots::read(&other.certificate.file).unwrap(),
        ),
        ("localhost", AgentRoots::default()),
        // Trusted, and of somebody else.
        ("127.0.0.1", trusted.clone()),
    ];
    for (host, roots) in &strangers {
        let told = listener.asked("https", host, roots).await.unwrap_err();
        assert!(told.contains("certificate is not trusted"), "{told}");
        assert!(told.contains("ORCH_AGENT_CA"), "{told}");
    }
    listener.stop().await;
}

#[tokio::test]
async fn who_speaks_the_wrong_way_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let ours = certificate(dir.path(), "ours");
    let trusted = AgentRoots::read(&ours.certificate.file).unwrap();
    let (tls, clear) = (
        Listener::start(Some(&ours)).await,
        Listener::start(None).await,
    );
    let told = tls.asked("http", "localhost", &trusted).await.unwrap_err();
    assert!(
        told.contains("this agent speaks TLS: its address begins with https:"),
        "{told}"
    );
    let told = clear
        .asked("https", "localhost", &trusted)
        .await
        .unwrap_err();
    assert!(told.contains("it speaks no TLS"), "{told}");
    clear.asked("http", "localhost", &trusted).await.unwrap();
    tls.stop().await;
    clear.stop().await;
}

/// A minute of idleness is a connection's, not the shutdown's.
#[tokio::test]
async fn who_says_nothing_does_not_hold_up_the_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listener::start(Some(&certificate(dir.path(), "ours"))).await;
    let mut silent = TcpStream::connect(("localhost", listener.port))
        .await
        .unwrap();
    // Accepted in turn: when this one was answered, that one is waited for.
    listener
        .asked("http", "localhost", &AgentRoots::default())
        .await
        .unwrap_err();
    listener.shutdown.cancel();
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "it was left");
    listener.stop().await;
}

#[test]
fn half_a_certificate_and_files_that_are_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let (ours, other) = (
        certificate(dir.path(), "ours"),
        certificate(dir.path(), "other"),
    );
    let half = TlsFiles::named(("CERT", Some("a".to_owned())), ("KEY", None)).unwrap_err();
    assert_eq!(half.to_string(), "KEY: must be set together with CERT");
    let mixed = TlsFiles {
        certificate: ours.certificate.clone(),
        key: other.key,
    };
    let swapped = TlsFiles {
        certificate: ours.key.clone(),
        key: ours.key.clone(),
    };
    for (files, why) in [
        (mixed, "CERT and KEY do not belong together"),
        (swapped, "holds no certificate"),
    ] {
        let error = files.load().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let why = AgentRoots::read(&ours.key.file).unwrap_err().to_string();
    assert!(why.contains("holds no certificate"), "{why}");
    assert!(AgentRoots::read(&dir.path().join("none")).is_err());
}
