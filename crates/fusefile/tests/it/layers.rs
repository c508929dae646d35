//! Layer keys: what changes them, what does not, and what inputs may be.

use fuse_fusefile::fs::Kind;
use fuse_fusefile::inputs;
use fuse_fusefile::layers::Plan;
use fuse_fusefile::{Compiled, check};

use crate::tree::Memory;

const BASE: &str = "\
version: 1
name: a
image: base
workspace: /w
cache: { enabled: true }
files: [{ path: f, content: x, mode: '644' }]
env: { A: { value: a } }
build:
  - one
  - { run: two, inputs: [lock] }
  - three
run: go
";

fn tree() -> Memory {
    Memory::default().file("lock", "1")
}

fn compiled(source: &str) -> Compiled {
    let checked = check("Fusefile", source.as_bytes(), Some(&Memory::default()));
    assert_eq!(checked.problems, []);
    checked.compiled.unwrap()
}

fn keys(source: &str, tree: &Memory) -> Vec<String> {
    let plan = Plan::of(&compiled(source), false, tree).unwrap();
    plan.steps.into_iter().map(|step| step.key).collect()
}

/// How many leading keys two lists share.
fn shared(a: &[String], b: &[String]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn what_changes_which_keys() {
    let base = keys(BASE, &tree());
    assert_eq!(base.len(), 3);
    for (from, to, unchanged) in [
        // In no key.
        ("run: go", "run: stop", 3),
        ("name: a", "name: b", 3),
        ("value: a", "value: b", 3),
        ("mode: '644'", "mode: '600'", 3),
        ("run: go", "resources: { cpus: 2 }", 3),
        // In every key.
        ("image: base", "image: other", 0),
        ("content: x", "content: y", 0),
        ("path: f", "path: g", 0),
        ("workspace: /w", "workspace: /v", 0),
        // From its step on.
        ("- one", "- one more", 0),
        ("run: two", "run: 'two '", 1),
        ("run: two,", "run: two, workdir: x,", 1),
        ("- three", "- four", 2),
        ("build:", "setup:", 3),
    ] {
        let changed = BASE.replacen(from, to, 1);
        assert_ne!(changed, BASE);
        assert_eq!(
            shared(&base, &keys(&changed, &tree())),
            unchanged,
            "{from} -> {to}"
        );
    }
    assert_eq!(
        shared(&base, &keys(BASE, &Memory::default().file("lock", "2"))),
        1
    );
    assert_eq!(
        shared(
            &base,
            &keys(BASE, &Memory::default().executable("lock", "1"))
        ),
        1
    );
}

#[test]
fn eligibility() {
    let reasons = |source: &str, no_cache| -> Vec<&str> {
        let plan = Plan::of(&compiled(source), no_cache, &tree()).unwrap();
        plan.steps.iter().map(|step| step.reason).collect()
    };
    assert_eq!(reasons(BASE, false), ["", "", ""]);
    assert_eq!(reasons(BASE, true), ["caching is not enabled"; 3]);
    assert_eq!(
        reasons(&BASE.replace("enabled: true", "enabled: false"), false),
        ["caching is not enabled"; 3]
    );
    assert_eq!(
        reasons(&format!("{BASE}resources: {{ gpu: 1 }}\n"), false),
        ["gpu environments cannot be snapshotted"; 3]
    );
    assert_eq!(
        reasons(
            &BASE.replace("- one", "- { run: one, cache: false }"),
            false
        ),
        [
            "step opted out with cache: false",
            "an earlier step is uncacheable",
            "an earlier step is uncacheable"
        ]
    );
    assert_eq!(
        reasons(&BASE.replace("- one", "- { run: one, cache: true }"), false),
        ["", "", ""]
    );
    // Inputs of steps that are not cacheable are not read.
    let skipped = BASE.replace("- one", "- { run: one, cache: false }");
    assert!(Plan::of(&compiled(&skipped), false, &Memory::default()).is_ok());
}

#[test]
fn the_plan_as_json() {
    let source =
        "version: 1\ncache: { enabled: true }\nbuild: [\"a < b\", { run: x, cache: false }]\n";
    let plan = Plan::of(&compiled(source), false, &tree()).unwrap();
    insta::assert_snapshot!(plan.to_json());
    let empty = Plan::of(&compiled("version: 1\n"), false, &tree()).unwrap();
    insta::assert_snapshot!(empty.to_json());
}

#[test]
fn a_bad_input_names_its_step() {
    let problem = Plan::of(&compiled(BASE), false, &Memory::default()).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "Fusefile:10: build[1].inputs: \"lock\" matches nothing"
    );
    let tree = Memory::default().forbidden("lock", Kind::File);
    let problem = Plan::of(&compiled(BASE), false, &tree).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "Fusefile:10: build[1].inputs: cannot read \"lock\": permission denied"
    );
}

