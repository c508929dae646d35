//! Reading `files[].source`: stage 4.
//!
//! Sources are relative to the Fusefile's directory or absolute, and symbolic links are followed. Nothing
//! above the block's limit is read: a larger file is measured instead, so that the compiler can say how
//! large it is.

use std::path::Path;

use crate::decode::Document;
use crate::diagnostic::{Diagnostic, Report, quoted};
use crate::fs::{self, Kind, Tree};

/// Most bytes of all `files` entries together: they travel inside the startup script.
pub const MAX_FILES_BYTES: u64 = 65_536;

/// The body of one `files` entry, as far as it has to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The entry has no source, or nothing was read on purpose. Counts as empty.
    Unread,
    /// The contents.
    Bytes(Vec<u8>),
    /// Not read because it alone is over the limit: its size in bytes.
    TooLarge(u64),
}

/// Bodies of the `files` entries, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    bodies: Vec<Body>,
}

impl Contents {
    /// Contents that were not read: the view of a compiler without a disk.
    #[must_use]
    pub fn unread() -> Self {
        Self::default()
    }

    /// The body of entry `index`.
    #[must_use]
    pub fn body(&self, index: usize) -> &Body {
        self.bodies.get(index).unwrap_or(&Body::Unread)
    }
}

/// Reads every source of the document, with one problem for each that cannot be read.
pub fn read_sources(document: &Document, tree: &dyn Tree) -> (Contents, Vec<Diagnostic>) {
    let mut report = Report::new(&document.path);
    let mut bodies = Vec::with_capacity(document.file.files.len());
    for (i, entry) in document.file.files.iter().enumerate() {
        let source = entry.source.as_str();
        if entry.broken || source.is_empty() {
            bodies.push(Body::Unread);
            continue;
        }
        match read(tree, Path::new(source)) {
            Ok(body) => bodies.push(body),
            Err(reason) => {
                bodies.push(Body::Unread);
                let message = format!("cannot read {}: {reason}", quoted(source));
                report.error(entry.source.at, format!("files[{i}].source"), message);
            }
        }
    }
    (Contents { bodies }, report.into_problems())
}

fn read(tree: &dyn Tree, path: &Path) -> Result<Body, String> {
    let found = tree.stat(path).map_err(|error| error.to_string())?;
    match found.kind {
        Kind::File => {}
        Kind::Dir => return Err("it is a directory; copy takes directories".to_owned()),
        Kind::Symlink | Kind::Other => return Err("it is not a regular file".to_owned()),
    }
    if found.size > MAX_FILES_BYTES {
        return Ok(Body::TooLarge(found.size));
    }
    let bytes = fs::read(tree, path, MAX_FILES_BYTES).map_err(|error| error.to_string())?;
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    // The file grew while it was read.
    Ok(if size > MAX_FILES_BYTES {
        Body::TooLarge(size)
    } else {
        Body::Bytes(bytes)
    })
}
