//! The operator's own certificate authority, for agents that speak TLS.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Signs certificates, and has its own in a file.
pub(crate) struct Authority {
    file: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, whose certificate is in `dir`.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let file = dir.join("authority.pem");
        std::fs::write(&file, params.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(params, key);
        Ok(Self { file, issuer })
    }

    /// Who trusts its certificates is told of this file.
    pub(crate) fn file(&self) -> String {
        self.file.display().to_string()
    }

    /// The variables of an agent whose listener has a certificate for `address`, written into `dir`.
    pub(crate) fn agent_env(&self, address: &str, dir: &Path) -> Result<Vec<(String, String)>> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec![address.to_owned()])?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let at = |name: &str| dir.join(name);
        std::fs::write(at("agent.crt"), certificate.pem())?;
        std::fs::write(at("agent.key"), key.serialize_pem())?;
        let text = |path: PathBuf| path.display().to_string();
        Ok(vec![
            ("FC_AGENT_TLS_CERT".to_owned(), text(at("agent.crt"))),
            ("FC_AGENT_TLS_KEY".to_owned(), text(at("agent.key"))),
            ("FC_AGENT_CA".to_owned(), self.file()),
        ])
    }
}
