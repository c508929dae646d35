//! What YAML may look like, and what it means.

use fuse_fusefile::model::{Fusefile, Run};
use fuse_fusefile::{check, parse};

fn file(source: &str) -> Fusefile {
    let parsed = parse("Fusefile", source.as_bytes());
    assert_eq!(parsed.problems, [], "{source}");
    parsed.document.file
}

/// The one-line problems of stage 2.
fn problems(source: &str) -> Vec<String> {
    parse("F", source.as_bytes())
        .problems
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn text_is_the_source_text() {
    let f = file("name: 123\nimage: 0x1F\nrun: 5\nfiles: [{mode: 0755, path: yes, content: 1.50}]");
    assert_eq!((f.name.as_str(), f.image.as_str()), ("123", "0x1F"));
    assert_eq!(f.run.value, Run::Shell("5".into()));
    let entry = &f.files[0];
    assert_eq!((entry.mode.as_str(), entry.path.as_str()), ("0755", "yes"));
    assert_eq!(entry.content.as_deref(), Some("1.50"));
}

#[test]
fn null_is_absent_and_empty_is_not_always() {
    let f =
        file("name:\nrun: ~\nbuild: null\ndesktop:\nfiles:\n- { content: '' }\n- { content: }\n");
    assert_eq!(f.name.at, None);
    assert_eq!(f.run.value, Run::Absent);
    assert!(f.build.is_empty() && f.desktop.is_none());
    assert_eq!(f.files[0].content.as_deref(), Some(""));
    assert_eq!(f.files[1].content.as_deref(), None);
    assert_eq!(file("run: ''").run.value, Run::Absent);
    assert_eq!(file("run: ' '").run.value, Run::Shell(" ".into()));
}

#[test]
fn numbers_and_truth_values() {
    let f = file(
        "version: 1.0\nresources: {cpus: 0x2, gpu: 1e0}\ndesktop: {width: 1_000, height: 0o1750}",
    );
    assert_eq!((*f.version, *f.resources.cpus, *f.resources.gpu), (1, 2, 1));
    let desktop = f.desktop.value.unwrap();
    assert_eq!((*desktop.width, *desktop.height), (1000, 1000));
    for (text, value) in [
        ("true", true),
        ("Yes", true),
        ("'on'", true),
        ("OFF", false),
        ("n", false),
    ] {
        assert_eq!(
            *file(&format!("cache: {{enabled: {text}}}")).cache.enabled,
            value,
            "{text}"
        );
    }
    for text in ["'true'", "1", "yEs", "[]"] {
        assert_eq!(
            problems(&format!("cache: {{enabled: {text}}}")).len(),
            1,
            "{text}"
        );
    }
}

#[test]
fn null_items_are_dropped_and_null_map_values_exist() {
    let f =
        file("build: [a, ~, b]\nsecrets: [x, null]\nservices: {db: }\nplacement: {labels: {a: }}");
    assert_eq!(
        f.build.iter().map(|s| s.run.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(f.secrets.len(), 1);
    assert!(f.services["db"].value.image.is_empty());
    assert_eq!(f.placement.labels["a"].value.as_str(), "");
}

#[test]
fn exec_form_takes_text_only() {
    let f = file("run: [a, '1', \"true\", !!str 5, ! 6, y, <b>]");
    let Run::Exec(arguments) = f.run.value else {
        panic!("exec form")
    };
    assert_eq!(arguments, ["a", "1", "true", "5", "6", "y", "<b>"]);
}

#[test]
fn anchors_aliases_and_merges() {
    let f = file(
        "\
services:
  a: &base
    image: &image x
    ports: &ports [1, 2]
  b:
    <<: *base
    image: y
  c: { image: *image, ports: *ports }
  d:
    <<: [{ image: z, restart: always }, *base]
",
    );
    let service = |name: &str| f.services[name].value.value.clone();
    assert_eq!(service("b").image.as_str(), "y");
    assert_eq!(service("b").ports.len(), 2);
    assert_eq!(service("c").image.as_str(), "x");
    assert_eq!(service("c").ports.len(), 2);
    assert_eq!(
        (service("d").image.as_str(), service("d").restart.as_str()),
        ("z", "always")
    );
    assert_eq!(service("d").ports.len(), 2);
}

#[test]
fn bad_aliases_and_merges() {
    assert_eq!(
        problems("services:\n  a: { <<: x, image: y }\n  b: { <<: [1], image: y }\n"),
        [
            "F:2: services.a: expected an object to merge, found text",
            "F:3: services.b: expected an object to merge, found a number",
        ]
    );
    assert_eq!(
        problems("cache: {enabled: true}\nresources: {'<<': 1}\n"),
        [
            "F:2: resources: unknown key \"<<\" (known keys: cpus, memory, disk, storage, gpu, \
          gpu_kind, gpu_profile, region, max_runtime, idle_timeout)"
        ]
    );
}

#[test]
fn what_aliases_repeat_is_bounded() {
    // Nine levels of nine: 387 million values from a dozen lines.
    let mut bomb = String::from("env: &a0 { A: { value: x } }\n");
    for level in 1..=9 {
        let items = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("k{level}: &a{level} [{items}]\n"));
    }
    let found = problems(&bomb);
    assert!(
        found
            .iter()
            .any(|p| p.contains("aliases repeat too much text")),
        "{found:?}"
    );

    // One large text, many times.
    let mut large = format!("name: &big {}\nsecrets:\n", "x".repeat(100_000));
    large.push_str(&"- *big\n".repeat(100));
    assert_eq!(problems(&large).len(), 1);

    // A chain of merges.
    let mut chain = String::from("services:\n  s0: &s0 { image: x }\n");
    for i in 1..5000 {
        chain.push_str(&format!("  s{i}: &s{i} {{ <<: *s{} }}\n", i - 1));
    }
    assert_eq!(problems(&chain).len(), 1);
}

#[test]
fn documents_and_encodings() {
    for source in [
        "---\nversion: 1\n",
        "version: 1\n...\n",
        "\u{feff}version: 1\n",
        "version: 1\r\n",
    ] {
        assert_eq!(*file(source).version, 1, "{source:?}");
    }
    let utf16: Vec<u8> = "\u{feff}version: 1\nname: é\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(parse("F", &utf16).document.file.name.as_str(), "é");
    // A document marker inside a block scalar is text.
    assert_eq!(
        file("run: |\n  a\n  ---\n  b\n").run.value,
        Run::Shell("a\n---\nb\n".into())
    );
}

#[test]
fn block_scalars_keep_their_line_ends() {
    for (source, text) in [
        ("run: |\n  a\n  b\n", "a\nb\n"),
        ("run: |-\n  a\n", "a"),
        ("run: |+\n  a\n\n", "a\n\n"),
        ("run: >\n  a\n  b\n", "a b\n"),
        ("run: |\r\n  a\r\n  b\r\n", "a\nb\n"),
        // The last line of the file has no line break, so the text has none.
        ("run: |\n  a", "a"),
        ("run: |2\n    a\n", "  a\n"),
    ] {
        assert_eq!(
            file(source).run.value,
            Run::Shell(text.into()),
            "{source:?}"
        );
    }
}

#[test]
fn positions_are_lines_and_columns_of_characters() {
    let parsed = parse("F", "name: é\r\nenv: { ÄÖ: { x: 1 } }\r\n".as_bytes());
    let at = parsed.problems[0].position.unwrap();
    assert_eq!((at.line, at.column, at.width), (2, 14, 1));
    let checked = check("F", b"\xef\xbb\xbfversion: 1\nname: A\n", None);
    let at = checked.problems[0].position.unwrap();
    assert_eq!((at.line, at.column), (2, 7));
}

#[test]
fn every_key_of_the_format_is_read() {
    // Each key misspelt by one letter is offered, and each as it is gives no unknown key.
    let source = include_str!("complete.yaml");
    let parsed = parse("F", source.as_bytes());
    assert_eq!(parsed.problems, []);
}
