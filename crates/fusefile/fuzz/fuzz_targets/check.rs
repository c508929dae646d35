//! Any bytes as a Fusefile: everything the crate does with a file, and what must hold whatever the bytes are.
//! The same checks run on stable in `tests/it/properties.rs` and `tests/it/mutations.rs`.
#![no_main]

use std::collections::BTreeMap;

use fuse_fusefile::excerpt::Excerpts;
use fuse_fusefile::{Start, check, lint};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let checked = check("Fusefile", bytes, None);
    assert_eq!(checked.problems.is_empty(), checked.compiled.is_some());
    let text = String::from_utf8_lossy(bytes);
    let excerpts = Excerpts::new(&text);
    for problem in checked.problems.iter().chain(&lint(&checked.document)) {
        let line = problem.to_string();
        assert!(!line.contains(['\n', '\r', '\u{1b}']), "{line:?}");
        assert!(line.chars().count() < 2_000, "{line}");
        if let Some(excerpt) = problem.position.and_then(|at| excerpts.at(at)) {
            assert!(!excerpt.line.contains(char::is_control));
        }
    }
    if let Some(compiled) = &checked.compiled {
        let request = compiled.request("t", &Start::Cold, &BTreeMap::new());
        assert!(request.to_json().ends_with("}\n"));
        assert!(request.to_yaml().ends_with('\n'));
    }
});
