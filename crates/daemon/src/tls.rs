//! The certificate and key of a TLS listener.

use std::{path::PathBuf, sync::Arc};

use rustls::ServerConfig;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};
use thiserror::Error;

/// The two PEM files, each under the variable that named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, the listener's own first.
    pub certificate: Named,
    /// Private key.
    pub key: Named,
}

/// A file, and which variable it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The variable.
    pub variable: String,
    /// The file.
    pub file: PathBuf,
}

/// Files that no listener can be made of.
#[derive(Debug, Error)]
pub enum TlsError {
    /// Absent, unreadable or not PEM.
    #[error("{}: cannot read {}", .0.variable, .0.file.display())]
    Unreadable(Named, #[source] pem::Error),
    /// PEM without a certificate.
    #[error("{}: {} holds no certificate", .0.variable, .0.file.display())]
    Empty(Named),
    /// Another certificate's key, or one of a kind that is not known.
    #[error("{certificate} and {key} do not belong together")]
    Mismatch {
        /// The variable of the certificate.
        certificate: String,
        /// The variable of the key.
        key: String,
        /// The reason.
        #[source]
        source: Box<rustls::Error>,
    },
}

/// One of the two was named and the other one not.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{unset}: must be set together with {set}")]
pub struct OneOfTwo {
    /// The variable that is not set.
    pub unset: String,
    /// The one that is.
    pub set: String,
}

impl TlsFiles {
    /// The files of two variables; both are set or none.
    ///
    /// # Errors
    /// One is not set.
    pub fn named(
        (certificate, chain): (&str, Option<String>),
        (key, private): (&str, Option<String>),
    ) -> Result<Option<Self>, OneOfTwo> {
        let lonely = |unset: &str, set: &str| OneOfTwo {
            unset: unset.to_owned(),
            set: set.to_owned(),
        };
        let named = |variable: &str, file: String| Named {
            variable: variable.to_owned(),
            file: file.into(),
        };
        match (chain, private) {
            (Some(chain), Some(private)) => Ok(Some(Self {
                certificate: named(certificate, chain),
                key: named(key, private),
            })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(lonely(key, certificate)),
            (None, Some(_)) => Err(lonely(certificate, key)),
        }
    }

    /// Reads both. The process needs a default crypto provider before.
    ///
    /// # Errors
    /// A file cannot be read, is not PEM, or the key does not belong to the certificate.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let unreadable = |of: &Named| {
            let of = of.clone();
            move |error| TlsError::Unreadable(of, error)
        };
        let chain = CertificateDer::pem_file_iter(&self.certificate.file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(unreadable(&self.certificate))?;
        if chain.is_empty() {
            return Err(TlsError::Empty(self.certificate.clone()));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key.file).map_err(unreadable(&self.key))?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|source| TlsError::Mismatch {
                certificate: self.certificate.variable.clone(),
                key: self.key.variable.clone(),
                source: Box::new(source),
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
