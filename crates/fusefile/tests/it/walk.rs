//! `copy`: what travels, what stays behind, what is refused.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fuse_fusefile::find::{FindError, find, write_target};
use fuse_fusefile::fs::{Disk, Kind, Meta, Tree};
use fuse_fusefile::walk::{MAX_COPY_BYTES, Walked, read_ignore};
use fuse_fusefile::{Compiled, Severity, check};

use crate::tree::Memory;

pub(crate) fn compile(copies: &[(&str, &str)]) -> Compiled {
    let entries: Vec<_> = copies
        .iter()
        .map(|(from, to)| serde_json::json!({"from": from, "to": to}))
        .collect();
    let source = serde_json::json!({"version": 1, "copy": entries}).to_string();
    let checked = check("Fusefile", source.as_bytes(), None);
    assert_eq!(checked.problems, []);
    checked.compiled.unwrap()
}

/// Guest paths in the order they were found, or the problem.
pub(crate) fn walk(tree: &dyn Tree, copies: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let compiled = compile(copies);
    let (ignore, _) = read_ignore(tree).map_err(|problem| problem.to_string())?;
    let walked = Walked::of(&compiled, tree, &ignore).map_err(|problem| problem.to_string())?;
    let files = walked
        .read(&compiled, tree)
        .map_err(|problem| problem.to_string())?;
    Ok(files.into_keys().collect())
}

#[test]
fn directories_are_walked_and_files_taken() {
    let tree = Memory::default()
        .file("src/b/c.txt", "c")
        .file("src/a.txt", "a")
        .file("src/dist/x", "dropped")
        .dir("src/empty")
        .file("one.txt", "1")
        .file("dist/named", "named");
    assert_eq!(
        walk(
            &tree,
            &[
                ("src", "app"),
                ("./one.txt", "/etc/uno"),
                ("dist", "/d"),
                ("dist/named", "n")
            ]
        ),
        Ok(vec![
            "/d/named".into(),
            "/etc/uno".into(),
            "/workspace/app/a.txt".into(),
            "/workspace/app/b/c.txt".into(),
            "/workspace/n".into(),
        ])
    );
    // A source directory without files, and one above the Fusefile.
    assert_eq!(walk(&tree, &[("src/empty", "x")]), Ok(vec![]));
    assert_eq!(
        walk(&tree, &[("src/../one.txt", "x")]),
        Ok(vec!["/workspace/x".into()])
    );
    let tree = Memory::default().file("src/x", "");
    assert_eq!(walk(&tree, &[(".", "/")]), Ok(vec!["/src/x".into()]));
}

#[test]
fn sources_that_cannot_be_copied() {
    let tree = Memory::default()
        .file("real", "x")
        .link("link", "real")
        .link("dir/link", "../real")
        .fifo("fifo")
        .fifo("pipes/p")
        .forbidden("locked", Kind::Dir)
        .forbidden("in/secret", Kind::File);
    for (from, message) in [
        (
            "gone",
            "copy[0].from: cannot read \"gone\": entity not found",
        ),
        (
            "link",
            "copy[0].from: \"link\" is a symbolic link; name its target instead",
        ),
        (
            "link/",
            "copy[0].from: \"link/\" is a symbolic link; name its target instead",
        ),
        (
            "fifo",
            "copy[0].from: \"fifo\" is neither a file nor a directory",
        ),
        (
            "dir",
            "copy[0]: \"dir/link\" is a symbolic link and cannot be copied (add \"/link\" to .fuseignore)",
        ),
        (
            "pipes",
            "copy[0]: \"pipes/p\" is neither a file nor a directory and cannot be copied \
             (add \"/p\" to .fuseignore)",
        ),
        (
            "locked",
            "copy[0]: cannot list \"locked\": permission denied",
        ),
        (
            "in",
            "copy[0]: cannot read \"in/secret\": permission denied",
        ),
    ] {
        let problem = walk(&tree, &[(from, "x")]).unwrap_err();
        assert_eq!(problem, format!("Fusefile:1: {message}"));
    }
}

