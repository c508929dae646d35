//! Reads the certificate and key of a TLS listener.

use std::sync::Arc;

use anyhow::Context as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio_rustls::rustls::ServerConfig;

use crate::config::TlsFiles;

/// Loads both files.
///
/// # Errors
/// A file cannot be read, is not PEM, or the key does not belong to the certificate.
pub fn load(files: &TlsFiles) -> anyhow::Result<Arc<ServerConfig>> {
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("ORCH_TLS_CERT: cannot read {}", files.certificate))?;
    anyhow::ensure!(
        !certificates.is_empty(),
        "ORCH_TLS_CERT: {} holds no certificate",
        files.certificate
    );
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("ORCH_TLS_KEY: cannot read {}", files.key))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .context("ORCH_TLS_CERT and ORCH_TLS_KEY do not belong together")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
