//! The script variants and the manifest's corners, as bytes.

use std::collections::BTreeMap;

use fuse_fusefile::{Compiled, Start, check};

const PRELUDE: &str = "\
set -eu
if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi
mkdir -p '/workspace'
cd '/workspace'
";
const ENV: &str = "set -a\n. /fuse/env\nset +a\n";
const FILE: &str = "base64 -d > 'f' <<'FUSE_FILE_EOF_0'\neA==\nFUSE_FILE_EOF_0\n";
const BEGIN: &str =
    "# fuse: build phase (a failure here exits 90)\ntrap '[ $? -eq 0 ] || exit 90' EXIT\n";
const END: &str = "trap - EXIT\n";
const RUN: &str = "# fuse: run phase\n";

fn compile(source: &str) -> Compiled {
    let source = format!("version: 1\n{source}");
    let checked = check("Fusefile", source.as_bytes(), None);
    assert_eq!(checked.problems, []);
    checked.compiled.unwrap()
}

const FILES: &str = "files: [{ path: f, content: x }]\n";
const STEPS: &str = "build: [one, two]\n";
const GO: &str = "run: go\n";
const ENVS: &str = "env: { A: { value: a } }\n";

#[test]
fn startup() {
    let startup = |source: &str| compile(source).script.startup();
    assert_eq!(startup(""), "");
    assert_eq!(startup(ENVS), "");
    assert_eq!(startup(FILES), format!("{PRELUDE}{FILE}"));
    assert_eq!(startup(GO), format!("{PRELUDE}go\n"));
    assert_eq!(startup(STEPS), format!("{PRELUDE}{BEGIN}one\ntwo\n{END}"));
    assert_eq!(
        startup(&[ENVS, FILES, STEPS, GO].concat()),
        format!("{PRELUDE}{ENV}{FILE}{BEGIN}one\ntwo\n{END}{RUN}go\n")
    );
    // Text is emitted as it is: a block scalar's own line break comes before the emitted one.
    assert_eq!(startup("run: |\n  go\n"), format!("{PRELUDE}go\n\n"));
    assert_eq!(startup("run: ' '\n"), format!("{PRELUDE} \n"));
}

#[test]
fn boots_that_skip_steps() {
    let script = compile(&[ENVS, FILES, STEPS, GO].concat()).script;
    assert_eq!(script.run_only(), format!("{PRELUDE}{ENV}{FILE}go\n"));
    assert_eq!(script.startup_from(0), script.startup());
    assert_eq!(
        script.startup_from(1),
        format!("{PRELUDE}{ENV}{FILE}{BEGIN}two\n{END}{RUN}go\n")
    );
    assert_eq!(script.startup_from(2), script.run_only());
    assert_eq!(script.startup_from(9), script.run_only());
    let steps_only = compile(STEPS).script;
    assert_eq!(
        (steps_only.run_only(), steps_only.startup_from(2)),
        (String::new(), String::new())
    );
}

#[test]
fn builds() {
    let script = compile(&[ENVS, FILES, STEPS, GO].concat()).script;
    assert_eq!(script.build(), format!("{PRELUDE}{FILE}one\ntwo\n"));
    assert_eq!(script.range(0, 2, true), script.build());
    assert_eq!(script.range(0, 1, false), format!("{PRELUDE}one\n"));
    assert_eq!(script.range(1, 99, false), format!("{PRELUDE}two\n"));
    assert_eq!(script.range(2, 2, true), format!("{PRELUDE}{FILE}"));
    for (from, to) in [(2, 2), (1, 0), (5, 2)] {
        assert_eq!(script.range(from, to, false), "");
    }
    assert_eq!(compile(FILES).script.build(), "");
}

#[test]
fn files_emit_directories_and_modes_as_needed() {
    let script = compile(
        "files:\n- { path: ./a//b, content: x, mode: '0600' }\n- { path: /c, content: '' }\n",
    )
    .script
    .startup();
    assert_eq!(
        script,
        format!(
            "{PRELUDE}mkdir -p 'a'\n\
             base64 -d > './a//b' <<'FUSE_FILE_EOF_0'\neA==\nFUSE_FILE_EOF_0\nchmod 0600 './a//b'\n\
             base64 -d > '/c' <<'FUSE_FILE_EOF_1'\nFUSE_FILE_EOF_1\n"
        )
    );
}

#[test]
fn manifests() {
    let manifest = |source: &str| compile(source).manifest;
    assert_eq!(
        manifest(""),
        r#"{"version":"1","machine":{"workspace":"/workspace"},"services":{}}"#
    );
    assert_eq!(
        manifest(
            "workspace: /w\nenv: { B: { value: '' }, A: { value: '', secret: s } }\n\
             services: { b: { image: x, healthcheck: {} }, a: { image: y, ports: [2, 1] } }\n"
        ),
        r#"{"version":"1","machine":{"workspace":"/w","env":{"A":{"secret":"s"},"B":{"value":""}}},"services":{"a":{"image":"y","ports":[2,1]},"b":{"image":"x","healthcheck":{}}}}"#
    );
}

#[test]
fn a_layer_replaces_the_image_and_a_seed_is_refused_with_one() {
    let compiled = compile(&format!("image: base-1\n{STEPS}"));
    let files = BTreeMap::from([("/a".to_owned(), b"x".to_vec())]);
    let cold = compiled.request("t", &Start::Cold, &files);
    assert_eq!(
        (cold.spec.image.as_str(), cold.seed_snapshot_id.as_str()),
        ("base-1", "")
    );
    let layer = compiled.request(
        "t",
        &Start::Layer {
            snapshot: "s",
            steps: 2,
        },
        &files,
    );
    assert_eq!(
        (layer.spec.image.as_str(), layer.seed_snapshot_id.as_str()),
        ("", "s")
    );
    assert_eq!(layer.files["/a"], "eA==");
    assert_eq!(
        compiled.refuses_seed().unwrap().to_string(),
        "Fusefile:2: image: \"base-1\" and --from-build both name the root file system \
         (leave one of them out)"
    );
}

#[test]
fn figures() {
    let compiled = compile(
        "resources: { memory: 0MB, disk: 1025MB, max_runtime: 900ms, idle_timeout: '0' }\n\
         startup_timeout: 1ms\nsecrets: [b, a, b]\n",
    );
    let spec = &compiled.spec;
    assert_eq!(
        (spec.ram_mb, spec.storage_gb, spec.max_runtime_seconds),
        (0, 2, 0)
    );
    assert_eq!(
        (spec.idle_timeout_seconds, compiled.startup_timeout_seconds),
        (0, 1)
    );
    assert_eq!(compiled.required_secrets, ["a", "b"]);
    assert_eq!(spec.to_json(), "{\n  \"storage_gb\": 2\n}\n");
}

#[test]
fn steps_are_where_their_offsets_say() {
    let source = "version: 1\nenv: {A: {value: x}}\nfiles: [{path: f, content: x}]\n\
        build: [one, \"two\\nlines\", {run: three, workdir: w}]\nrun: go\n";
    let compiled = fuse_fusefile::check("F", source.as_bytes(), None)
        .compiled
        .unwrap();
    let script = &compiled.script;
    for from in 0..3 {
        let text = script.startup_from(from);
        let offsets = script.step_offsets(from);
        let found: Vec<&str> = offsets
            .windows(2)
            .map(|pair| text[pair[0]..pair[1]].trim_end())
            .collect();
        assert_eq!(found, script.fragments[from..]);
        assert!(text[offsets[3 - from]..].starts_with("trap - EXIT\n"));
    }
    assert_eq!(script.step_offsets(3), Vec::<usize>::new());
}
