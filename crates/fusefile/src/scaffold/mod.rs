//! What `init` writes. Tested to parse, compile and draw no warning.

use crate::ignore::DEFAULTS;
use crate::schema;

/// A Fusefile with every block of the format, the rarer ones commented out.
#[must_use]
pub fn fusefile() -> String {
    with_modeline(include_str!("Fusefile"))
}

/// A Fusefile with the least that is useful.
#[must_use]
pub fn minimal() -> String {
    with_modeline(include_str!("minimal"))
}

/// A `.fuseignore` of comments: the rules in force, and how to change them.
#[must_use]
pub fn fuseignore() -> String {
    let defaults: String = DEFAULTS
        .iter()
        .map(|rule| format!("#   {rule}\n"))
        .collect();
    format!(
        "# Paths that copy leaves behind, in .gitignore's style; the last rule that matches decides.\n\
         # In force without a line here:\n\
         #\n\
         {defaults}\
         #\n\
         # More to leave behind, and a default taken back:\n\
         #\n\
         #   *.log\n\
         #   !dist/\n"
    )
}

/// The line that tells editors where the schema is.
fn with_modeline(text: &str) -> String {
    format!("# yaml-language-server: $schema={}\n{text}", schema::ID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ignore::Ignore;
    use crate::{Start, check, lint};

    #[test]
    fn what_is_written_works_as_it_is() {
        for text in [fusefile(), minimal()] {
            let first = text.lines().next().unwrap();
            assert_eq!(
                first,
                format!("# yaml-language-server: $schema={}", schema::ID)
            );
            let checked = check("Fusefile", text.as_bytes(), None);
            assert_eq!(checked.problems, []);
            assert_eq!(lint(&checked.document), []);
            let compiled = checked.compiled.unwrap();
            assert!(compiled.spec.image.is_empty());
            assert!(
                !compiled
                    .request("t", &Start::Cold, &Default::default())
                    .startup_script
                    .is_empty()
            );
        }
    }

    #[test]
    fn what_is_commented_out_works_too() {
        // Comments that hold keys are indented like them; prose starts with two hashes.
        let live: String = fusefile()
            .lines()
            .filter(|line| !line.trim_start().starts_with("##"))
            .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
            .skip(1)
            .collect();
        let checked = check("Fusefile", live.as_bytes(), None);
        assert_eq!(checked.problems, [], "{live}");
        let file = &checked.document.file;
        assert!(!file.files.is_empty() && !file.copy.is_empty() && !file.env.is_empty());
        assert!(!file.image.is_empty() && !file.name.is_empty());
        assert!(file.healthcheck.is_some() && file.desktop.is_some());
        // Every block of the format is shown, but for the old name of build.
        for field in crate::shape::FUSEFILE
            .fields
            .iter()
            .filter(|field| !field.deprecated)
        {
            assert!(
                live.lines()
                    .any(|line| line.starts_with(&format!("{}:", field.key))),
                "{}",
                field.key
            );
        }
    }

    #[test]
    fn the_ignore_file_changes_nothing() {
        let text = fuseignore();
        assert!(text.lines().all(|line| line.starts_with('#')));
        let (ignore, bad) = Ignore::new(&text);
        assert_eq!(bad, []);
        assert!(ignore.dropped(&["a.log"], false).is_none());
        assert!(ignore.dropped(&["dist"], true).is_some());
    }
}
