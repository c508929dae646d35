//! Small grammars of the contract: labels, architectures, MIG profiles, DNS labels,
//! request ids. All are ASCII.

/// `^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`: a label key or value.
#[must_use]
pub fn is_label_part(text: &str) -> bool {
    bounded_name(
        text,
        |b| b.is_ascii_alphanumeric(),
        |b| matches!(b, b'-' | b'.' | b'_'),
    )
}

/// `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`: a DNS label, as used for published port names.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    bounded_name(
        text,
        |b| b.is_ascii_lowercase() || b.is_ascii_digit(),
        |b| b == b'-',
    )
}

/// One to 63 bytes, `edge` at both ends, `edge` or `inner` between.
fn bounded_name(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    bytes.len() <= 63 && edge(first) && edge(last) && bytes.iter().all(|&b| edge(b) || inner(b))
}

/// The canonical architecture name, `None` if it is not one that Fuse runs on.
/// Surrounding blanks and letter case do not matter.
#[must_use]
pub fn normalize_arch(text: &str) -> Option<&'static str> {
    match text.trim().to_ascii_lowercase().as_str() {
        "amd64" | "x86_64" => Some("amd64"),
        "arm64" | "aarch64" => Some("arm64"),
        _ => None,
    }
}

/// `^[1-7]g\.\d+gb(\+me)?$`, ignoring case; answers the lowercase form.
#[must_use]
pub fn normalize_mig_profile(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (slices, rest) = lower.split_once("g.")?;
    let size = rest
        .strip_suffix("+me")
        .unwrap_or(rest)
        .strip_suffix("gb")?;
    let slices_ok = matches!(slices.as_bytes(), [b'1'..=b'7']);
    let size_ok = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit());
    (slices_ok && size_ok).then_some(lower)
}

/// `[A-Za-z0-9_-]{1,128}`: a request id that is taken over from the caller.
#[must_use]
pub fn is_request_id(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Whether `text` may be an `Idempotency-Key`: 1 to 255 visible ASCII characters.
#[must_use]
pub fn is_idempotency_key(text: &str) -> bool {
    (1..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        let longest = "a".repeat(63);
        for ok in ["a", "A9", "a.b_c-d", longest.as_str()] {
            assert!(is_label_part(ok), "{ok}");
        }
        let too_long = "a".repeat(64);
        for bad in ["", "-a", "a-", ".", "a b", "ä", too_long.as_str()] {
            assert!(!is_label_part(bad), "{bad}");
        }
    }

    #[test]
    fn dns_labels() {
        assert!(is_dns_label("web-1"));
        for bad in ["", "Web", "web_1", "-web", "web-", "a.b"] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }

    #[test]
    fn architectures() {
        for (given, want) in [
            ("amd64", Some("amd64")),
            (" X86_64 ", Some("amd64")),
            ("AArch64", Some("arm64")),
            ("arm64", Some("arm64")),
            ("riscv64", None),
            ("", None),
        ] {
            assert_eq!(normalize_arch(given), want, "{given}");
        }
    }

    #[test]
    fn mig_profiles() {
        assert_eq!(normalize_mig_profile("1G.10GB").as_deref(), Some("1g.10gb"));
        assert_eq!(
            normalize_mig_profile("7g.80gb+me").as_deref(),
            Some("7g.80gb+me")
        );
        for bad in [
            "foo", "0g.10gb", "8g.10gb", "1g.gb", "11g.10gb", "1g.10gb+", "1g.10gbx",
        ] {
            assert_eq!(normalize_mig_profile(bad), None, "{bad}");
        }
    }

    #[test]
    fn request_ids() {
        assert!(is_request_id("req_1-A"));
        assert!(!is_request_id(""));
        assert!(!is_request_id("a b"));
        assert!(!is_request_id(&"a".repeat(129)));
    }
}
