//! The examples that ship with the program.

use std::path::PathBuf;

use fuse_fusefile::fs::Disk;
use fuse_fusefile::layers::Plan;
use fuse_fusefile::walk::{Walked, read_ignore};
use fuse_fusefile::{Compiled, Start, check, lint};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn examples() -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = std::fs::read_dir(DIR)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    found.sort();
    found
}

fn compile(dir: &std::path::Path) -> Compiled {
    let source = std::fs::read(dir.join("Fusefile")).unwrap();
    let tree = Disk::new(dir);
    let checked = check("Fusefile", &source, Some(&tree));
    assert_eq!(checked.problems, [], "{}", dir.display());
    assert_eq!(lint(&checked.document), [], "{}", dir.display());
    checked.compiled.unwrap()
}

#[test]
fn every_example_compiles_without_a_warning_and_says_what_it_shows() {
    let names: Vec<_> = examples().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "agent-sandbox",
            "ci-runner",
            "hello",
            "secrets",
            "services",
            "web-app"
        ]
    );
    for (name, dir) in examples() {
        let compiled = compile(&dir);
        assert_eq!(compiled.name.as_deref(), Some(name.as_str()));
        let tree = Disk::new(&dir);
        let (ignore, warnings) = read_ignore(&tree).unwrap();
        assert_eq!(warnings, []);
        let walked = Walked::of(&compiled, &tree, &ignore).unwrap();
        let files = walked.read(&compiled, &tree).unwrap();
        assert_eq!(files.is_empty(), compiled.copies.is_empty(), "{name}");
        let request = compiled.request(&name, &Start::Cold, &files);
        assert!(request.to_json().starts_with("{\n"));
        let plan = Plan::of(&compiled, false, &tree).unwrap();
        assert_eq!(plan.steps.len(), compiled.steps.len());
        let readme = std::fs::read_to_string(dir.join("README.md")).unwrap();
        let command = format!("fuse up -f examples/{name}/Fusefile");
        assert!(readme.contains(&command), "{name}: no {command}");
    }
}

#[test]
fn the_cached_ones_know_what_they_depend_on() {
    let dir = PathBuf::from(DIR).join("web-app");
    let plan = Plan::of(&compile(&dir), false, &Disk::new(&dir)).unwrap();
    assert!(plan.cache_enabled && plan.steps[0].cacheable);
    assert!(!plan.steps[0].inputs_digest.is_empty());
    let dir = PathBuf::from(DIR).join("ci-runner");
    let plan = Plan::of(&compile(&dir), false, &Disk::new(&dir)).unwrap();
    assert_eq!(plan.steps[1].reason, "step opted out with cache: false");
}
