//! `copy` against `.fuseignore` and a real disk: rules, links, files that cannot be read.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;

use fuse_fusefile::fs::{Disk, Kind, Meta, Tree};
use fuse_fusefile::walk::{MAX_COPY_BYTES, Walked, read_ignore};

use crate::tree::Memory;
use crate::walk::{compile, walk};

/// One file decides, and it decides for each entry from that entry's own directory.
#[test]
fn rules_are_relative_to_the_source_of_each_entry() {
    let tree = Memory::default()
        .file(
            ".fuseignore",
            "/top\nsub/x\n!/keep.pem\nB?[0-9][^a]\n\\*\nend\\ \n",
        )
        .file(".gitignore", "*\n")
        .file("a/.fuseignore", "*\n")
        .file("a/.gitignore", "*\n")
        .file("a/top", "")
        .file("a/deep/top", "")
        .file("a/sub/x", "")
        .file("a/deep/sub/x", "")
        .file("a/keep.pem", "")
        .file("a/deep/keep.pem", "")
        .file("b/a/top", "")
        .file("b/Bx1z", "")
        .file("b/Bx1a", "")
        .file("b/bx1z", "")
        .file("b/*", "")
        .file("b/star*", "");
    let found = walk(&tree, &[("a", "/1"), ("b", "/2"), ("b/*", "/3")]).unwrap();
    assert_eq!(
        found,
        [
            "/1/.fuseignore",
            "/1/.gitignore",
            "/1/deep/sub/x",
            "/1/deep/top",
            "/1/keep.pem",
            "/2/Bx1a",
            "/2/a/top",
            "/2/bx1z",
            "/2/star*",
            "/3",
        ]
    );
    // A backslash at the end escapes nothing: trailing blanks are gone by then.
    let (_, warnings) = read_ignore(&tree).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].to_string().contains(r#""end\\""#),
        "{}",
        warnings[0]
    );
}

/// A tree whose files can be listed and measured, and not read.
struct Unreadable<'a>(&'a Memory);

impl Tree for Unreadable<'_> {
    fn lstat(&self, path: &Path) -> io::Result<Meta> {
        self.0.lstat(path)
    }
    fn stat(&self, path: &Path) -> io::Result<Meta> {
        self.0.stat(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        self.0.list(path)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        if path == Path::new(".fuseignore") {
            return self.0.open(path);
        }
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[test]
fn a_file_that_may_not_be_read_is_named() {
    let tree = Memory::default().file("src/a", "x").file("src/b.pyc", "x");
    let problem = walk(&Unreadable(&tree), &[("src", "d")]).unwrap_err();
    assert_eq!(
        problem,
        "Fusefile:1: copy[0]: cannot read \"src/a\": permission denied"
    );
}

/// Links are not followed, so a loop is one more link; nor does a file that grows get past the cap.
#[test]
fn loops_and_growing_files_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("src/a")).unwrap();
    std::fs::write(root.join("src/a/x"), "x").unwrap();
    std::os::unix::fs::symlink("../..", root.join("src/a/up")).unwrap();
    std::os::unix::fs::symlink("self", root.join("src/self")).unwrap();
    let disk = Disk::new(root);
    let problem = walk(&disk, &[("src", "d")]).unwrap_err();
    assert!(
        problem.contains("\"src/a/up\" is a symbolic link"),
        "{problem}"
    );
    std::fs::write(root.join(".fuseignore"), "up/\nself\n").unwrap();
    assert_eq!(
        walk(&disk, &[("src", "d")]),
        Ok(vec!["/workspace/d/a/x".to_owned()])
    );

    let compiled = compile(&[("src", "d")]);
    let (ignore, _) = read_ignore(&disk).unwrap();
    let walked = Walked::of(&compiled, &disk, &ignore).unwrap();
    let over = usize::try_from(MAX_COPY_BYTES).unwrap() + 1;
    std::fs::write(root.join("src/a/x"), vec![0; over]).unwrap();
    let problem = walked.read(&compiled, &disk).unwrap_err();
    assert!(problem.message.contains("over the limit"), "{problem}");
}
