//! `copy`: which files travel and where they land. Stage 6.
//!
//! [`Walked::of`] lists, measures and checks without opening a file; [`Walked::read`] then reads what was
//! found. A named file is always taken; in a named directory `.fuseignore` decides first, dropped
//! directories are never listed, and a symbolic link, socket, device or fifo that survives is an error.
//! Symbolic links are never followed, so there are no loops.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::compile::{Compiled, CopyEntry};
use crate::diagnostic::{Diagnostic, Severity, quoted};
use crate::fs::{self, Kind, Tree};
use crate::grammar::guest_path;
use crate::ignore::{FILE_NAME, Ignore, Origin};

/// Most bytes of all copied files together.
pub const MAX_COPY_BYTES: u64 = 524_288;

/// Most bytes of a `.fuseignore`.
const MAX_IGNORE_BYTES: u64 = 1 << 20;

/// The files of all `copy` entries.
#[derive(Debug, Clone, Default)]
pub struct Walked {
    /// One for each entry, in order.
    pub entries: Vec<WalkedEntry>,
    files: Vec<FoundFile>,
    path: String,
}

/// What one `copy` entry came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WalkedEntry {
    /// As written.
    pub from: String,
    /// Resolved guest path.
    pub to: String,
    /// Files taken.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// Paths that the author's rules dropped; a directory counts once.
    pub skipped_by_author: u64,
    /// Paths that the built-in rules dropped; a directory counts once.
    pub skipped_by_default: u64,
    /// The first path that a built-in rule dropped, relative to `from`.
    pub first_default_skip: Option<String>,
}

#[derive(Debug, Clone)]
struct FoundFile {
    from: PathBuf,
    to: String,
    entry: usize,
}

/// The `.fuseignore` next to the Fusefile, with a warning for each line that means nothing. A missing file
/// is fine.
///
/// # Errors
/// One diagnostic, about that file, when it is there and cannot be read.
pub fn read_ignore(tree: &dyn Tree) -> Result<(Ignore, Vec<Diagnostic>), Diagnostic> {
    let diagnostic = |severity, line: Option<u32>, message| Diagnostic {
        severity,
        file: FILE_NAME.to_owned(),
        position: line.map(|line| crate::Position {
            line,
            ..crate::Position::START
        }),
        field: None,
        message,
        suggestion: None,
    };
    let bytes = match fs::read(tree, Path::new(FILE_NAME), MAX_IGNORE_BYTES) {
        Ok(bytes) if length(&bytes) > MAX_IGNORE_BYTES => {
            let message = format!("over {MAX_IGNORE_BYTES} bytes");
            return Err(diagnostic(Severity::Error, None, message));
        }
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            return Err(diagnostic(
                Severity::Error,
                None,
                format!("cannot read it: {error}"),
            ));
        }
    };
    let (ignore, bad) = Ignore::new(&String::from_utf8_lossy(&bytes));
    let warnings = bad
        .into_iter()
        .map(|bad| {
            let message = format!("malformed pattern {}, matches nothing", quoted(&bad.text));
            diagnostic(Severity::Warning, Some(bad.line), message)
        })
        .collect();
    Ok((ignore, warnings))
}

impl Walked {
    /// Finds the files of every `copy` entry.
    ///
    /// # Errors
    /// The first problem: an unusable source, something that cannot be copied, two files on one path, or
    /// too many bytes.
    pub fn of(compiled: &Compiled, tree: &dyn Tree, ignore: &Ignore) -> Result<Self, Diagnostic> {
        let mut walk = Walk {
            compiled,
            tree,
            ignore,
            total: 0,
            taken: HashMap::new(),
            files: Vec::new(),
        };
        let mut entries = Vec::with_capacity(compiled.copies.len());
        for (index, entry) in compiled.copies.iter().enumerate() {
            entries.push(walk.entry(index, entry)?);
        }
        Ok(Self {
            entries,
            files: walk.files,
            path: compiled.path.clone(),
        })
    }

