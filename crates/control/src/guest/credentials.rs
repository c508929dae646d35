//! Credentials of a guest agent: a bearer token and a self-signed certificate,
//! made anew for every environment.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse_model::Redacted;
use rand::Rng as _;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
    SerialNumber, date_time_ymd,
};

/// The certificate is valid from a minute ago, for clocks that disagree.
const CLOCK_SLACK: Duration = Duration::from_secs(60);
/// Life of a certificate.
const VALIDITY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Age at which credentials are renewed: half of the certificate's life.
pub(crate) const RENEW_AFTER: Duration = Duration::from_secs(VALIDITY.as_secs() / 2);

/// What a guest agent is started with.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    /// 64 lowercase hex digits.
    pub(crate) token: Redacted<String>,
    /// PEM `CERTIFICATE`.
    pub(crate) certificate_pem: String,
    /// PEM `EC PRIVATE KEY` (SEC1).
    pub(crate) key_pem: Redacted<String>,
}

/// Credentials could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    /// The certificate could not be made.
    #[error("cannot make a certificate for {vm}")]
    Certificate {
        /// The environment.
        vm: String,
        /// The reason.
        #[source]
        source: rcgen::Error,
    },
    /// The key does not have the form that it is known to have.
    #[error("the generated key of {vm} has an unexpected encoding")]
    KeyEncoding {
        /// The environment.
        vm: String,
    },
}

impl Credentials {
    /// Makes a token, a P-256 key and a certificate whose common name is `vm`.
    ///
    /// # Errors
    /// The certificate cannot be made; both cases are defects.
    pub(crate) fn mint(vm: &str) -> Result<Self, CredentialError> {
        let certificate = |source| CredentialError::Certificate {
            vm: vm.to_owned(),
            source,
        };
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(certificate)?;
        let params = certificate_params(vm);
        let signed = params.self_signed(&key).map_err(certificate)?;
        let sec1 = sec1_from_pkcs8(&key.serialize_der())
            .ok_or_else(|| CredentialError::KeyEncoding { vm: vm.to_owned() })?;
        let mut token = [0u8; 32];
        rand::rng().fill_bytes(&mut token);
        Ok(Self {
            token: Redacted::new(hex::encode(token)),
            certificate_pem: signed.pem(),
            key_pem: Redacted::new(pem("EC PRIVATE KEY", &sec1)),
        })
    }
}

fn certificate_params(vm: &str) -> CertificateParams {
    let mut serial = [0u8; 16];
    rand::rng().fill_bytes(&mut serial);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, vm);
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SLACK);
    params.not_after = epoch + (now + VALIDITY);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names = vec![
        SanType::IpAddress([127, 0, 0, 1].into()),
        SanType::IpAddress([0, 0, 0, 0].into()),
    ];
    params
}

/// PKCS#8 of a P-256 key up to the private scalar, as the key generator writes it:
/// version, algorithm (id-ecPublicKey, prime256v1), then an `ECPrivateKey` of version 1.
const PKCS8_HEAD: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02,
    0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02,
    0x01, 0x01, 0x04, 0x20,
];
/// `[1] BIT STRING` header of the uncompressed public point that follows the scalar.
const PUBLIC_HEAD: [u8; 5] = [0xa1, 0x44, 0x03, 0x42, 0x00];
/// SEC1 `ECPrivateKey` of version 1 up to the scalar.
const SEC1_HEAD: [u8; 7] = [0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
/// `[0]` parameters: the named curve prime256v1, which a lone SEC1 key must carry.
const SEC1_CURVE: [u8; 12] = [
    0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
];
const SCALAR_BYTES: usize = 32;
const POINT_BYTES: usize = 65;

/// Rewrites a P-256 key from PKCS#8 to SEC1; `None` if it is not laid out as expected.
fn sec1_from_pkcs8(pkcs8: &[u8]) -> Option<Vec<u8>> {
    let rest = pkcs8.strip_prefix(&PKCS8_HEAD)?;
    let (scalar, rest) = rest.split_at_checked(SCALAR_BYTES)?;
    let point = rest.strip_prefix(&PUBLIC_HEAD)?;
    if point.len() != POINT_BYTES {
        return None;
    }
    Some([&SEC1_HEAD[..], scalar, &SEC1_CURVE, &PUBLIC_HEAD, point].concat())
}

/// Armour with lines of 64 characters.
fn pem(label: &str, der: &[u8]) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let body = BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
    text
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use super::*;

    /// `None` when the machine has no `openssl`.
    fn openssl(args: &[&str], input: &str) -> Option<String> {
        let mut child = Command::new("openssl")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "openssl {args:?}");
        Some(String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn every_mint_is_new_and_nothing_secret_prints() {
        let (a, b) = (
            Credentials::mint("fuse-a").unwrap(),
            Credentials::mint("fuse-a").unwrap(),
        );
        assert_ne!(a.token.expose(), b.token.expose());
        assert_ne!(a.certificate_pem, b.certificate_pem);
        assert_eq!(a.token.expose().len(), 64);
        let shown = format!("{a:?}");
        assert!(!shown.contains(a.token.expose().as_str()) && !shown.contains("PRIVATE KEY"));
    }

    #[test]
    fn openssl_reads_key_and_certificate() {
        let credentials = Credentials::mint("fuse-a").unwrap();
        let key = credentials.key_pem.expose();
        assert!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        let Some(public) = openssl(&["pkey", "-pubout"], key) else {
            println!("SKIP: no openssl on this machine");
            return;
        };
        let certificate = &credentials.certificate_pem;
        assert_eq!(
            openssl(&["x509", "-noout", "-pubkey"], certificate).unwrap(),
            public
        );
        let text = openssl(&["x509", "-noout", "-text"], certificate).unwrap();
        for part in [
            "CN = fuse-a",
            "Digital Signature, Key Encipherment",
            "TLS Web Server Authentication",
            "IP Address:127.0.0.1, IP Address:0.0.0.0",
        ] {
            assert!(
                text.contains(part) || text.contains(&part.replace(" = ", "=")),
                "{part}: {text}"
            );
        }
    }

    #[test]
    fn another_layout_is_refused() {
        assert_eq!(sec1_from_pkcs8(&[]), None);
        assert_eq!(sec1_from_pkcs8(&PKCS8_HEAD), None);
    }
}
