//! Finding, reading and checking a Fusefile, the same for every command that takes one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::Args;
use fuse_fusefile::excerpt::Excerpts;
use fuse_fusefile::find::{FindError, NAMES, find};
use fuse_fusefile::fs::Disk;
use fuse_fusefile::layers::Plan;
use fuse_fusefile::walk::{Walked, read_ignore};
use fuse_fusefile::{Checked, Compiled, Diagnostic, TaskId, check};

/// Why there is no usable Fusefile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// None of the names exists.
    #[error("no Fusefile in {}: looked for {}. write one with `fuse init`, or name one with -f <file>", dir.display(), NAMES.join(", "))]
    NotFound {
        /// Where.
        dir: PathBuf,
    },
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not a valid Fusefile, or what it copies cannot be read.
    #[error("{}", lines.join("\n"))]
    Invalid {
        /// One diagnostic each.
        lines: Vec<String>,
    },
}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Invalid {
            lines: vec![diagnostic.to_string()],
        }
    }
}

/// Which Fusefile.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FileArgs {
    /// Fusefile, or a directory that holds one.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The same as --file.
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

/// A Fusefile that was read and checked.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// As the user named it.
    pub(crate) path: PathBuf,
    /// What the library made of it.
    pub(crate) checked: Checked,
    source: String,
    tree: Disk,
}

impl FileArgs {
    /// The file: `--file`, else the positional path, else the first known name in the working
    /// directory. A directory is looked into; parent directories never are.
    pub(crate) fn locate(&self) -> Result<PathBuf, Error> {
        find(&Disk::new(""), self.given()).map_err(|error| match error {
            FindError::NoneHere => Error::NotFound {
                dir: PathBuf::from("."),
            },
            FindError::NoneIn(dir) => Error::NotFound { dir },
        })
    }

    /// What was named, if anything.
    pub(crate) fn given(&self) -> Option<&Path> {
        self.file.as_deref().or(self.path.as_deref())
    }
}

/// Reads and checks the file, `files[].source` included.
pub(crate) fn load(path: PathBuf) -> Result<Loaded, Error> {
    let source = fs::read(&path).map_err(|source| Error::Read {
        path: path.clone(),
        source,
    })?;
    let tree = Disk::new(path.parent().unwrap_or(Path::new("")));
    let checked = check(&path.to_string_lossy(), &source, Some(&tree));
    Ok(Loaded {
        path,
        checked,
        source: String::from_utf8_lossy(&source).into_owned(),
        tree,
    })
}

impl Loaded {
    /// The compiled file.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem, when there is any.
    pub(crate) fn compiled(&self) -> Result<&Compiled, Error> {
        self.checked
            .compiled
            .as_ref()
            .ok_or_else(|| Error::Invalid {
                lines: self.shown(&self.checked.problems, false),
            })
    }

    /// Diagnostics as text: a line each and, where a person reads it, the place in the source.
    pub(crate) fn shown(&self, diagnostics: &[Diagnostic], with_source: bool) -> Vec<String> {
        let excerpts = with_source.then(|| Excerpts::new(&self.source));
        let file = self.path.to_string_lossy();
        diagnostics
            .iter()
            .map(|diagnostic| {
                // A position in another file (`.fuseignore`) is none in this one.
                let excerpt = diagnostic
                    .position
                    .filter(|_| diagnostic.file == file)
                    .and_then(|at| excerpts.as_ref()?.at(at));
                match excerpt {
                    Some(excerpt) => format!("{diagnostic}\n{excerpt}"),
                    None => diagnostic.to_string(),
                }
            })
            .collect()
    }

    /// The layer plan; `no_cache` turns the cache off whatever the file says.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong with a step's inputs.
    pub(crate) fn plan(&self, compiled: &Compiled, no_cache: bool) -> Result<Plan, Error> {
        Ok(Plan::of(compiled, no_cache, &self.tree)?)
    }

