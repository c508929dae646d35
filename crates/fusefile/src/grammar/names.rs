//! Names: DNS labels, placement labels, shell identifiers, modes, MIG profiles. Whole strings, ASCII.

/// Longest label of either kind.
const LABEL_MAX: usize = 63;

/// Kinds of GPU that cannot be split, whole words of `gpu_kind` in any case.
pub const NO_MIG: [&str; 11] = [
    "v100", "t4", "p100", "p40", "k80", "rtx", "gtx", "titan", "l4", "l40", "l40s",
];

/// Policies that a service may name.
pub const RESTART_POLICIES: [&str; 4] = ["no", "always", "on-failure", "unless-stopped"];

/// Empty after trimming white space.
#[must_use]
pub fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// A DNS label: `name` and `expose[].as`.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    is_label(text, edge, |b| edge(b) || b == b'-')
}

/// A key or value of `placement.labels`.
#[must_use]
pub fn is_placement_label(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_alphanumeric();
    is_label(text, edge, |b| edge(b) || matches!(b, b'-' | b'.' | b'_'))
}

fn is_label(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    bytes.len() <= LABEL_MAX && edge(first) && edge(last) && bytes.iter().all(|&b| inner(b))
}

/// A shell variable's name.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    text.bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// `0?` and three octal digits.
#[must_use]
pub fn is_file_mode(text: &str) -> bool {
    let digits = if text.len() == 4 {
        text.strip_prefix('0')
    } else {
        Some(text)
    };
    digits.is_some_and(|d| d.len() == 3 && d.bytes().all(|b| matches!(b, b'0'..=b'7')))
}

/// A MIG profile such as `1g.10gb` or `1g.10gb+me`, in any case.
#[must_use]
pub fn is_mig_profile(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let body = lower.strip_suffix("+me").unwrap_or(&lower);
    let Some((slices, memory)) = body.split_once("g.") else {
        return false;
    };
    let Some(memory) = memory.strip_suffix("gb") else {
        return false;
    };
    matches!(slices.as_bytes(), [b'1'..=b'7'])
        && !memory.is_empty()
        && memory.bytes().all(|b| b.is_ascii_digit())
}

/// The kind of GPU in `gpu_kind` that cannot be split into MIG instances, if it names one.
///
/// Words are compared, not parts of words, so that an `NVL4` is no L4. A model number glued to a family
/// (`RTX4090`) counts as the family; RTX PRO parts can be split. Kinds nobody lists pass: hosts decide.
#[must_use]
pub fn kind_without_mig(gpu_kind: &str) -> Option<&'static str> {
    let lower = gpu_kind.to_ascii_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .collect();
    words.iter().enumerate().find_map(|(i, word)| {
        let splittable = *word == "rtx" && words.get(i + 1) == Some(&"pro");
        NO_MIG
            .into_iter()
            .find(|denied| names_kind(word, denied))
            .filter(|_| !splittable)
    })
}

fn names_kind(word: &str, denied: &str) -> bool {
    let family = denied.bytes().all(|b| b.is_ascii_alphabetic());
    match word.strip_prefix(denied) {
        Some("") => true,
        Some(model) => family && model.starts_with(|c: char| c.is_ascii_digit()),
        None => false,
    }
}

/// A DNS label made of `text`: lower case, other runs of characters become one dash, 63 at most.
/// Empty when nothing usable is left.
#[must_use]
pub fn slug(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
        if out.len() == LABEL_MAX {
            break;
        }
    }
    out.truncate(out.trim_end_matches('-').len());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels() {
        let long = "a".repeat(63);
        for ok in ["a", "a-b", "0", "a--b", &long] {
            assert!(is_dns_label(ok), "{ok}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a_b",
            "a\n",
            "é",
            &"a".repeat(64),
        ] {
            assert!(!is_dns_label(bad), "{bad:?}");
        }
        for ok in ["A.b_c-9", "x", &long] {
            assert!(is_placement_label(ok), "{ok}");
        }
        for bad in ["", ".a", "a_", "a b", "a\n", &"a".repeat(64)] {
            assert!(!is_placement_label(bad), "{bad:?}");
        }
    }

    #[test]
    fn identifiers_and_modes() {
        assert!(is_identifier("_A9") && is_identifier("x"));
        for bad in ["", "9A", "A-B", "A B", "A\n", "é"] {
            assert!(!is_identifier(bad), "{bad:?}");
        }
        for ok in ["644", "0644", "0000", "777"] {
            assert!(is_file_mode(ok), "{ok}");
        }
        for bad in ["", "64", "06444", "1644", "648", "0o644", "644\n", "00644"] {
            assert!(!is_file_mode(bad), "{bad:?}");
        }
    }

    #[test]
    fn mig_profiles() {
        for ok in ["1g.10gb", "7G.80GB", "1g.10gb+me", "1G.10GB+ME"] {
            assert!(is_mig_profile(ok), "{ok}");
        }
        for bad in [
            "",
            "8g.10gb",
            "0g.1gb",
            "1g.gb",
            "1g10gb",
            "1g.10gb+mex",
            "1g.10g",
            "11g.10gb",
        ] {
            assert!(!is_mig_profile(bad), "{bad:?}");
        }
    }

    #[test]
    fn kinds_that_cannot_be_split() {
        for (kind, expected) in [
            ("NVIDIA Tesla V100-SXM2", Some("v100")),
            ("t4", Some("t4")),
            ("NVIDIA L40S", Some("l40s")),
            ("GeForce RTX 4090", Some("rtx")),
            ("rtx4090", Some("rtx")),
            ("GTX1080", Some("gtx")),
            ("NVIDIA A100", None),
            ("H100 NVL4", None),
            ("RTX PRO 6000 Blackwell", None),
            ("", None),
            ("t400", None),
            ("something new", None),
        ] {
            assert_eq!(kind_without_mig(kind), expected, "{kind}");
        }
    }

    #[test]
    fn slugs() {
        for (text, expected) in [
            ("tiny", "tiny"),
            ("My App", "my-app"),
            ("__x__", "x"),
            ("ÄÖ", ""),
            ("a..b", "a-b"),
            ("", ""),
        ] {
            assert_eq!(slug(text), expected, "{text:?}");
        }
        assert_eq!(slug(&format!("{}-b", "a".repeat(62))), "a".repeat(62));
    }

    proptest! {
        #[test]
        fn a_slug_is_a_label_or_nothing(text in "\\PC*") {
            let s = slug(&text);
            prop_assert!(s.is_empty() || is_dns_label(&s), "{:?}", s);
        }
    }
}
