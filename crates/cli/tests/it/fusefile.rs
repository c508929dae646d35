//! `validate` and `compile`: no network, no context.

use crate::fuse::User;

fn user() -> User {
    let user = User::new();
    user.write(
        "Fusefile",
        "version: 1\nname: shop\nresources: {cpus: 1}\nrun: echo hi\nexpose: [{port: 80, as: http}, {port: 53}]\nsecrets: [B, A]\n",
    );
    user.write(
        "bad/Fusefile",
        "version: 2\nresources:\n  memroy: 1GB\nrun: sleep infinity\n",
    );
    user
}

#[test]
fn validity_is_the_exit_status() {
    let user = user();
    let run = user.run(&["validate"]).ok();
    assert_eq!(run.stdout, "");
    assert_eq!(run.stderr, "Fusefile is valid\nrequired secrets: A, B\n");
    let run = user.run(&["validate", "bad"]).exits(1);
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", run.stdout);
    assert!(
        lines.iter().all(|line| line.starts_with("bad/Fusefile:")),
        "{}",
        run.stdout
    );
    user.run(&["validate", "--quiet", "bad"])
        .exits(1)
        .prints("");
    user.run(&["validate", "nowhere"])
        .exits(2)
        .says("warning: nowhere: ");
    let run = user
        .run(&["validate", "--secrets-file", "nowhere"])
        .exits(2);
    assert!(
        run.stderr.starts_with("warning: could not read nowhere"),
        "{}",
        run.stderr
    );
    let run = user.run(&["validate", "nowhere", "--quiet"]).exits(2);
    assert_eq!(run.stderr, "");
}

#[test]
fn a_person_sees_the_place() {
    let Some(run) = user().run_on_terminal(&["validate", "bad"]) else {
        return;
    };
    let text = run.exits(1).stdout.replace("\r\n", "\n");
    assert!(text.contains("bad/Fusefile:3: resources: "), "{text}");
    assert!(
        text.contains("    3 |   memroy: 1GB\n      |   ^^^^^^\n"),
        "{text}"
    );
}

#[test]
fn json_is_always_whole() {
    let user = user();
    assert_eq!(
        user.run(&["validate", "-o", "json", "--quiet"]).ok().json(),
        serde_json::json!({"path": "Fusefile", "valid": true, "errors": [], "required_secrets": ["A", "B"]})
    );
    let json = user.run(&["validate", "-o", "json", "bad"]).exits(1).json();
    assert_eq!(json["valid"], false);
    assert_eq!(json["errors"][0]["line"], 3);
    assert_eq!(json["errors"][0]["path"], "resources");
}

#[test]
fn secrets_are_checked_on_request() {
    let run = user()
        .run(&["validate", "--check-secrets", "--secret", "A=1"])
        .exits(1);
    assert_eq!(run.stdout, "Fusefile: secrets: B has no value\n");
    user()
        .run(&[
            "validate",
            "--check-secrets",
            "--secret",
            "A=1",
            "--secret",
            "B=2",
        ])
        .ok();
}

#[test]
fn a_request_in_every_layout_and_its_parts() {
    let user = user();
    let text = user.run(&["compile"]).ok().stdout;
    assert!(text.starts_with("task id  shop\n\nspec\n"), "{text}");
    assert_eq!(
        user.run(&["compile", "-o", "json"]).ok().json()["task_id"],
        "shop"
    );
    let yaml = user
        .run(&["compile", "--format", "yaml", "--task-id", "x"])
        .ok()
        .stdout;
    assert!(yaml.starts_with("task_id: x\n"), "{yaml}");
    user.run(&["compile", "--only", "secrets"])
        .ok()
        .prints("A\nB\n");
    user.run(&["compile", "--only", "expose"])
        .ok()
        .prints("80 http\n53\n");
    user.run(&["compile", "--only", "spec"])
        .ok()
        .prints("{\n  \"cpus\": 1\n}\n");
    let script = user
        .run(&["compile", "--only", "startup-script"])
        .ok()
        .stdout;
    assert!(
        script.starts_with("set -eu\n") && script.ends_with("echo hi\n"),
        "{script}"
    );
    let seeded = user.run(&["compile", "--from-build", "snap-9"]).ok().stdout;
    assert!(
        seeded.starts_with("task id  shop\nseed snapshot  snap-9 (setup phase skipped)\n\nspec\n"),
        "{seeded}"
    );
    user.write(
        "imaged/Fusefile",
        "version: 1\nimage: base\nrun: \"true\"\n",
    );
    user.run(&["compile", "imaged", "--from-build", "snap-9"])
        .exits(1)
        .says("imaged/Fusefile:2: image: \"base\" and --from-build both name the root file system");
    user.run(&["compile", "--only", "spec", "--format", "json"])
        .exits(1);
    user.run(&["compile", "bad"])
        .exits(1)
        .says("bad/Fusefile:1: version");
}

/// The files that the compiler's own tests hold to the rules, with what is said of each; `line:column+width` before
/// a diagnostic is not printed.
const RULES: [&str; 2] = [
    include_str!("../../../fusefile/tests/it/rules/catalogue.txt"),
    include_str!("../../../fusefile/tests/it/rules/decoding.txt"),
];

#[test]
fn the_program_says_of_each_rule_what_the_compiler_does() {
    let user = User::new();
    user.write("present", "x");
    user.write("half", &"x".repeat(32_768));
    user.write("dir/x", "");
    let fifo = std::process::Command::new("mkfifo")
        .arg(user.home().join("pipe"))
        .status();
    assert!(fifo.unwrap().success());
    let mut count = 0;
    for case in RULES.iter().flat_map(|text| text.split("\n== ").skip(1)) {
        let (title, rest) = case.split_once('\n').unwrap();
        let rest = format!("{rest}\n");
        let (source, expected) = rest.split_once("\n--\n").unwrap();
        let lines = expected.trim().lines().map(|line| {
            let (_at, line) = line.split_once(' ').unwrap();
            line.replace("entity not found", "No such file or directory (os error 2)") + "\n"
        });
        let expected: String = lines.collect();
        user.write("Fusefile", &format!("{source}\n"));
        let run = user.run(&["validate"]);
        let code = i32::from(!expected.is_empty());
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (code, expected.as_str()),
            "{title}: {run:?}"
        );
        let valid = run.stderr.contains("Fusefile is valid\n");
        assert_eq!(valid, code == 0, "{title}: {run:?}");
        count += 1;
    }
    assert!(count > 140, "{count}");
}