    /// Walks what `copy` names, through the ignore file. The second part are warnings about that file.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what cannot be copied.
    pub(crate) fn walk(&self, compiled: &Compiled) -> Result<(Walked, Vec<Diagnostic>), Error> {
        let (ignore, warnings) = read_ignore(&self.tree)?;
        Ok((Walked::of(compiled, &self.tree, &ignore)?, warnings))
    }

    /// Reads the walked files, by their absolute guest path.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what cannot be read.
    pub(crate) fn read(
        &self,
        compiled: &Compiled,
        walked: &Walked,
    ) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        Ok(walked.read(compiled, &self.tree)?)
    }

    /// The commands of the build steps, in order.
    pub(crate) fn commands(&self) -> Vec<String> {
        let (_, steps) = self.checked.document.file.steps();
        steps.iter().map(|step| step.run.value.clone()).collect()
    }

    /// The task id: `--task-id`, else `name`, else the name of the file's directory.
    pub(crate) fn task_id(&self, flag: &str) -> TaskId {
        let name = self
            .checked
            .compiled
            .as_ref()
            .and_then(|compiled| compiled.name.as_deref());
        let absolute = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let directory = absolute
            .parent()
            .and_then(Path::file_name)
            .map(|name| name.to_string_lossy());
        TaskId::choose(Some(flag), name, directory.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery() {
        let dir = tempfile::tempdir().unwrap();
        let args = FileArgs {
            file: None,
            path: Some(dir.path().to_owned()),
        };
        let text = args.locate().unwrap_err().to_string();
        for name in NAMES {
            assert!(text.contains(name), "{text}");
        }
        fs::create_dir(dir.path().join("Fusefile")).unwrap();
        fs::write(dir.path().join("fusefile.yml"), "version: 1\n").unwrap();
        assert_eq!(args.locate().unwrap(), dir.path().join("fusefile.yml"));
        let named = FileArgs {
            file: Some("a".into()),
            path: Some("b".into()),
        };
        assert_eq!(named.locate().unwrap(), PathBuf::from("a"));
    }

    #[test]
    fn problems_are_one_line_each() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("Fusefile");
        fs::write(&path, "version: 1\nmemroy: 1GB\nresources:\n  memory: 1\n").unwrap();
        let loaded = load(path.clone()).unwrap();
        let text = loaded.compiled().unwrap_err().to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].starts_with(&format!("{}:2: ", path.display())),
            "{text}"
        );
        assert!(lines[0].contains("memroy"), "{text}");
    }

    #[test]
    fn task_ids_come_from_the_directory_last() {
        let dir = tempfile::tempdir().unwrap();
        let sub = dir.path().join("Shop Floor");
        fs::create_dir(&sub).unwrap();
        let path = sub.join("Fusefile");
        fs::write(&path, "version: 1\nrun: \"true\"\n").unwrap();
        let loaded = load(path.clone()).unwrap();
        assert_eq!(
            loaded.task_id(""),
            TaskId {
                id: "shop-floor".to_owned(),
                derived: true
            }
        );
        assert_eq!(
            loaded.task_id("given"),
            TaskId {
                id: "given".to_owned(),
                derived: false
            }
        );
        fs::write(&path, "version: 1\nname: named\n").unwrap();
        let named = load(path).unwrap().task_id("");
        assert_eq!(
            named,
            TaskId {
                id: "named".to_owned(),
                derived: false
            }
        );
    }

    #[test]
    fn copied_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        fs::write(dir.path().join("src/a.txt"), "a").unwrap();
        fs::write(dir.path().join("src/b.pyc"), "b").unwrap();
        let path = dir.path().join("Fusefile");
        fs::write(&path, "version: 1\ncopy: [{from: src, to: app}]\n").unwrap();
        let loaded = load(path).unwrap();
        let compiled = loaded.compiled().unwrap();
        let (walked, warnings) = loaded.walk(compiled).unwrap();
        assert_eq!(warnings, []);
        let files = loaded.read(compiled, &walked).unwrap();
        assert_eq!(
            files,
            [("/workspace/app/a.txt".to_owned(), b"a".to_vec())].into()
        );
    }
}