    /// Reads what was found: absolute guest path → contents.
    ///
    /// # Errors
    /// When a file cannot be read, or the files grew over the limit since they were measured.
    pub fn read(
        &self,
        compiled: &Compiled,
        tree: &dyn Tree,
    ) -> Result<BTreeMap<String, Vec<u8>>, Diagnostic> {
        let mut left = MAX_COPY_BYTES;
        let mut out = BTreeMap::new();
        for file in &self.files {
            let at = compiled.copies.get(file.entry).and_then(|entry| entry.at);
            let fail = |message| Diagnostic {
                severity: Severity::Error,
                file: self.path.clone(),
                position: at,
                field: Some(format!("copy[{}]", file.entry)),
                message,
                suggestion: None,
            };
            let bytes = fs::read(tree, &file.from, left)
                .map_err(|error| fail(format!("cannot read {}: {error}", shown(&file.from))))?;
            left = left.checked_sub(length(&bytes)).ok_or_else(|| {
                fail(format!(
                    "over the limit of {MAX_COPY_BYTES} bytes at {}",
                    shown(&file.from)
                ))
            })?;
            out.insert(file.to.clone(), bytes);
        }
        Ok(out)
    }
}

struct Walk<'a> {
    compiled: &'a Compiled,
    tree: &'a dyn Tree,
    ignore: &'a Ignore,
    total: u64,
    /// Guest path → the entry that puts a file there.
    taken: HashMap<String, usize>,
    files: Vec<FoundFile>,
}

/// A directory still to be listed: its path, and the names that lead to it from the source.
struct Pending {
    path: PathBuf,
    names: Vec<String>,
    kind: Kind,
}

