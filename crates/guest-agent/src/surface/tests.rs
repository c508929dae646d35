//! The public surface over real sockets: access, TLS, rotation, drain.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::credentials::{Access, Credentials, keep_current};
use super::options::{CredentialFiles, Facts};
use super::server::{Served, Server};

struct Surface {
    address: SocketAddr,
    credentials: watch::Receiver<Credentials>,
    stop: CancellationToken,
    served: JoinSet<Served>,
}

/// Nothing is probed.
fn health() -> watch::Receiver<Option<super::probe::Verdict>> {
    watch::channel(None).1
}

async fn surface(files: CredentialFiles) -> Surface {
    let first = Credentials::load(&files).unwrap();
    let credentials = keep_current(&first, files, &TaskTracker::new()).unwrap();
    let facts = Facts {
        vm_id: "vm-1".into(),
        manifest_bytes: 12,
        secret_count: 2,
        gateway: false,
    };
    let server = Server::bind("127.0.0.1:0", facts, credentials.clone(), health())
        .await
        .unwrap();
    let address = server.address().unwrap();
    let stop = CancellationToken::new();
    let mut served = JoinSet::new();
    served.spawn(server.run(stop.clone()));
    Surface {
        address,
        credentials,
        stop,
        served,
    }
}

impl Surface {
    /// Waits until a change of the files has been noticed.
    async fn until(&mut self, seen: impl FnMut(&Credentials) -> bool) {
        self.credentials.wait_for(seen).await.unwrap();
    }

    async fn get(&self, path: &str, token: Option<&str>) -> String {
        let stream = TcpStream::connect(self.address).await.unwrap();
        ask(stream, path, token).await.unwrap()
    }
}

/// Status line, an empty line and the body.
async fn ask<T>(mut stream: T, path: &str, token: Option<&str>) -> io::Result<String>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let auth = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{auth}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    Ok(format!(
        "{} {body}",
        head.lines().next().unwrap_or_default()
    ))
}

fn files(dir: &Path) -> CredentialFiles {
    CredentialFiles {
        token: Some(dir.join("auth-token")),
        tls: Some((dir.join("tls/cert.pem"), dir.join("tls/key.pem"))),
    }
}

/// As an upload does it: whole, under a new inode.
fn put(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, content).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn pair() -> (String, String) {
    let issued = rcgen::generate_simple_self_signed(["guest".to_owned()]).unwrap();
    (issued.cert.pem(), issued.signing_key.serialize_pem())
}

const INFO: &str = r#"{"vm_id":"vm-1","manifest_bytes":12,"secret_count":2,"gateway":false,"tls":"#;

#[tokio::test]
async fn without_a_token_file_everything_is_open() {
    let surface = surface(CredentialFiles::default()).await;
    let health = surface.get("/health", None).await;
    assert_eq!(health, r#"HTTP/1.1 200 OK {"status":"ok","vm_id":"vm-1"}"#);
    assert_eq!(
        surface.get("/v1/info", None).await,
        format!("HTTP/1.1 200 OK {INFO}false}}")
    );
    assert_eq!(
        surface.get("/nothing", None).await,
        "HTTP/1.1 404 Not Found not found"
    );
}

#[tokio::test]
async fn locked_until_the_token_arrives_and_rotation_ends_the_old_one_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = files(dir.path());
    files.tls = None;
    let path = files.token.clone().unwrap();
    let mut surface = surface(files).await;
    let refused = "HTTP/1.1 401 Unauthorized unauthorized";
    assert!(
        surface
            .get("/health", None)
            .await
            .starts_with("HTTP/1.1 200")
    );
    for token in [None, Some(""), Some("one")] {
        assert_eq!(surface.get("/v1/info", token).await, refused);
    }

    put(&path, "one\n");
    surface
        .until(|now| matches!(now.access, Access::Bearer(_)))
        .await;
    assert!(
        surface
            .get("/v1/info", Some("one"))
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(surface.get("/v1/info", Some("on")).await, refused);
    assert_eq!(surface.get("/nothing", None).await, refused);

    put(&path, "two");
    surface
        .until(|now| now.access.admits(Some(b"Bearer two")))
        .await;
    assert_eq!(surface.get("/v1/info", Some("one")).await, refused);
    assert!(
        surface
            .get("/v1/info", Some("two"))
            .await
            .starts_with("HTTP/1.1 200")
    );

    std::fs::remove_file(&path).unwrap();
    surface
        .until(|now| matches!(now.access, Access::Locked))
        .await;
    assert_eq!(surface.get("/v1/info", Some("two")).await, refused);
}

#[tokio::test]
async fn tls_begins_when_the_pair_arrives_and_survives_a_torn_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = files(dir.path());
    files.token = None;
    let (cert_path, key_path) = files.tls.clone().unwrap();
    let mut surface = surface(files).await;
    assert!(
        surface
            .get("/v1/info", None)
            .await
            .ends_with("\"tls\":false}")
    );

    let (cert, key) = pair();
    put(&cert_path, &cert);
    put(&key_path, &key);
    surface.until(|now| now.tls.is_some()).await;
    assert!(over_tls(&surface).await.unwrap().ends_with("\"tls\":true}"));

    let in_use = surface.credentials.borrow_and_update().tls.clone().unwrap();
    let (cert, key) = pair();
    put(&cert_path, &cert);
    surface.credentials.changed().await.unwrap();
    assert!(
        over_tls(&surface).await.unwrap().ends_with("\"tls\":true}"),
        "torn pair in use"
    );
    put(&key_path, &key);
    surface
        .until(|now| {
            now.tls
                .as_ref()
                .is_some_and(|tls| !Arc::ptr_eq(tls, &in_use))
        })
        .await;
    assert!(over_tls(&surface).await.unwrap().ends_with("\"tls\":true}"));
}

#[tokio::test]
async fn a_useless_pair_is_fatal_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path());
    let (cert, key) = files.tls.clone().unwrap();
    put(&cert, "");
    put(&key, "");
    assert!(
        Credentials::load(&files).unwrap().tls.is_none(),
        "empty files are not there yet"
    );
    put(&cert, "not pem");
    put(&key, "not pem");
    assert!(Credentials::load(&files).is_err());
    put(&cert, &pair().0);
    put(&key, &pair().1);
    assert!(
        Credentials::load(&files).is_err(),
        "a certificate and another one's key"
    );
}

#[tokio::test]
async fn a_stop_lets_open_requests_finish_and_takes_no_new_ones() {
    let mut surface = surface(CredentialFiles::default()).await;
    let mut open = TcpStream::connect(surface.address).await.unwrap();
    open.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        .await
        .unwrap();
    // Another request proves that the first connection was taken before the stop.
    surface.get("/health", None).await;
    surface.stop.cancel();
    open.write_all(b"Connection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert_eq!(
        surface.served.join_next().await.unwrap().unwrap(),
        Served::Drained
    );
    assert!(TcpStream::connect(surface.address).await.is_err());
}

async fn over_tls(surface: &Surface) -> io::Result<String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect(surface.address).await?;
    let name = ServerName::try_from("guest").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    ask(stream, "/v1/info", None).await
}

/// As the control plane does: the certificate is self-signed and not verified.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
