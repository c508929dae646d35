//! Asks the public surface of a guest agent whether a set of credentials is in force.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reqwest::StatusCode;
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use super::Credentials;

const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// What the guest agent said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It shows the certificate and takes the token.
    Accepted,
    /// It shows the certificate and does not take the token.
    Refused,
    /// It shows another certificate.
    OtherCertificate,
    /// It cannot be asked from here.
    Unreachable,
}

/// Calls `GET /v1/info` at `address` (`host:port`) with the token, on a connection whose
/// other end proves that it has the certificate's key.
pub(crate) async fn ask_surface(address: &str, credentials: &Credentials) -> Verdict {
    let Ok(pinned) = CertificateDer::from_pem_slice(credentials.certificate_pem.as_bytes()) else {
        return Verdict::Unreachable;
    };
    let mismatch = Arc::new(AtomicBool::new(false));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Pinned {
        certificate: pinned,
        mismatch: mismatch.clone(),
        provider: provider.clone(),
    });
    let Ok(tls) = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| {
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth()
        })
    else {
        return Verdict::Unreachable;
    };
    let Ok(client) = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_LIMIT)
        .timeout(CALL_LIMIT)
        .build()
    else {
        return Verdict::Unreachable;
    };
    let sent = client
        .get(format!("https://{address}/v1/info"))
        .bearer_auth(credentials.token.expose())
        .send()
        .await;
    match sent {
        Ok(answer) => match answer.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Verdict::Refused,
            _ => Verdict::Accepted,
        },
        Err(_) if mismatch.load(Ordering::Relaxed) => Verdict::OtherCertificate,
        Err(e) => {
            tracing::debug!(error = %crate::error::chain(&e), "cannot ask a guest agent");
            Verdict::Unreachable
        }
    }
}

/// Accepts one certificate, whatever it says of names and dates.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    mismatch: Arc<AtomicBool>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        self.mismatch.store(true, Ordering::Relaxed);
        Err(rustls::Error::InvalidCertificate(
            rustls::CertificateError::ApplicationVerificationFailure,
        ))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
