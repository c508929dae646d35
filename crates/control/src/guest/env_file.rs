//! `/fuse/env`: shell assignments that the startup script sources, so that values
//! never enter an argument list.

use std::collections::BTreeMap;

use fuse_wire_api::EnvSource;

/// One `KEY='value'` line per usable key, sorted; `None` when no key is usable.
pub(super) fn render(
    env: &BTreeMap<String, EnvSource>,
    secrets: &BTreeMap<String, String>,
) -> Option<String> {
    let mut text = String::new();
    for (key, source) in env {
        if !is_shell_name(key) {
            continue;
        }
        text.push_str(key);
        text.push_str("='");
        text.push_str(&value(source, secrets).replace('\'', r"'\''"));
        text.push_str("'\n");
    }
    (!text.is_empty()).then_some(text)
}

/// The value of a variable; a secret that was not given (which validation rules out)
/// is empty.
pub(super) fn value<'a>(source: &'a EnvSource, secrets: &'a BTreeMap<String, String>) -> &'a str {
    if source.secret.is_empty() {
        return &source.value;
    }
    secrets.get(&source.secret).map_or("", String::as_str)
}

/// `^[A-Za-z_][A-Za-z0-9_]*$`
fn is_shell_name(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn literal(value: &str) -> EnvSource {
        EnvSource {
            value: value.into(),
            ..EnvSource::default()
        }
    }

    #[test]
    fn lines_are_sorted_and_quoted() {
        let env = [
            ("B".to_owned(), literal("it's")),
            (
                "A".to_owned(),
                EnvSource {
                    secret: "S".into(),
                    ..EnvSource::default()
                },
            ),
            ("C".to_owned(), literal("")),
            ("1x".to_owned(), literal("dropped")),
            ("a-b".to_owned(), literal("dropped")),
        ];
        let secrets = [("S".to_owned(), "se cret".to_owned())].into();
        assert_eq!(
            render(&env.into(), &secrets).unwrap(),
            "A='se cret'\nB='it'\\''s'\nC=''\n"
        );
    }

    #[test]
    fn nothing_usable_means_no_file() {
        assert_eq!(
            render(&[("9".to_owned(), literal("x"))].into(), &BTreeMap::new()),
            None
        );
    }

    #[test]
    fn a_real_shell_reads_back_what_was_meant() {
        let nasty = "a'b\"c$HOME`id`\\ \n*end";
        let text = render(&[("K".to_owned(), literal(nasty))].into(), &BTreeMap::new()).unwrap();
        let script = format!("{text}printf %s \"$K\"");
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), nasty);
    }
}
