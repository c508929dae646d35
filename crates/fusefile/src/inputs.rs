//! `build[].inputs`: the files whose contents a layer depends on, and their digest.
//!
//! Patterns are shell globs below the Fusefile's directory; `**` as a whole segment spans directories. A matched
//! directory stands for every regular file below it. Anything else, symbolic links on the way included,
//! is an error: its contents could change without the digest noticing. `.fuseignore` does not apply.

mod parts;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::diagnostic::quoted;
use crate::fs::{self, Kind, Tree};
use crate::grammar::glob::{self, Glob, Malformed, Segment};
pub use parts::{Changes, Parts};

/// Why inputs have no digest.
#[derive(Debug, Error)]
pub enum InputError {
    /// Not a glob.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Nothing there.
    #[error("{} matches nothing", quoted(.0))]
    NoMatch(String),
    /// A path that is not below the Fusefile's directory.
    #[error("{} leaves the Fusefile's directory", quoted(.0))]
    Outside(String),
    /// A symbolic link, socket, device or fifo.
    #[error("{} is not a regular file or directory", quoted(.0))]
    Unusable(String),
    /// A name that has no place in the digest.
    #[error("the name of {} is not UTF-8", quoted(.0))]
    Name(String),
    /// The file system refused.
    #[error("cannot read {}", quoted(.path))]
    Read {
        /// The path.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What the patterns of a step match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Digest of it all; empty text without patterns.
    pub digest: String,
    /// Digest of each file's mode and contents, by its slash path below the root.
    pub files: BTreeMap<String, String>,
}

/// Reads and digests everything that `patterns` match.
///
/// # Errors
/// See [`InputError`].
pub fn read(tree: &dyn Tree, patterns: &[String]) -> Result<Inputs, InputError> {
    if patterns.is_empty() {
        return Ok(Inputs::default());
    }
    let mut paths = BTreeSet::new();
    for pattern in patterns {
        expand(tree, pattern, &mut paths)?;
    }
    let mut sum = Sha256::new();
    let mut files = BTreeMap::new();
    for path in paths {
        let mode = lstat(tree, Path::new(&path))?.mode & 0o111;
        let content = content_digest(tree, &path)?;
        let line = format!("{path}\0{mode:o}\0{content}\n");
        sum.update(&line);
        files.insert(path, hex::encode(Sha256::digest(line)));
    }
    Ok(Inputs {
        digest: hex::encode(sum.finalize()),
        files,
    })
}

fn content_digest(tree: &dyn Tree, path: &str) -> Result<String, InputError> {
    let failed = |source| InputError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = tree.open(Path::new(path)).map_err(failed)?;
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(hex::encode(sum.finalize())),
            n => sum.update(&buffer[..n]),
        }
    }
}

/// Adds the files that `pattern` matches, by their slash path below the root.
fn expand(tree: &dyn Tree, pattern: &str, files: &mut BTreeSet<String>) -> Result<(), InputError> {
    let slashed = if cfg!(windows) {
        pattern.replace('\\', "/")
    } else {
        pattern.to_owned()
    };
    let cleaned = crate::grammar::guest_path::clean(&slashed);
    if cleaned.starts_with('/') || cleaned == ".." || cleaned.starts_with("../") {
        return Err(InputError::Outside(pattern.to_owned()));
    }
    let before = files.len();
    let mut search = Search {
        tree,
        files,
        seen: HashSet::new(),
        matched: false,
    };
    let steps: Vec<Step> = if cleaned == "." {
        Vec::new()
    } else {
        cleaned
            .split('/')
            .map(Step::new)
            .collect::<Result<_, _>>()?
    };
    search.from(Path::new("."), &steps)?;
    if search.matched || files.len() > before {
        Ok(())
    } else {
        Err(InputError::NoMatch(pattern.to_owned()))
    }
}

/// One segment of a pattern.
enum Step {
    Literal(String),
    Glob(Glob),
    Deep,
}

