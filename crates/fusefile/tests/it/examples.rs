//! Worked examples of the format, byte for byte.

use std::collections::BTreeMap;

use fuse_fusefile::layers::Plan;
use fuse_fusefile::walk::{Walked, read_ignore};
use fuse_fusefile::{Compiled, Start, TaskId, check};

use crate::tree::Memory;

macro_rules! example {
    ($name:literal, $file:literal) => {
        include_str!(concat!("examples/", $name, "/", $file))
    };
}

fn compiled(source: &str, tree: &Memory) -> Compiled {
    let checked = check("Fusefile", source.as_bytes(), Some(tree));
    assert_eq!(checked.problems, []);
    checked.compiled.unwrap()
}

fn request(source: &str, dir: &str, tree: &Memory, start: &Start<'_>) -> String {
    let compiled = compiled(source, tree);
    let (ignore, _) = read_ignore(tree).unwrap();
    let walked = Walked::of(&compiled, tree, &ignore).unwrap();
    let files = walked.read(&compiled, tree).unwrap();
    let id = TaskId::choose(None, compiled.name.as_deref(), Some(dir)).id;
    compiled.request(&id, start, &files).to_json()
}

#[test]
fn tiny() {
    let source = example!("tiny", "Fusefile");
    let tree = Memory::default();
    assert_eq!(
        request(source, "tiny", &tree, &Start::Cold),
        example!("tiny", "request.json")
    );
    assert_eq!(
        compiled(source, &tree).manifest,
        example!("tiny", "manifest.json")
    );
}

#[test]
fn toolbox() {
    let source = example!("toolbox", "Fusefile");
    let tree = Memory::default().file("deps.lock", "libfoo 1.2\n");
    assert_eq!(
        request(source, "x", &tree, &Start::Cold),
        example!("toolbox", "request.json")
    );

    let compiled = compiled(source, &tree);
    let plan = Plan::of(&compiled, false, &tree).unwrap();
    let base = "image:28f76b6406db83b1a9666a5528e76b27070a3463c18c9caacb3fef6a03737150";
    let first = "202fee0a7c30b0f38c9a012efa67a122830fc7f0095cd8c5718bb45c520dc3ca";
    let second = "0bc8f372c71ad1054559765c9ca1974027c1f2b26dbda8d358d7da810718f94f";
    assert_eq!(plan.base_key, base);
    assert!(plan.cache_enabled);
    let rows: Vec<_> = plan
        .steps
        .iter()
        .map(|s| {
            (
                s.script.as_str(),
                s.key.as_str(),
                s.parent_key.as_str(),
                s.reason,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("mkdir -p out", first, base, ""),
            ("(cd 'lib/core'; make deps)", second, first, ""),
            ("./enroll.sh", "", "", "step opted out with cache: false"),
            ("touch out/done", "", "", "an earlier step is uncacheable"),
        ]
    );
    assert_eq!(
        plan.steps[1].inputs_digest,
        "8508aff57a3415b2e2d5b166148e322348d1b0172af0580fcd2bbd705fce113d"
    );

    let seeded = compiled.request(
        "toolbox",
        &Start::Layer {
            snapshot: "snap-1",
            steps: 2,
        },
        &BTreeMap::new(),
    );
    assert_eq!(
        seeded.startup_script,
        "set -eu\n\
         if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi\n\
         mkdir -p '/srv/tool box'\n\
         cd '/srv/tool box'\n\
         # fuse: build phase (a failure here exits 90)\n\
         trap '[ $? -eq 0 ] || exit 90' EXIT\n\
         ./enroll.sh\n\
         touch out/done\n\
         trap - EXIT\n\
         # fuse: run phase\n\
         './serve' '--motd' 'it'\\''s up' '$HOME'\n"
    );
    assert_eq!(seeded.seed_snapshot_id, "snap-1");
}

#[test]
fn shop() {
    let source = example!("shop", "Fusefile");
    let tree = Memory::default();
    assert_eq!(
        request(source, "x", &tree, &Start::Cold),
        example!("shop", "request.json")
    );
    assert_eq!(
        compiled(source, &tree).manifest,
        example!("shop", "manifest.json")
    );
}

fn site_tree() -> Memory {
    let ini = "[site]\nname = demo site\nowner = ops team, second floor\nretries = 3\n";
    assert_eq!(ini.len(), 67);
    Memory::default()
        .file("site.ini", ini)
        .file(".env", "K=V\n")
        .file(".fuseignore", "*.log\n")
        .file("src/go.sh", "#!/bin/sh\necho go\n")
        .file("src/.env", "SECRET=1\n")
        .file("src/logs/a.log", "log\n")
        .file("src/node_modules/x/i.js", "0\n")
}

#[test]
fn site() {
    let source = example!("site", "Fusefile");
    let tree = site_tree();
    assert_eq!(
        request(source, "site", &tree, &Start::Cold),
        example!("site", "request.json")
    );

    let compiled = compiled(source, &tree);
    let (ignore, warnings) = read_ignore(&tree).unwrap();
    assert_eq!(warnings, []);
    let walked = Walked::of(&compiled, &tree, &ignore).unwrap();
    assert_eq!(
        walked.report(),
        "copy ./src -> /app/src\n  \
           1 file, 18 B (1 skipped by .fuseignore, 2 by the defaults)\n\
         copy ./.env -> /app/.env\n  \
           1 file, 4 B\n\
         total: 2 files, 22 B (limit 512.0 KB)\n"
    );
    assert_eq!(
        Plan::of(&compiled, false, &tree).unwrap().base_key,
        "image:e3c3c6e79d57bf974a16b15085e341914642c11a8137b4664d640c12e65cc0a2"
    );
}

#[test]
fn mig() {
    let source = example!("mig", "Fusefile");
    let tree = Memory::default();
    assert_eq!(
        request(source, "x", &tree, &Start::Cold),
        example!("mig", "request.json")
    );
    let plan = Plan::of(&compiled(source, &tree), false, &tree).unwrap();
    assert_eq!(
        plan.steps[0].reason,
        "gpu environments cannot be snapshotted"
    );
}

#[test]
fn kiosk() {
    let source = example!("kiosk", "Fusefile");
    let tree = Memory::default();
    assert_eq!(
        request(source, "x", &tree, &Start::Seeded("snap-9")),
        example!("kiosk", "request.json")
    );
    assert_eq!(
        compiled(source, &tree).manifest,
        example!("kiosk", "manifest.json")
    );
    assert_eq!(compiled(source, &tree).refuses_seed(), None);
    let with_image = format!("{source}image: base-1\n");
    let refused = compiled(&with_image, &tree).refuses_seed().unwrap();
    assert_eq!(refused.field.as_deref(), Some("image"));
}

#[test]
fn as_yaml() {
    for (name, source) in [
        ("toolbox", example!("toolbox", "Fusefile")),
        ("shop", example!("shop", "Fusefile")),
    ] {
        let compiled = compiled(source, &Memory::default());
        let request = compiled.request(name, &Start::Cold, &BTreeMap::new());
        insta::assert_snapshot!(request.to_yaml());
    }
}