fn sum(tree: &Memory, patterns: &[&str]) -> Result<String, String> {
    let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
    inputs::read(tree, &patterns)
        .map(|read| read.digest)
        .map_err(|error| error.to_string())
}

#[test]
fn globs_of_inputs() {
    let tree = Memory::default()
        .file("a.c", "1")
        .file("b.c", "2")
        .file("src/a.c", "3")
        .file("src/deep/er/a.c", "4")
        .file("src/deep/.hidden", "5")
        .file("[x]/y", "6")
        .dir("empty");
    let same = |a: &[&str], b: &[&str]| {
        assert_eq!(sum(&tree, a), sum(&tree, b), "{a:?} {b:?}");
        assert!(sum(&tree, a).is_ok(), "{a:?}: {:?}", sum(&tree, a));
    };
    same(&["*.c"], &["a.c", "b.c"]);
    same(&["./b.c", "a.c", "a.c"], &["?.c"]);
    same(
        &["src"],
        &["src/a.c", "src/deep/er/a.c", "src/deep/.hidden"],
    );
    same(&["src/**"], &["src"]);
    same(&["s*/"], &["src"]);
    same(&["**/a.c"], &["a.c", "src/a.c", "src/deep/er/a.c"]);
    same(&["src/**/**/a.c"], &["src/a.c", "src/deep/er/a.c"]);
    same(&["src/*/.h*"], &["src/deep/.hidden"]);
    same(&["src/../a.c"], &["a.c"]);
    same(&[r"\[x\]/y"], &["[[]x]/y"]);
    same(&["."], &["*"]);
    same(&["empty", "a.c"], &["a.c"]);
    assert_eq!(sum(&tree, &[]), Ok(String::new()));
    assert_ne!(sum(&tree, &["a.c"]), sum(&tree, &["b.c"]));
    for (pattern, error) in [
        ("gone", "\"gone\" matches nothing"),
        ("*.rs", "\"*.rs\" matches nothing"),
        ("a.c/x", "\"a.c/x\" matches nothing"),
        ("a/../../x", "\"a/../../x\" leaves the Fusefile's directory"),
        (
            "/etc/passwd",
            "\"/etc/passwd\" leaves the Fusefile's directory",
        ),
        ("[", "malformed pattern \"[\""),
    ] {
        assert_eq!(sum(&tree, &[pattern]), Err(error.to_owned()));
    }
}

#[test]
fn inputs_are_regular_files_only() {
    let tree = Memory::default()
        .file("real/x", "1")
        .link("link", "real/x")
        .link("dirlink", "real")
        .link("in/link", "../real/x")
        .fifo("pipes/p");
    for (pattern, culprit) in [
        ("link", "link"),
        ("li*", "link"),
        ("dirlink/x", "dirlink"),
        ("dir*/x", "dirlink"),
        ("in", "in/link"),
        ("in/**", "in/link"),
        ("pipes", "pipes/p"),
    ] {
        assert_eq!(
            sum(&tree, &[pattern]),
            Err(format!("\"{culprit}\" is not a regular file or directory"))
        );
    }
}

#[test]
fn many_deep_wildcards_stay_cheap() {
    let mut tree = Memory::default();
    for i in 0..200 {
        tree = tree.file(&format!("{}x{i}", "d/".repeat(i % 20 + 1)), "");
    }
    let pattern = format!("{}nothing", "**/".repeat(15));
    assert_eq!(
        sum(&tree, &[&pattern]),
        Err(format!("\"{pattern}\" matches nothing"))
    );
}
