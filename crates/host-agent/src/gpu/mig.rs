//! `mig-inventory.txt`: the parts of partitioned GPUs that are given out.
//!
//! ```text
//! <profile> <kind> <mdev uuid> [<parent gpu uuid>]
//! ```

use std::path::Path;

use super::text::{self, InventoryError, Problem};

const FORM: &str = "<profile> <kind> <mdev uuid> [<parent gpu uuid>]";
pub(super) const SCRIPT: &str = "qemu-mig-setup.sh --list";
/// Where the hyphens of a UUID are.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    /// Its profile, lower-case.
    pub profile: String,
    /// Kind of its GPU, lower-case.
    pub kind: String,
    /// The mediated device, lower-case.
    pub uuid: String,
    /// The GPU that it is a part of; may be empty.
    pub parent: String,
}

/// Reads the file; one that does not exist lists nothing.
///
/// # Errors
/// It cannot be read, or a line is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Instance>, InventoryError> {
    text::parse(path, SCRIPT, |line, earlier: &[Instance]| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (profile, kind, uuid, parent) = match words[..] {
            [profile, kind, uuid] => (profile, kind, uuid, ""),
            [profile, kind, uuid, parent] => (profile, kind, uuid, parent),
            _ => return Err(Problem::Words { expected: FORM }),
        };
        let uuid = uuid.to_lowercase();
        if !is_uuid(&uuid) {
            return Err(Problem::Mdev(uuid));
        }
        if earlier.iter().any(|other| other.uuid == uuid) {
            return Err(Problem::Twice(uuid));
        }
        Ok(Instance {
            profile: profile.to_lowercase(),
            kind: kind.to_lowercase(),
            uuid,
            parent: parent.to_owned(),
        })
    })
}

/// It becomes part of a path.
fn is_uuid(text: &str) -> bool {
    let at = |(place, byte): (usize, u8)| match HYPHENS.contains(&place) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "C73B0B02-1E4B-4C5A-9D2E-0123456789ab";

    fn read_text(text: &str) -> Result<Vec<Instance>, InventoryError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn lines_with_and_without_a_parent() {
        let other = A.replace("C7", "D8");
        let found = read_text(&format!(
            "# x\n1G.10GB A100 {A} GPU-1\n2g.20gb a100 {other}\n"
        ))
        .unwrap();
        assert_eq!(
            (found[0].profile.as_str(), found[0].kind.as_str()),
            ("1g.10gb", "a100")
        );
        assert_eq!(
            (found[0].uuid.as_str(), found[0].parent.as_str()),
            (&*A.to_lowercase(), "GPU-1")
        );
        assert_eq!(found[1].parent, "");
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, part) in [
            ("1g.10gb a100".to_owned(), "expected <profile>"),
            (format!("1g.10gb a100 {A} GPU-1 more"), "expected <profile>"),
            (
                "1g.10gb a100 MIG-c73b0b02-1e4b-4c5a-9d2e-0123456789ab".to_owned(),
                "is not one",
            ),
            (
                "1g.10gb a100 ../../../../etc/passwd".to_owned(),
                "not the UUID",
            ),
            (
                format!("1g.10gb a {A}\n2g.20gb a {}", A.to_lowercase()),
                "earlier line",
            ),
        ] {
            let error = read_text(&text).unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("qemu-mig-setup.sh --list"),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_file_panics_and_ids_are_safe_in_paths(text in "([a-z0-9.]{0,8} [a-z]{0,4} [-0-9a-f./]{0,40} ?[A-Z-]{0,4}\n?){0,4}|\\PC*") {
            for instance in read_text(&text).unwrap_or_default() {
                prop_assert!(instance.uuid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'));
            }
        }

        #[test]
        fn what_the_grammar_allows_is_read(
            profile in "[1-7]g\\.[0-9]{1,2}gb(\\+me)?",
            uuid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        ) {
            let found = read_text(&format!("  {profile}\tH100  {uuid} GPU-x \n")).unwrap();
            prop_assert_eq!((&found[0].profile, &found[0].uuid), (&profile, &uuid));
        }
    }
}
