//! Golden diagnostics: every row of the catalogue, and the shape of what people see.

use fuse_fusefile::excerpt::Excerpts;
use fuse_fusefile::{Diagnostic, check, lint, parse};
use insta::assert_snapshot;

use crate::tree::Memory;

fn lines(problems: &[Diagnostic]) -> String {
    problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect()
}

/// One line for each problem, with the column, which the one-line form leaves out.
fn problems(source: &str) -> String {
    let checked = check("Fusefile", source.as_bytes(), Some(&Memory::default()));
    assert_eq!(checked.compiled.is_none(), !checked.problems.is_empty());
    checked
        .problems
        .iter()
        .map(|problem| match problem.position {
            Some(at) => format!("{}:{}+{} {problem}\n", at.line, at.column, at.width),
            None => format!("- {problem}\n"),
        })
        .collect()
}

#[test]
fn decoding_problems_all_at_once() {
    assert_snapshot!(problems(
        "\
version: 1.5
versoin: 1
x-anchor: 1
resources:
  memroy: 2GB
  cpus: '2'
  gpu: 0.5
  gpu: 1
cache: { enabled: 'true' }
env: nope
copy: src
build:
  - run: make
    <<: { cache: true }
    timeout: 5s
  - [a, b]
  - echo: hi
  - null
  - curl -H 'a: b' x
  - echo key: value
run: [a, 1, true, ~, 2.5, [x], '3', 2001-01-01]
expose: 8080
secrets: [a, {b: c}]
services:
  db: [x]
  web:
    image: [a]
    ports: ['80', 80.7, x, 99999999999999999999]
? [complex]
: 1
"
    ));
}

#[test]
fn scalars_that_are_refused() {
    for (run, cpus) in [
        ("[]", "0.5"),
        ("{a: b}", "3000000000"),
        ("[[a]]", "x"),
        ("[~]", "[1]"),
    ] {
        let source = format!("version: 1\nrun: {run}\nresources: {{ cpus: {cpus} }}\n");
        assert_snapshot!(problems(&source));
    }
}

