//! A directory in memory, with everything that can go wrong in a real one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use fuse_fusefile::fs::{Kind, Meta, Tree, clean};

#[derive(Debug, Clone)]
enum Node {
    File { content: Vec<u8>, mode: u32 },
    Link(PathBuf),
    Dir,
    Fifo,
    Forbidden(Kind),
}

/// Directories appear with the files in them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    nodes: BTreeMap<PathBuf, Node>,
}

impl Memory {
    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.with(
            path,
            Node::File {
                content: content.as_ref().to_vec(),
                mode: 0o644,
            },
        )
    }

    pub(crate) fn executable(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.with(
            path,
            Node::File {
                content: content.as_ref().to_vec(),
                mode: 0o755,
            },
        )
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        self.with(path, Node::Link(target.into()))
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.with(path, Node::Dir)
    }

    pub(crate) fn fifo(self, path: &str) -> Self {
        self.with(path, Node::Fifo)
    }

    pub(crate) fn forbidden(self, path: &str, kind: Kind) -> Self {
        self.with(path, Node::Forbidden(kind))
    }

    pub(crate) fn with_name(mut self, path: OsString) -> Self {
        self.nodes.insert(
            path.into(),
            Node::File {
                content: Vec::new(),
                mode: 0o644,
            },
        );
        self
    }

    fn with(mut self, path: &str, node: Node) -> Self {
        let path = PathBuf::from(path);
        for parent in path
            .ancestors()
            .skip(1)
            .filter(|p| !p.as_os_str().is_empty())
        {
            self.nodes.entry(parent.to_owned()).or_insert(Node::Dir);
        }
        self.nodes.insert(path, node);
        self
    }

    fn find(&self, path: &Path) -> io::Result<&Node> {
        let path = clean(path);
        if path == Path::new(".") {
            return Ok(&Node::Dir);
        }
        self.nodes
            .get(&path)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn meta(node: &Node) -> Meta {
    let (kind, size, mode) = match node {
        Node::File { content, mode } => (Kind::File, content.len() as u64, *mode),
        Node::Link(_) => (Kind::Symlink, 0, 0o777),
        Node::Dir => (Kind::Dir, 0, 0o755),
        Node::Fifo => (Kind::Other, 0, 0o644),
        Node::Forbidden(kind) => (*kind, 1, 0),
    };
    Meta { kind, size, mode }
}

impl Tree for Memory {
    fn lstat(&self, path: &Path) -> io::Result<Meta> {
        self.find(path).map(meta)
    }

    fn stat(&self, path: &Path) -> io::Result<Meta> {
        let mut path = path.to_owned();
        for _ in 0..10 {
            match self.find(&path)? {
                Node::Link(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
                node => return Ok(meta(node)),
            }
        }
        Err(io::Error::other("too many levels of symbolic links"))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        match self.find(path)? {
            Node::Dir => {}
            Node::Forbidden(_) => return Err(io::ErrorKind::PermissionDenied.into()),
            _ => return Err(io::ErrorKind::NotADirectory.into()),
        }
        let dir = clean(path);
        let dir = if dir == Path::new(".") {
            PathBuf::new()
        } else {
            dir
        };
        Ok(self
            .nodes
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir.as_path()))
            .filter_map(|(path, node)| Some((path.file_name()?.to_owned(), meta(node).kind)))
            // Not in the order of the names, as on a real disk.
            .rev()
            .collect())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        match self.find(path)? {
            Node::File { content, .. } => Ok(Box::new(Cursor::new(content))),
            Node::Forbidden(_) => Err(io::ErrorKind::PermissionDenied.into()),
            Node::Link(target) => self.open(&path.parent().unwrap_or(Path::new("")).join(target)),
            Node::Dir | Node::Fifo => Err(io::ErrorKind::IsADirectory.into()),
        }
    }
}