impl Step {
    fn new(segment: &str) -> Result<Self, Malformed> {
        if !glob::has_meta(segment) {
            return Ok(Self::Literal(segment.to_owned()));
        }
        Ok(match glob::segments(segment)?.into_iter().next() {
            Some(Segment::One(glob)) => Self::Glob(glob),
            Some(Segment::Deep) | None => Self::Deep,
        })
    }
}

struct Search<'a> {
    tree: &'a dyn Tree,
    files: &'a mut BTreeSet<String>,
    /// Directory and steps left that were looked at: several `**` reach one place in many ways.
    seen: HashSet<(PathBuf, usize)>,
    matched: bool,
}

impl Search<'_> {
    /// Matches `steps` below the directory `dir`.
    fn from(&mut self, dir: &Path, steps: &[Step]) -> Result<(), InputError> {
        if !self.seen.insert((dir.to_owned(), steps.len())) {
            return Ok(());
        }
        let Some((step, rest)) = steps.split_first() else {
            return self.everything(dir);
        };
        match step {
            Step::Literal(name) => {
                let path = dir.join(name);
                match self.tree.lstat(&path) {
                    Ok(found) => self.reached(&path, found.kind, rest),
                    Err(error) if is_missing(&error) => Ok(()),
                    Err(source) => Err(InputError::Read {
                        path: slash(&path)?,
                        source,
                    }),
                }
            }
            Step::Glob(glob) => {
                for (name, kind) in list(self.tree, dir)? {
                    if glob.matches(&name.to_string_lossy()) {
                        self.reached(&dir.join(name), kind, rest)?;
                    }
                }
                Ok(())
            }
            Step::Deep => {
                if !rest.is_empty() {
                    self.from(dir, rest)?;
                }
                for (name, kind) in list(self.tree, dir)? {
                    let path = dir.join(name);
                    if kind == Kind::Dir {
                        self.from(&path, steps)?;
                    } else if rest.is_empty() {
                        self.reached(&path, kind, rest)?;
                    }
                }
                // A directory that `**` ends at is matched even when it is empty.
                self.matched |= rest.is_empty();
                Ok(())
            }
        }
    }

    /// Goes on from a path that matched so far.
    fn reached(&mut self, path: &Path, kind: Kind, rest: &[Step]) -> Result<(), InputError> {
        match kind {
            Kind::File if rest.is_empty() => {
                self.matched = true;
                self.files.insert(slash(path)?);
                Ok(())
            }
            Kind::Dir => self.from(path, rest),
            // A file cannot have anything below it.
            Kind::File => Ok(()),
            Kind::Symlink | Kind::Other => Err(InputError::Unusable(slash(path)?)),
        }
    }

    /// Takes every file below `dir`.
    fn everything(&mut self, dir: &Path) -> Result<(), InputError> {
        self.matched = true;
        let mut pending = vec![dir.to_owned()];
        while let Some(dir) = pending.pop() {
            for (name, kind) in list(self.tree, &dir)? {
                let path = dir.join(name);
                match kind {
                    Kind::Dir => pending.push(path),
                    Kind::File => {
                        self.files.insert(slash(&path)?);
                    }
                    Kind::Symlink | Kind::Other => return Err(InputError::Unusable(slash(&path)?)),
                }
            }
        }
        Ok(())
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn lstat(tree: &dyn Tree, path: &Path) -> Result<fs::Meta, InputError> {
    tree.lstat(path).map_err(|source| InputError::Read {
        path: shown(path),
        source,
    })
}

fn list(tree: &dyn Tree, dir: &Path) -> Result<Vec<(std::ffi::OsString, Kind)>, InputError> {
    let mut names = tree.list(dir).map_err(|source| InputError::Read {
        path: shown(dir),
        source,
    })?;
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}

/// A path below the root with slashes, without a leading `./`.
fn slash(path: &Path) -> Result<String, InputError> {
    let relative = path.strip_prefix(".").unwrap_or(path);
    let text = relative
        .to_str()
        .ok_or_else(|| InputError::Name(shown(path)))?;
    Ok(if cfg!(windows) {
        text.replace('\\', "/")
    } else {
        text.to_owned()
    })
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".")
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}