#[test]
fn names_that_cannot_be_guest_paths() {
    use std::os::unix::ffi::OsStringExt as _;
    let name = OsString::from_vec(b"src/\xff.txt".to_vec());
    let tree = Memory::default().dir("src").with_name(name);
    let problem = walk(&tree, &[("src", "x")]).unwrap_err();
    assert_eq!(
        problem,
        "Fusefile:1: copy[0]: the name of \"src/\u{fffd}.txt\" is not UTF-8"
    );
    let tree = Memory::default().file("src/a\nb", "");
    let problem = walk(&tree, &[("src", "x")]).unwrap_err();
    assert_eq!(
        problem,
        "Fusefile:1: copy[0]: control character in the name \"a\\nb\""
    );
    // Dropped ones do not matter.
    let tree = tree.file(".fuseignore", "a*\n");
    assert_eq!(walk(&tree, &[("src", "x")]), Ok(vec![]));
}

#[test]
fn links_that_are_dropped_are_dropped_in_silence() {
    let tree = Memory::default()
        .dir("real")
        .link("src/node_modules", "../real")
        .link("src/loop", "loop")
        .link("src/build", "../nowhere")
        .file("src/x", "")
        .file(".fuseignore", "loop\n/build\n");
    assert_eq!(
        walk(&tree, &[("src", "d")]),
        Ok(vec!["/workspace/d/x".into()])
    );
    // A link to nothing is no directory, so a rule for directories does not drop it.
    let tree = Memory::default().link("src/target", "../nowhere");
    assert!(
        walk(&tree, &[("src", "d")])
            .unwrap_err()
            .contains("is a symbolic link")
    );
}

#[test]
fn two_files_on_one_path() {
    let tree = Memory::default()
        .file("a/x", "")
        .file("b/x", "")
        .file("x", "");
    // One target twice is found by the compiler; here two walks meet.
    let source =
        r#"{"version": 1, "copy": [{"from": "a", "to": "d"}, {"from": "x", "to": "d/x"}]}"#;
    let compiled = check("F", source.as_bytes(), None).compiled.unwrap();
    let (ignore, _) = read_ignore(&tree).unwrap();
    let problem = Walked::of(&compiled, &tree, &ignore).unwrap_err();
    assert_eq!(
        problem.message,
        "copy[0] and copy[1] both write \"/workspace/d/x\""
    );
    assert_eq!(problem.field.as_deref(), Some("copy[1]"));
}

#[test]
fn the_agents_directory_is_out_of_reach() {
    let tree = Memory::default()
        .file("root/etc/x", "")
        .file("root/fuse/env", "");
    let problem = walk(&tree, &[("root", "/")]).unwrap_err();
    assert_eq!(
        problem,
        "Fusefile:1: copy[0]: \"root/fuse/env\" would be /fuse/env, reserved for the guest agent"
    );
}

#[test]
fn the_cap_counts_what_travels() {
    let half = vec![0; usize::try_from(MAX_COPY_BYTES).unwrap() / 2];
    let tree = Memory::default()
        .file("a/1", &half)
        .file("a/2", &half)
        .file("a/ignored.pyc", &half)
        .file("b", "x");
    assert_eq!(walk(&tree, &[("a", "d")]).unwrap().len(), 2);
    assert_eq!(
        walk(&tree, &[("a", "d"), ("b", "e")]).unwrap_err(),
        "Fusefile:1: copy[1]: 524289 bytes at \"b\", limit 524288"
    );
}

#[test]
fn the_ignore_file_itself() {
    let tree = Memory::default().file(".fuseignore", "[\nok\n");
    let (_, warnings) = read_ignore(&tree).unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].severity, Severity::Warning);
    assert_eq!(
        warnings[0].to_string(),
        ".fuseignore:1: malformed pattern \"[\", matches nothing"
    );
    let tree = Memory::default().forbidden(".fuseignore", Kind::File);
    assert_eq!(
        read_ignore(&tree).unwrap_err().to_string(),
        ".fuseignore: cannot read it: permission denied"
    );
}

