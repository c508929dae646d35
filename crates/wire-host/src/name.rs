//! How a VM's name becomes its id.
//!
//! The id names directories, sockets and the guest's host name, so the alphabet is small. The agent
//! applies the same rule to `{id}` in a path, so a caller may use the name it created with.

/// Longest id that an agent accepts.
pub const MAX_ID_LEN: usize = 100;
/// Longest host name: a DNS label.
pub const MAX_HOSTNAME_LEN: usize = 63;

/// Lower-cases, turns each run of characters outside `[a-z0-9-]` into one `-`, strips `-` at both
/// ends; nothing left becomes `vm`.
///
/// The length is not cut: two long names must not meet in one id. See [`MAX_ID_LEN`].
#[must_use]
pub fn vm_id(name: &str) -> String {
    let mut id = String::with_capacity(name.len());
    let mut in_run = false;
    for c in name.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' {
            id.push(c);
            in_run = false;
        } else if !in_run {
            id.push('-');
            in_run = true;
        }
    }
    let id = id.trim_matches('-');
    if id.is_empty() {
        "vm".to_owned()
    } else {
        id.to_owned()
    }
}

/// The host name of a guest: its id, cut to what a host name can hold.
#[must_use]
pub fn hostname(id: &str) -> &str {
    let end = id
        .char_indices()
        .nth(MAX_HOSTNAME_LEN)
        .map_or(id.len(), |(end, _)| end);
    id[..end].trim_end_matches('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples() {
        for (name, id) in [
            ("My VM", "my-vm"),
            ("vm-0a1b", "vm-0a1b"),
            ("--a__b--", "a-b"),
            ("../../etc", "etc"),
            ("é", "vm"),
            ("", "vm"),
            ("a//b", "a-b"),
            ("a--b", "a--b"),
        ] {
            assert_eq!(vm_id(name), id, "{name:?}");
        }
    }

    #[test]
    fn a_long_id_is_cut_for_the_host_name_only() {
        let id = format!("{}-b", "a".repeat(62));
        assert_eq!(hostname(&id), "a".repeat(62));
        assert_eq!(hostname("vm-1"), "vm-1");
    }

    proptest! {
        #[test]
        fn an_id_is_a_safe_file_name_and_stable(name in ".{0,80}") {
            let id = vm_id(&name);
            prop_assert!(!id.is_empty());
            prop_assert!(id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            prop_assert!(!id.starts_with('-') && !id.ends_with('-'));
            prop_assert_eq!(vm_id(&id), id.clone());
        }
    }
}