impl Walk<'_> {
    fn entry(&mut self, index: usize, entry: &CopyEntry) -> Result<WalkedEntry, Diagnostic> {
        let mut out = WalkedEntry {
            from: entry.from.clone(),
            to: entry.to.clone(),
            ..WalkedEntry::default()
        };
        let from = fs::clean(Path::new(&entry.from));
        let field = format!("copy[{index}].from");
        let fail = |message| self.problem(index, field.clone(), message);
        let found = self
            .tree
            .lstat(&from)
            .map_err(|error| fail(format!("cannot read {}: {error}", quoted(&entry.from))))?;
        match found.kind {
            Kind::File => self.take(index, from, entry.to.clone(), &mut out)?,
            Kind::Dir => self.directory(index, from, &mut out)?,
            Kind::Symlink => {
                return Err(fail(format!(
                    "{} is a symbolic link; name its target instead",
                    quoted(&entry.from)
                )));
            }
            Kind::Other => {
                return Err(fail(format!(
                    "{} is neither a file nor a directory",
                    quoted(&entry.from)
                )));
            }
        }
        Ok(out)
    }

    /// Walks a source directory in lexical order, depth first.
    fn directory(
        &mut self,
        index: usize,
        from: PathBuf,
        out: &mut WalkedEntry,
    ) -> Result<(), Diagnostic> {
        let mut pending = vec![Pending {
            path: from,
            names: Vec::new(),
            kind: Kind::Dir,
        }];
        while let Some(next) = pending.pop() {
            match next.kind {
                Kind::Dir => self.list(index, &next, out, &mut pending)?,
                Kind::File => {
                    let to = guest_path::clean(&format!("{}/{}", out.to, next.names.join("/")));
                    self.take(index, next.path, to, out)?;
                }
                Kind::Symlink => return Err(self.unusable(index, &next, "a symbolic link")),
                Kind::Other => {
                    return Err(self.unusable(index, &next, "neither a file nor a directory"));
                }
            }
        }
        Ok(())
    }

    /// Queues what a directory holds and is not dropped, so that the first name comes out first.
    fn list(
        &self,
        index: usize,
        dir: &Pending,
        out: &mut WalkedEntry,
        pending: &mut Vec<Pending>,
    ) -> Result<(), Diagnostic> {
        let mut names = self.tree.list(&dir.path).map_err(|error| {
            self.inside(index, format!("cannot list {}: {error}", shown(&dir.path)))
        })?;
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        let first = pending.len();
        for (name, kind) in names {
            let path = dir.path.join(&name);
            let lossy = name.to_string_lossy();
            // A link to a directory is a directory to the rules, so that a linked node_modules is dropped.
            let is_dir = match kind {
                Kind::Dir => true,
                Kind::Symlink => self
                    .tree
                    .stat(&path)
                    .is_ok_and(|found| found.kind == Kind::Dir),
                Kind::File | Kind::Other => false,
            };
            let mut segments: Vec<&str> = dir.names.iter().map(String::as_str).collect();
            segments.push(&lossy);
            match self.ignore.dropped(&segments, is_dir) {
                Some(Origin::Author) => out.skipped_by_author += 1,
                Some(Origin::Default) => {
                    out.skipped_by_default += 1;
                    out.first_default_skip
                        .get_or_insert_with(|| segments.join("/"));
                }
                // A dropped link is dropped in silence.
                None => {
                    let mut names = dir.names.clone();
                    names.push(self.text(index, &name, &path)?);
                    pending.push(Pending { path, names, kind });
                }
            }
        }
        pending[first..].reverse();
        Ok(())
    }

    /// A name as text that can be part of a guest path.
    fn text(&self, index: usize, name: &OsString, path: &Path) -> Result<String, Diagnostic> {
        match name.to_str() {
            None => Err(self.inside(index, format!("the name of {} is not UTF-8", shown(path)))),
            Some(name) if guest_path::has_control(name) => Err(self.inside(
                index,
                format!("control character in the name {}", quoted(name)),
            )),
            Some(name) => Ok(name.to_owned()),
        }
    }

    /// Takes one file.
    fn take(
        &mut self,
        index: usize,
        from: PathBuf,
        to: String,
        out: &mut WalkedEntry,
    ) -> Result<(), Diagnostic> {
        if guest_path::is_reserved(&to) {
            return Err(self.inside(
                index,
                format!(
                    "{} would be {to}, reserved for the guest agent",
                    shown(&from)
                ),
            ));
        }
        let size = self
            .tree
            .lstat(&from)
            .map_err(|error| self.inside(index, format!("cannot read {}: {error}", shown(&from))))?
            .size;
        self.total = self.total.saturating_add(size);
        if self.total > MAX_COPY_BYTES {
            let total = self.total;
            return Err(self.inside(
                index,
                format!("{total} bytes at {}, limit {MAX_COPY_BYTES}", shown(&from)),
            ));
        }
        if let Some(first) = self.taken.insert(to.clone(), index) {
            return Err(self.inside(
                index,
                format!("copy[{first}] and copy[{index}] both write {}", quoted(&to)),
            ));
        }
        out.files += 1;
        out.bytes += size;
        self.files.push(FoundFile {
            from,
            to,
            entry: index,
        });
        Ok(())
    }

    fn unusable(&self, index: usize, what: &Pending, kind: &str) -> Diagnostic {
        let mut problem = self.inside(
            index,
            format!("{} is {kind} and cannot be copied", shown(&what.path)),
        );
        problem.suggestion = Some(format!(
            "add {} to {FILE_NAME}",
            quoted(&format!("/{}", what.names.join("/")))
        ));
        problem
    }

    fn inside(&self, index: usize, message: String) -> Diagnostic {
        self.problem(index, format!("copy[{index}]"), message)
    }

    fn problem(&self, index: usize, field: String, message: String) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: self.compiled.path.clone(),
            position: self.compiled.copies.get(index).and_then(|entry| entry.at),
            field: Some(field),
            message,
            suggestion: None,
        }
    }
}

fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
