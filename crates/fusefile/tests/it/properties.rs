//! Whatever somebody writes into a file, the answer is an answer.

use fuse_fusefile::excerpt::Excerpts;
use fuse_fusefile::layers::Plan;
use fuse_fusefile::{Start, check, lint};
use proptest::prelude::*;

use crate::tree::Memory;

const COMPLETE: &[u8] = include_bytes!("complete.yaml");

/// Everything the crate does with a file; returns whether it compiled.
pub(crate) fn everything(source: &[u8]) -> bool {
    let tree = Memory::default().file("a", "x").file("complete.yaml", "y");
    let checked = check("Fusefile", source, Some(&tree));
    assert_eq!(checked.problems.is_empty(), checked.compiled.is_some());
    let text = String::from_utf8_lossy(source);
    let excerpts = Excerpts::new(&text);
    for problem in checked.problems.iter().chain(&lint(&checked.document)) {
        let line = problem.to_string();
        assert!(!line.contains(['\n', '\r', '\u{1b}']), "{line:?}");
        assert!(line.chars().count() < 2_000, "{line}");
        if let Some(at) = problem.position {
            assert!(at.line >= 1 && at.column >= 1 && at.width >= 1);
            let shown = excerpts.at(at);
            assert!(shown.is_none_or(|e| e.width >= 1 && !e.line.contains(char::is_control)));
        }
    }
    if let Some(compiled) = &checked.compiled {
        let request = compiled.request("t", &Start::Cold, &std::collections::BTreeMap::new());
        assert_eq!(request.startup_script, compiled.script.startup_from(0));
        let count = compiled.script.fragments.len();
        assert_eq!(compiled.script.range(0, count, true), {
            let build = compiled.script.build();
            if build.is_empty() {
                compiled.script.range(0, 0, true)
            } else {
                build
            }
        });
        assert!(request.to_json().ends_with("}\n"));
        if let Ok(plan) = Plan::of(compiled, false, &tree) {
            assert_eq!(plan.steps.len(), count);
        }
        let again = check("Fusefile", source, Some(&tree)).compiled.unwrap();
        assert_eq!(
            again
                .request("t", &Start::Cold, &Default::default())
                .to_json(),
            request.to_json()
        );
    }
    checked.compiled.is_some()
}

#[test]
fn the_complete_file_is_fine() {
    assert!(everything(COMPLETE));
}

/// YAML's own characters, words of the format, and rubbish.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-:?,{}\\[\\]&*!|>'\"%@`#~<= \n\t]{1,4}",
        prop::sample::select(vec![
            "version: 1\n",
            "build:\n",
            "- ",
            "  ",
            "run: ",
            "&a ",
            "*a",
            "<<: ",
            "services:\n",
            "env: ",
            "value: ",
            "expose:\n",
            "port: 80\n",
            "---\n",
            "...\n",
            "resources: ",
            "memory: 1GB",
            "files:\n",
            "content: |\n",
            "null",
            "~",
            "!!str ",
            "\"\\u0000\"",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        everything(&bytes);
    }

    #[test]
    fn yaml_soup(tokens in prop::collection::vec(token(), 0..40)) {
        everything(tokens.concat().as_bytes());
    }

    /// A good file with a few bytes changed, dropped or doubled.
    #[test]
    fn damaged_files(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6)) {
        let mut bytes = COMPLETE.to_vec();
        for (at, byte, what) in edits {
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        everything(&bytes);
    }

    /// Text survives the way from YAML to the manifest and the request.
    #[test]
    fn text_arrives_as_written(value in "\\PC{0,30}", run in "[^\0-\\x08\\x0b-\\x1f\\x7f-\\u{9f}\\u{fffe}\\u{ffff}]{1,30}") {
        let quoted = serde_json::to_string(&value).unwrap();
        let command = serde_json::to_string(&run).unwrap();
        let source = format!("version: 1\nenv: {{ A: {{ value: {quoted} }} }}\nrun: {command}\n");
        let checked = check("Fusefile", source.as_bytes(), None);
        prop_assert_eq!(checked.problems, vec![]);
        let compiled = checked.compiled.unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&compiled.manifest).unwrap();
        prop_assert_eq!(manifest["machine"]["env"]["A"]["value"].as_str(), Some(value.as_str()));
        let request = compiled.request("t", &Start::Cold, &Default::default());
        let end = format!("set +a\n{run}\n");
        prop_assert!(request.startup_script.ends_with(&end));
        let json: serde_json::Value = serde_json::from_str(&request.to_json()).unwrap();
        prop_assert_eq!(json["startup_script"].as_str(), Some(request.startup_script.as_str()));
    }
}
