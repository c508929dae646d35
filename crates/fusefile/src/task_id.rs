//! The task id: one rule for every command.

use crate::grammar::names::slug;

/// What a task is called when nothing gives it a name.
const FALLBACK: &str = "fuse-env";

/// A task id, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskId {
    /// The id.
    pub id: String,
    /// Made of the directory's name: two checkouts of one project collide, so callers announce it.
    pub derived: bool,
}

impl TaskId {
    /// The id for `--task-id`, the file's `name`, and the name of the Fusefile's parent directory (of its
    /// absolute path), whichever comes first. Empty means not given. The first two are taken as they are,
    /// the directory's name is made a DNS label.
    #[must_use]
    pub fn choose(flag: Option<&str>, name: Option<&str>, directory: Option<&str>) -> Self {
        let given = [flag, name].into_iter().flatten().find(|id| !id.is_empty());
        if let Some(id) = given {
            return Self {
                id: id.to_owned(),
                derived: false,
            };
        }
        let id = Some(slug(directory.unwrap_or_default())).filter(|id| !id.is_empty());
        Self {
            id: id.unwrap_or_else(|| FALLBACK.to_owned()),
            derived: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities() {
        let id = |flag, name, dir| {
            let TaskId { id, derived } = TaskId::choose(flag, name, dir);
            (id, derived)
        };
        assert_eq!(id(Some("a b"), Some("n"), Some("d")), ("a b".into(), false));
        assert_eq!(id(Some(""), Some("n"), Some("d")), ("n".into(), false));
        assert_eq!(
            id(None, None, Some("My Project")),
            ("my-project".into(), true)
        );
        for dir in [None, Some(""), Some("."), Some("/"), Some("日本")] {
            assert_eq!(id(None, Some(""), dir), ("fuse-env".into(), true));
        }
    }
}