#[test]
fn reports_and_notes() {
    let tree = Memory::default()
        .file("src/a", vec![0; 1536])
        .file("src/b.log", "")
        .file("src/x/build/y", "")
        .file("src/.env", "")
        .dir("empty")
        .file(".fuseignore", "*.log\n");
    let compiled = compile(&[("src", "d"), ("empty", "e")]);
    let (ignore, _) = read_ignore(&tree).unwrap();
    let walked = Walked::of(&compiled, &tree, &ignore).unwrap();
    assert_eq!(
        walked.report(),
        "copy src -> /workspace/d\n  \
           1 file, 1.5 KB (1 skipped by .fuseignore, 2 by the defaults)\n\
         copy empty -> /workspace/e\n  \
           0 files, 0 B\n\
         total: 1 file, 1.5 KB (limit 512.0 KB)\n"
    );
    assert_eq!(
        walked.default_skip_notes(),
        [
            "copy src: the built-in ignore rules left out .env and 1 more; \
          a line !.env in .fuseignore takes it along"
        ]
    );
    let none = Walked::of(&compile(&[]), &tree, &ignore).unwrap();
    assert_eq!(
        (none.report().as_str(), none.default_skip_notes()),
        ("no copy block\n", vec![])
    );
}

/// Notes every directory that is listed.
struct Watched<'a>(&'a Memory, RefCell<Vec<PathBuf>>);

impl Tree for Watched<'_> {
    fn lstat(&self, path: &Path) -> io::Result<Meta> {
        self.0.lstat(path)
    }
    fn stat(&self, path: &Path) -> io::Result<Meta> {
        self.0.stat(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        self.1.borrow_mut().push(path.to_owned());
        self.0.list(path)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        self.0.open(path)
    }
}

#[test]
fn dropped_directories_are_not_read() {
    let tree = Memory::default()
        .file("src/node_modules/a/b/c", "")
        .file("src/vendor/x/y", "")
        .file("src/keep/z", "")
        .forbidden("src/target", Kind::Dir)
        .file(".fuseignore", "vendor/**\n!vendor/x/y\n");
    let watched = Watched(&tree, RefCell::default());
    // Nothing below a dropped directory can be taken back.
    assert_eq!(
        walk(&watched, &[("src", "d")]),
        Ok(vec!["/workspace/d/keep/z".into()])
    );
    assert_eq!(
        *watched.1.borrow(),
        [Path::new("src"), Path::new("src/keep")]
    );
}

#[test]
fn a_real_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("src/sub")).unwrap();
    std::fs::write(root.join("src/sub/a"), "a").unwrap();
    std::fs::write(root.join("src/b"), "b").unwrap();
    std::fs::write(root.join("Fusefile.yml"), "version: 1\n").unwrap();
    std::fs::create_dir(root.join("Fusefile")).unwrap();
    std::os::unix::fs::symlink("..", root.join("src/up")).unwrap();
    let disk = Disk::new(root);
    assert!(
        walk(&disk, &[("src", "d")])
            .unwrap_err()
            .contains("is a symbolic link")
    );
    std::fs::write(root.join(".fuseignore"), "up\n").unwrap();
    let expected = Ok(vec![
        "/workspace/d/b".to_owned(),
        "/workspace/d/sub/a".to_owned(),
    ]);
    assert_eq!(walk(&disk, &[("src", "d")]), expected);
    let absolute = root.join("src");
    assert_eq!(walk(&disk, &[(absolute.to_str().unwrap(), "d")]), expected);

    // The directory named Fusefile is not one.
    assert_eq!(find(&disk, None), Ok("Fusefile.yml".into()));
    assert_eq!(find(&disk, Some(Path::new("x/y"))), Ok("x/y".into()));
    assert_eq!(
        find(&disk, Some(Path::new("."))),
        Ok("./Fusefile.yml".into())
    );
    assert_eq!(
        find(&disk, Some(Path::new("src"))),
        Err(FindError::NoneIn("src".into()))
    );
    assert_eq!(
        find(&Disk::new(root.join("src")), None)
            .unwrap_err()
            .to_string(),
        "no Fusefile, Fusefile.yaml, Fusefile.yml, fusefile.yaml, fusefile.yml here; \
         write one with fuse init, or name one with -f"
    );
    assert_eq!(
        write_target(&disk, Some(Path::new("src"))),
        Path::new("src/Fusefile")
    );
    assert_eq!(
        write_target(&disk, Some(Path::new("new"))),
        Path::new("new")
    );
    assert_eq!(write_target(&disk, None), Path::new("Fusefile.yml"));
}