#[test]
fn structure_problems() {
    assert_snapshot!(problems(
        "\
version: 2
name: My App
placement:
  labels: { 'bad key': ok, good: 'bad value', '': '' }
build:
  - ' '
  - { run: a, workdir: \"a\\nb\" }
  - { run: a, workdir: a/../b }
  - { run: a, cache: false, inputs: [x] }
  - { run: a, inputs: [' ', /etc/passwd, ../x, a/../../y, ok] }
  - { inputs: [] }
setup: [x]
env:
  '': { value: a }
  1A: { value: a, secret: b }
  BOTH: { value: a, secret: b }
  NEITHER: {}
  EMPTY: { secret: '' }
  NULL:
services:
  a:
  b:
    image: x
    ports: [0, 65536, 80]
    env: { ' ': { value: x }, BOTH: { value: a, secret: b }, NONE: }
    depends_on: [a, nope]
    healthcheck: { retries: -1 }
files:
  - { path: a, source: b, content: c }
  - { path: a2 }
copy:
  - { from: ' ', to: '' }
  - { from: a, to: \"a\\nb\" }
  - { from: a, to: a/../b }
workspace: rel
expose:
  - { port: 0 }
  - { port: 0, as: Web }
  - { port: 80, as: web }
  - { port: 80, as: Web }
  - {}
healthcheck:
  http: { path: x }
  exec: [ok, ' ']
  retries: -1
desktop: { width: 100 }
secrets: ['', ok]
"
    ));
}

#[test]
fn structure_problems_in_the_other_branches() {
    assert_snapshot!(problems(
        "\
version: 1
setup:
  - { run: '', workdir: .. }
workspace: /a/../b
healthcheck: {}
services: { a: { depends_on: [] } }
"
    ));
    assert_snapshot!(problems(
        "version: 1\nworkspace: \"/a\\0b\"\nhealthcheck: { exec: [] }\n"
    ));
    assert_snapshot!(problems(""));
    assert_snapshot!(problems("# nothing\n---\n...\n"));
}

#[test]
fn value_problems() {
    assert_snapshot!(problems(
        "\
version: 1
resources:
  cpus: -1
  gpu: -1
  memory: 512
  storage: 0.3MB
  disk: 9999999T
  gpu_profile: 9g.1gb
  gpu_kind: Tesla T4
  max_runtime: -1s
  idle_timeout: 59s
startup_timeout: 0s
files:
  - { path: a, content: x, mode: '8' }
  - { content: x }
  - { path: \"a\\nb\", content: x }
  - { path: a/../b, content: x }
  - { path: a/, content: x }
  - { path: ./a, content: x }
  - { path: /fuse/env, content: x }
  - { path: gone, source: missing.txt }
copy:
  - { from: a, to: /fuse }
  - { from: a, to: x/. }
  - { from: b, to: /workspace//x }
services:
  a:
    image: x
    restart: sometimes
    healthcheck: { interval: soon, timeout: 0s }
healthcheck:
  exec: [a]
  interval: 1500ms
  timeout: 2100ms
  start_period: -1s
"
    ));
}

#[test]
fn value_problems_in_the_other_branches() {
    assert_snapshot!(problems(
        "\
version: 1
resources: { storage: 1GB, disk: 2GB, gpu_profile: 1g.10gb, max_runtime: 1d, idle_timeout: -1m }
startup_timeout: forever
workspace: /
copy:
  - { from: a, to: fuse/x }
files:
  - { path: fuse/x, content: x }
healthcheck: { exec: [a], interval: 1d, timeout: 0s, start_period: x }
"
    ));
    let large = "x".repeat(40_000);
    assert_snapshot!(problems(&format!(
        "version: 1\nfiles:\n- {{path: a, content: {large}}}\n- {{path: b, content: {large}}}\n"
    )));
}

#[test]
fn sources_are_read_and_measured() {
    let source = "version: 1\nfiles:\n- { path: a, source: big }\n- { path: b, source: dir }\n\
                  - { path: c, source: pipe }\n- { path: d, source: empty }\n- { path: e, source: link }\n";
    let tree = Memory::default()
        .file("big", vec![0; 70_000])
        .file("empty", "")
        .dir("dir")
        .fifo("pipe")
        .link("link", "big");
    let checked = check("Fusefile", source.as_bytes(), Some(&tree));
    assert_snapshot!(lines(&checked.problems));
    // Without a tree nothing is read and nothing counts.
    assert_eq!(check("Fusefile", source.as_bytes(), None).problems, []);
}

#[test]
fn syntax_errors_keep_what_came_before() {
    assert_snapshot!(problems("version: 1\nresorces: {}\nrun: [a\nname: x\n"));
    assert_snapshot!(problems("version: 1\nresources:\n\tcpus: 2\n"));
    assert_snapshot!(problems("version: 1\n---\nversion: 1\n"));
    assert_snapshot!(problems("version: 1\n---\n"));
    assert_snapshot!(problems(
        "version: 1\nname: *nope\nrun: !custom x\nenv: &e { A: *e }\n"
    ));
    assert_snapshot!(problems(&format!(
        "version: {}1{}\n",
        "[".repeat(100),
        "]".repeat(100)
    )));
    let checked = check("Fusefile", b"version: 1\nname: \xff\n", None);
    assert_snapshot!(lines(&checked.problems));
    let checked = check("Fusefile", &vec![b' '; (1 << 20) + 1], None);
    assert_snapshot!(lines(&checked.problems));
}

#[test]
fn a_misspelt_key_is_one_problem() {
    assert_snapshot!(problems(
        "verison: 1\nexpose: [{ prot: 80 }]\nhealthcheck: { htpp: { port: 80 } }\n\
         services: { a: { img: x } }\nenv: { A: { valeu: x } }\n"
    ));
}

#[test]
fn excerpts() {
    let source = "version: 1\nresources:\n  memroy: 2GB\nname: \"Büro App\"\n";
    let checked = check("app/Fusefile", source.as_bytes(), None);
    let excerpts = Excerpts::new(source);
    let shown: String = checked
        .problems
        .iter()
        .map(|problem| {
            format!(
                "{problem}\n{}\n",
                excerpts.at(problem.position.unwrap()).unwrap()
            )
        })
        .collect();
    assert_snapshot!(shown);
}

#[test]
fn as_json() {
    let problems = parse("Fusefile", b"version: 1\nresources: { memroy: 2GB }\n").problems;
    assert_snapshot!(serde_json::to_string_pretty(&problems).unwrap());
}

#[test]
fn warnings() {
    let source = "\
version: 1
image: postgres:16
startup_timeout: 2m
setup:
  - { run: 'make # all', workdir: a }
  - { run: \"cat <<E\\nx\\nE\", workdir: a }
  - run: |
      make # fine
    workdir: a
  - exit 0
  - sleep infinity &
run: python3 -m http.server 8000
files:
  - { path: ./-d/x, content: x }
  - { path: -x, content: x, mode: '644' }
  - { path: -y, content: x }
";
    let checked = check("Fusefile", source.as_bytes(), None);
    assert_eq!(checked.problems, []);
    assert_snapshot!(lines(&lint(&checked.document)));
    let quiet = "version: 1\nbuild: [apt-get update]\nrun: nohup python3 -m http.server 8000 &\n";
    assert_eq!(lint(&parse("Fusefile", quiet.as_bytes()).document), []);
}

#[test]
fn a_flood_of_problems_is_cut() {
    let source: String = (0..2000).map(|i| format!("k{i}: 1\n")).collect();
    let problems = parse("Fusefile", source.as_bytes()).problems;
    assert_eq!(problems.len(), 501);
    assert_eq!(problems[500].message, "1500 more problems; fix these first");
}
