//! How long certificates last.

use jiff::Timestamp;
use x509_parser::pem::parse_x509_pem;

use super::Finding;

/// When a certificate should be renewed, in days.
const RENEW_DAYS: i64 = 14;

/// How long the certificate lasts that `whose` shows; `None` if it is none.
pub(super) fn lasts(
    (check, whose): (&str, &str),
    der: &[u8],
    now: Timestamp,
    renew: &str,
) -> Option<Finding> {
    let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
    let left = parsed.validity().not_after.timestamp() - now.as_second();
    let days = left.div_euclid(86_400);
    Some(if left < 0 {
        let detail = format!("{whose} certificate ended {} days ago", -days);
        Finding::failed(check, detail, renew)
    } else if days < RENEW_DAYS {
        let detail = format!("{whose} certificate ends in {days} days");
        Finding::warning(check, detail, renew)
    } else {
        Finding::ok(check, format!("valid for {days} more days"))
    })
}

/// The first certificate of a PEM file.
pub(super) fn of_pem(text: &[u8]) -> Option<Vec<u8>> {
    let (_, pem) = parse_x509_pem(text).ok()?;
    (pem.label == "CERTIFICATE").then_some(pem.contents)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::super::Status;
    use super::{lasts, of_pem};

    #[test]
    fn one_that_ends_soon_is_named_before_it_ends() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2030, 6, 30);
        let certificate = params.self_signed(&key).unwrap();
        let der = of_pem(certificate.pem().as_bytes()).unwrap();
        assert_eq!(der, certificate.der().to_vec());
        assert_eq!(of_pem(key.serialize_pem().as_bytes()), None);
        let on = |text: &str| {
            let now = text.parse().unwrap();
            lasts(("certificate", "the orchestrator's"), &der, now, "renew").unwrap()
        };
        let shown = |text: &str| on(text).detail;
        assert_eq!(shown("2030-05-01T00:00:00Z"), "valid for 60 more days");
        let soon = on("2030-06-20T12:00:00Z");
        assert_eq!(soon.detail, "the orchestrator's certificate ends in 9 days");
        assert_eq!(
            (soon.status, soon.fix.as_deref()),
            (Status::Warning, Some("renew"))
        );
        let over = on("2030-07-01T12:00:00Z");
        assert_eq!(
            over.detail,
            "the orchestrator's certificate ended 2 days ago"
        );
        assert_eq!(over.status, Status::Failed);
        let now = "2030-06-20T12:00:00Z".parse().unwrap();
        assert!(lasts(("c", "a"), b"none", now, "r").is_none());
    }
}
