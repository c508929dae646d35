//! Paths inside the guest: always slash separated, cleaned by text alone.

/// The directory whose contents belong to the guest agent.
pub const AGENT_DIR: &str = "/fuse";

/// The shortest path with the same meaning: no empty or `.` segments, `..` resolved where it can be.
/// Empty text is `.`.
#[must_use]
pub fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            other => parts.push(other),
        }
    }
    match (rooted, parts.is_empty()) {
        (true, _) => format!("/{}", parts.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => parts.join("/"),
    }
}

/// `path` below `workspace` unless it is absolute, cleaned.
#[must_use]
pub fn resolve(workspace: &str, path: &str) -> String {
    if path.starts_with('/') {
        clean(path)
    } else {
        clean(&format!("{workspace}/{path}"))
    }
}

/// The directory part of a cleaned path: `.` or `/` when there is none.
#[must_use]
pub fn parent(cleaned: &str) -> &str {
    match cleaned.rfind('/') {
        None => ".",
        Some(0) => "/",
        Some(at) => &cleaned[..at],
    }
}

/// Whether a cleaned absolute path is the guest agent's directory or below it.
#[must_use]
pub fn is_reserved(cleaned: &str) -> bool {
    cleaned
        .strip_prefix(AGENT_DIR)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether any segment is `..`.
#[must_use]
pub fn has_parent_segment(path: &str) -> bool {
    path.split('/').any(|segment| segment == "..")
}

/// Whether the path holds a character that no line of a script may carry.
#[must_use]
pub fn has_control(path: &str) -> bool {
    path.contains(['\0', '\n'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cleaning() {
        for (path, expected) in [
            ("", "."),
            (".", "."),
            ("./a", "a"),
            ("a//b/", "a/b"),
            ("a/./b/../c", "a/c"),
            ("/", "/"),
            ("//a", "/a"),
            ("/../a", "/a"),
            ("../a", "../a"),
            ("../../a", "../../a"),
            ("a/../..", ".."),
            ("/a/..", "/"),
        ] {
            assert_eq!(clean(path), expected, "{path:?}");
        }
    }

    #[test]
    fn resolving_and_parents() {
        assert_eq!(resolve("/app", "src"), "/app/src");
        assert_eq!(resolve("/app/", "./src/"), "/app/src");
        assert_eq!(resolve("/app", "/etc//x"), "/etc/x");
        assert_eq!(resolve("/", "fuse"), "/fuse");
        for (path, expected) in [
            ("a", "."),
            ("/a", "/"),
            ("/a/b", "/a"),
            ("a/b", "a"),
            (".", "."),
        ] {
            assert_eq!(parent(path), expected);
        }
    }

    #[test]
    fn the_agents_directory() {
        assert!(is_reserved("/fuse") && is_reserved("/fuse/env"));
        assert!(!is_reserved("/fused") && !is_reserved("/a/fuse") && !is_reserved("/"));
    }

    proptest! {
        #[test]
        fn cleaning_is_idempotent(path in "[a./]{0,20}") {
            let once = clean(&path);
            prop_assert_eq!(clean(&once), once.clone());
            prop_assert_eq!(once.starts_with('/'), path.starts_with('/'));
        }
    }
}
