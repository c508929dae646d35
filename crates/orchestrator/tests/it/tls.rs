//! The program with a certificate: handshake, cookies, what speaks no TLS.

use std::{net::SocketAddr, path::Path, sync::Arc};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    ClientConfig, ProtocolVersion, RootCertStore,
    pki_types::{CertificateDer, ServerName},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::program::{Program, command};

/// Writes a certificate for `localhost` and its key into `dir`.
fn write_certificate(dir: &Path, prefix: &str) -> (String, String, CertificateDer<'static>) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let at = |name: &str| dir.join(format!("{prefix}-{name}")).display().to_string();
    let (certificate, key) = (at("cert.pem"), at("key.pem"));
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    (certificate, key, cert.der().clone())
}

fn connector(root: Option<CertificateDer<'static>>) -> TlsConnector {
    // An error means that there is one.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(root);
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn connect(program: &Program) -> TcpStream {
    let address: SocketAddr = program
        .base
        .strip_prefix("https://")
        .unwrap()
        .parse()
        .unwrap();
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn a_client_that_trusts_the_certificate_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key, der) = write_certificate(dir.path(), "a");
    let program = Program::start(&[
        ("ORCH_AUTH_TOKEN", "master"),
        ("ORCH_TLS_CERT", &certificate),
        ("ORCH_TLS_KEY", &key),
    ]);
    assert!(
        !program.said().contains("in the clear"),
        "{}",
        program.said()
    );
    let name = ServerName::try_from("localhost").unwrap();

    let mut stream = connector(Some(der))
        .connect(name.clone(), connect(&program).await)
        .await
        .unwrap();
    let session = stream.get_ref().1;
    assert_eq!(session.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
    let login = "POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\nConnection: close\r\n\r\n{\"token\":\"master\"}";
    stream.write_all(login.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let cookie = answer
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("set-cookie"))
        .unwrap();
    assert!(
        cookie.ends_with("; HttpOnly; SameSite=Lax; Secure"),
        "{cookie}"
    );

    // Who does not trust it does not get that far.
    let stranger = connector(None).connect(name, connect(&program).await).await;
    assert!(stranger.is_err());

    // What speaks no TLS is not answered in the clear.
    let mut plain = connect(&program).await;
    plain
        .write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut rest = Vec::new();
    // A reset is a way of closing, too.
    let _outcome = plain.read_to_end(&mut rest).await;
    assert!(
        !String::from_utf8_lossy(&rest).contains("HTTP/1.1"),
        "{rest:?}"
    );
}

#[test]
fn certificates_that_cannot_serve_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key, _) = write_certificate(dir.path(), "a");
    let (_, other_key, _) = write_certificate(dir.path(), "b");
    let junk = dir.path().join("junk.pem").display().to_string();
    std::fs::write(&junk, "junk").unwrap();
    for (cert, key, part) in [
        (&certificate, &other_key, "do not belong together"),
        (&junk, &key, "ORCH_TLS_CERT"),
        (&certificate, &junk, "ORCH_TLS_KEY"),
    ] {
        let env = [
            ("ORCH_TLS_CERT", cert),
            ("ORCH_TLS_KEY", key),
            ("ORCH_LISTEN", &"127.0.0.1:0".to_owned()),
        ];
        let output = command().envs(env).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.lines().last().unwrap().contains(part), "{text}");
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
}
