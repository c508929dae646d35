//! The rules one by one: for each of the catalogue and of decoding a file that breaks it and nothing else, with what is
//! said of it, word for word and at its place; and no message of the code without such a file.
//!
//! After a change: `FUSE_WRITE_RULES=1 cargo test -p fuse-fusefile --test it rules`, then read the difference.

use fuse_fusefile::{Diagnostic, check};

use crate::tree::Memory;

const CATALOGUE: &str = include_str!("rules/catalogue.txt");
const DECODING: &str = include_str!("rules/decoding.txt");

/// Where the messages of the catalogue are made.
const CATALOGUE_CODE: [(&str, &str); 6] = [
    ("mod", include_str!("../../src/validate/mod.rs")),
    ("entries", include_str!("../../src/validate/entries.rs")),
    ("network", include_str!("../../src/validate/network.rs")),
    ("steps", include_str!("../../src/validate/steps.rs")),
    ("limits", include_str!("../../src/compile/limits.rs")),
    ("paths", include_str!("../../src/compile/paths.rs")),
];
/// Where the messages of decoding are made.
const DECODING_CODE: [(&str, &str); 4] = [
    ("build", include_str!("../../src/yaml/build.rs")),
    ("mod", include_str!("../../src/decode/mod.rs")),
    ("object", include_str!("../../src/decode/object.rs")),
    ("value", include_str!("../../src/decode/value.rs")),
];

/// One file and what is said of it.
struct Case {
    title: String,
    source: String,
    expected: String,
}

/// The cases of a text: a title behind `== `, the file up to `--`, then a line for each diagnostic.
fn cases(text: &str) -> Vec<Case> {
    let parts = text.split("\n== ").skip(1).map(|part| format!("{part}\n"));
    parts
        .map(|part| {
            let (title, rest) = part.split_once('\n').unwrap();
            let (source, expected) = rest.split_once("\n--\n").unwrap();
            let expected = expected.trim_end_matches('\n');
            Case {
                title: title.to_owned(),
                source: format!("{source}\n"),
                expected: expected.to_owned(),
            }
        })
        .collect()
}

fn problems(source: &str) -> Vec<Diagnostic> {
    let tree = Memory::default()
        .file("present", "x")
        .file("half", vec![0; 32_768])
        .dir("dir")
        .fifo("pipe");
    check("Fusefile", source.as_bytes(), Some(&tree)).problems
}

fn shown(problems: &[Diagnostic]) -> String {
    let line = |problem: &Diagnostic| {
        let at = problem.position.unwrap();
        format!("{}:{}+{} {problem}", at.line, at.column, at.width)
    };
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Holds every case of a file to what is said of it, or writes that into the file.
fn hold(name: &str, text: &str) {
    let mut written = text.split("\n== ").next().unwrap().to_owned();
    let mut wrong = Vec::new();
    for Case {
        title,
        source,
        expected,
    } in cases(text)
    {
        let said = shown(&problems(&source));
        written += &format!("\n== {title}\n{source}--\n{said}");
        if said != expected {
            wrong.push(format!("{title}: expected\n{expected}\nand got\n{said}"));
        }
    }
    if std::env::var_os("FUSE_WRITE_RULES").is_some() {
        let path = format!("{}/tests/it/rules/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, written.trim_end().to_owned() + "\n").unwrap();
        return;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn of_the_catalogue() {
    hold("catalogue.txt", CATALOGUE);
}

#[test]
fn of_decoding() {
    hold("decoding.txt", DECODING);
}

/// The texts of a program, `{…}` of a format left in; without comments, tests, attributes and match arms.
fn texts(code: &str) -> Vec<String> {
    let code = code.split("#[cfg(test)]\nmod").next().unwrap();
    let lines: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut found = Vec::new();
    let mut rest = lines.as_str();
    while let Some(at) = rest.find('"') {
        // A quote as a character, `'"'`, starts no text.
        if rest[..at].ends_with('\'') {
            rest = &rest[at + 1..];
            continue;
        }
        let excuse = rest[..at].ends_with("reason = ");
        let mut text = String::new();
        let mut chars = rest[at + 1..].char_indices();
        let end = loop {
            match chars.next().unwrap() {
                (_, '\\') => text.extend(chars.next().map(|(_, c)| c)),
                (end, '"') => break at + 1 + end,
                (_, c) => text.push(c),
            }
        };
        rest = &rest[end + 1..];
        let follows = rest.trim_start();
        if !excuse && !follows.starts_with("=>") && !follows.starts_with('|') {
            found.push(text);
        }
    }
    found
}

/// Whether `said` holds a format's own text, in order, whatever its `{…}` became.
fn says(said: &str, format: &str) -> bool {
    let mut rest = said;
    format.split(['{', '}']).step_by(2).all(|piece| {
        let found = rest.find(piece).map(|at| &rest[at + piece.len()..]);
        rest = found.unwrap_or_default();
        found.is_some()
    })
}

fn never_said(code: &[(&str, &str)], cases_of: &str) -> Vec<String> {
    let said: Vec<String> = cases(cases_of)
        .iter()
        .flat_map(|case| problems(&case.source))
        .map(|problem| problem.to_string())
        .collect();
    let mut all = Vec::new();
    for (file, code) in code {
        let texts = texts(code).into_iter();
        let texts = texts.filter(|text| text.contains(char::is_alphabetic));
        all.extend(texts.map(|text| format!("{file}: {text}")));
    }
    assert!(all.len() > 10, "{all:?}");
    let unsaid = |text: &String| {
        let text = text.split_once(": ").unwrap().1;
        !said.iter().any(|said| says(said, text))
    };
    all.into_iter().filter(unsaid).collect()
}

#[test]
fn no_message_of_the_catalogue_is_without_a_case() {
    assert_eq!(never_said(&CATALOGUE_CODE, CATALOGUE), Vec::<String>::new());
}

#[test]
fn no_message_of_decoding_is_without_a_case() {
    let unsaid = never_said(&DECODING_CODE, DECODING);
    // Those that no file of a few lines brings about, or none at all.
    assert_eq!(
        unsaid,
        [
            "build: aliases repeat too much text; write it out or use less",
            "build: no such anchor above",
            "object: key {other} is not read",
        ]
    );
}
