//! Compiled scripts under real shells: what they do, not only what they say.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

use fuse_fusefile::{Compiled, check};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::tree::Memory;

type Shell = &'static [&'static str];

/// The shells that a guest may have, as programs with their first arguments.
const SHELLS: [Shell; 3] = [&["dash"], &["bash", "--posix"], &["busybox", "sh"]];

/// Those of them that are here. What is missing is said once, past the harness's capture.
static HERE: LazyLock<Vec<Shell>> = LazyLock::new(|| {
    let here = |shell: &Shell| {
        let tried = Command::new(shell[0])
            .args(&shell[1..])
            .args(["-c", ":"])
            .output();
        let works = tried.is_ok_and(|output| output.status.success());
        if !works {
            writeln!(
                std::io::stderr().lock(),
                "SKIP shells: {} is not installed",
                shell[0]
            )
            .unwrap();
        }
        works
    };
    SHELLS.into_iter().filter(here).collect()
});

/// Runs `f` for each shell that is here.
fn each_shell(f: impl Fn(Shell)) {
    HERE.iter().for_each(|shell| f(shell));
}

fn sh(shell: &[&str], home: &Path, script: &str) -> Output {
    Command::new(shell[0])
        .args(&shell[1..])
        .args(["-lc", script])
        .env("HOME", home)
        .output()
        .unwrap()
}

fn compile(source: &str) -> Compiled {
    let checked = check("Fusefile", source.as_bytes(), Some(&Memory::default()));
    assert_eq!(checked.problems, []);
    checked.compiled.unwrap()
}

/// A Fusefile of JSON, which is YAML, in a workspace below `dir`.
fn fusefile(dir: &Path, mut value: serde_json::Value) -> String {
    value["version"] = 1.into();
    if value.get("workspace").is_none() {
        value["workspace"] = dir.join("work").to_str().unwrap().into();
    }
    // YAML wants escapes for some characters that JSON takes literally.
    value
        .to_string()
        .chars()
        .map(|c| match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                format!("\\u{:04x}", u32::from(c))
            }
            c => c.to_string(),
        })
        .collect()
}

fn run(shell: &[&str], value: serde_json::Value) -> (TempDir, Output) {
    let dir = TempDir::new().unwrap();
    let script = compile(&fusefile(dir.path(), value)).script.startup();
    let output = sh(shell, dir.path(), &script);
    (dir, output)
}

#[track_caller]
fn assert_status(output: &Output, code: i32) {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const HOSTILE: [&str; 10] = [
    "it's",
    "a \"b\" c",
    "$HOME",
    "`id`",
    "$(id)",
    "*?[a-z]",
    "a\\nb\\",
    ";rm -rf x;#",
    "~root",
    "日本 é",
];

#[test]
fn files_with_hostile_names_modes_and_contents() {
    each_shell(|shell| {
        let binary: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let dir = TempDir::new().unwrap();
        let mut tree = Memory::default().file("binary", &binary).file("empty", "");
        tree = tree.file("line", "x".repeat(57));
        let mut files = vec![
            serde_json::json!({"path": "deep/er/binary", "source": "binary", "mode": "0640"}),
            serde_json::json!({"path": "empty", "source": "empty"}),
            serde_json::json!({"path": "./line", "source": "line", "mode": "755"}),
            serde_json::json!({"path": dir.path().join("abs/olute"), "content": "FUSE_FILE_EOF_0\n"}),
        ];
        for name in HOSTILE {
            files.push(serde_json::json!({"path": format!("{name}/{name}"), "content": name}));
        }
        let workspace = dir.path().join("it's a \"work\" $dir *");
        let source = fusefile(
            dir.path(),
            serde_json::json!({"files": files, "workspace": workspace}),
        );
        let checked = check("Fusefile", source.as_bytes(), Some(&tree));
        assert_eq!(checked.problems, []);
        let script = checked.compiled.unwrap().script.startup();
        // Twice: files are rewritten on every boot.
        for _ in 0..2 {
            assert_status(&sh(shell, dir.path(), &script), 0);
        }
        let mode = |path: &str| {
            fs::metadata(workspace.join(path))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!(fs::read(workspace.join("deep/er/binary")).unwrap(), binary);
        assert_eq!(mode("deep/er/binary"), 0o640);
        assert_eq!(fs::read(workspace.join("empty")).unwrap(), b"");
        assert_eq!(
            fs::read(workspace.join("line")).unwrap(),
            "x".repeat(57).as_bytes()
        );
        assert_eq!(mode("line"), 0o755);
        assert_eq!(
            fs::read(dir.path().join("abs/olute")).unwrap(),
            b"FUSE_FILE_EOF_0\n"
        );
        for name in HOSTILE {
            assert_eq!(
                fs::read(workspace.join(name).join(name)).unwrap(),
                name.as_bytes()
            );
        }
        // Nothing but what was asked for.
        assert_eq!(fs::read_dir(&workspace).unwrap().count(), HOSTILE.len() + 3);
    });
}

#[test]
fn a_failing_step_exits_90_and_stops() {
    each_shell(|shell| {
        for step in [
            "false",
            "exit 7",
            "(exit 3)",
            "nosuchcommand",
            "echo $unset_variable",
        ] {
            let steps = serde_json::json!(["touch before", step, "touch after"]);
            let (dir, output) = run(
                shell,
                serde_json::json!({"build": steps, "run": "touch ran"}),
            );
            assert_status(&output, 90);
            let there = |name: &str| dir.path().join("work").join(name).exists();
            assert!(
                there("before") && !there("after") && !there("ran"),
                "{step}"
            );
        }
        let steps = serde_json::json!([{"run": "exit 5", "workdir": "."}]);
        let (_dir, output) = run(shell, serde_json::json!({"build": steps}));
        assert_status(&output, 90);
    });
}

#[test]
fn other_failures_keep_their_status() {
    each_shell(|shell| {
        let (_dir, output) = run(
            shell,
            serde_json::json!({"build": ["true"], "run": "exit 7"}),
        );
        assert_status(&output, 7);
        let (_dir, output) = run(shell, serde_json::json!({"run": "exit 7"}));
        assert_status(&output, 7);
        // The files block fails before there is a build phase.
        let files =
            serde_json::json!([{"path": "a", "content": "x"}, {"path": "a/b", "content": "x"}]);
        let (_dir, output) = run(
            shell,
            serde_json::json!({"files": files, "build": ["true"]}),
        );
        let code = output.status.code().unwrap();
        assert!(code != 0 && code != 90, "{code}");
        // So does the prelude.
        let value = serde_json::json!({"workspace": "/dev/null/x", "build": ["true"]});
        let (_dir, output) = run(shell, value);
        let code = output.status.code().unwrap();
        assert!(code != 0 && code != 90, "{code}");
    });
}

#[test]
fn a_step_that_exits_0_ends_everything_as_a_success() {
    each_shell(|shell| {
        let steps = serde_json::json!(["touch before", "exit 0", "touch after"]);
        let (dir, output) = run(
            shell,
            serde_json::json!({"build": steps, "run": "touch ran"}),
        );
        assert_status(&output, 0);
        let there = |name: &str| dir.path().join("work").join(name).exists();
        assert!(there("before") && !there("after") && !there("ran"));
    });
}

#[test]
fn steps_share_a_shell_and_workdir_is_scoped() {
    each_shell(|shell| {
        let steps = serde_json::json!([
            "A=1; f() { echo \"f $1\"; }; mkdir -p \"sub'dir/x\"",
            {"run": "pwd > here; B=2", "workdir": "sub'dir/x"},
            "pwd > here",
            {"run": "echo multi\nline=1\n", "workdir": "/"},
        ]);
        let command = "f $A > out; echo \"${B-unset}\" >> out";
        let (dir, output) = run(shell, serde_json::json!({"build": steps, "run": command}));
        assert_status(&output, 0);
        let work = dir.path().join("work");
        let read = |name: &str| fs::read_to_string(work.join(name)).unwrap();
        let line = |path: &Path| format!("{}\n", path.canonicalize().unwrap().display());
        assert_eq!(read("sub'dir/x/here"), line(&work.join("sub'dir/x")));
        assert_eq!(read("here"), line(&work));
        assert_eq!(read("out"), "f 1\nunset\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "multi\n");
    });
}

#[test]
fn exec_form_passes_arguments_untouched() {
    each_shell(|shell| {
        let mut arguments = vec!["printf", "<%s>"];
        arguments.extend(HOSTILE);
        arguments.extend(["", "two\nlines\n", "-n", "'"]);
        let (_dir, output) = run(shell, serde_json::json!({"run": arguments}));
        assert_status(&output, 0);
        let expected: String = arguments[2..].iter().map(|a| format!("<{a}>")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    });
}

#[test]
fn env_is_exported_from_its_file() {
    each_shell(|shell| {
        let dir = TempDir::new().unwrap();
        let env = dir.path().join("env");
        // The server's form of the file.
        let text: String = HOSTILE
            .iter()
            .enumerate()
            .map(|(i, value)| format!("V{i}='{}'\n", value.replace('\'', r"'\''")))
            .collect();
        fs::write(&env, text + "EMPTY=''\n").unwrap();
        let names: Vec<String> = (0..HOSTILE.len()).map(|i| format!("V{i}")).collect();
        let source = fusefile(
            dir.path(),
            serde_json::json!({
                "env": {"V0": {"value": "x"}},
                "build": ["env > exported"],
                "run": format!("printf '<%s>' \"${}\"", names.join("\" \"$")),
            }),
        );
        let script = compile(&source).script.startup();
        let script = script.replace(". /fuse/env", &format!(". {}", env.display()));
        let output = sh(shell, dir.path(), &script);
        assert_status(&output, 0);
        let expected: String = HOSTILE.iter().map(|value| format!("<{value}>")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        let exported = fs::read_to_string(dir.path().join("work/exported")).unwrap();
        assert!(exported.contains("\nV0=it's\n") || exported.starts_with("V0=it's\n"));
        assert!(exported.contains("EMPTY=\n"));
    });
}

#[test]
fn a_layer_boot_skips_what_the_layer_holds() {
    each_shell(|shell| {
        let dir = TempDir::new().unwrap();
        let source = fusefile(
            dir.path(),
            serde_json::json!({"build": ["echo 0 >> log", "echo 1 >> log", "echo 2 >> log"], "run": "cat log"}),
        );
        let script = compile(&source).script;
        assert_status(&sh(shell, dir.path(), &script.range(0, 1, true)), 0);
        assert_status(&sh(shell, dir.path(), &script.range(1, 2, false)), 0);
        let output = sh(shell, dir.path(), &script.startup_from(2));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n1\n2\n");
        let output = sh(shell, dir.path(), &script.startup_from(3));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n1\n2\n");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_argument_arrives(arguments in prop::collection::vec("[^\0]{0,12}", 1..6)) {
        let mut words = vec!["printf".to_owned(), "<%s>".to_owned()];
        words.extend(arguments.iter().cloned());
        let expected: String = arguments.iter().map(|a| format!("<{a}>")).collect();
        each_shell(|shell| {
            let (_dir, output) = run(shell, serde_json::json!({"run": words}));
            assert_status(&output, 0);
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        });
    }

    #[test]
    fn any_file_name_arrives(name in "[^\0\n/]{1,20}", body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assume!(!["..", "."].contains(&name.trim()) && name != "." );
        each_shell(|shell| {
            let dir = TempDir::new().unwrap();
            let path = format!("{}/dir {name}/{name}", dir.path().display());
            let source = fusefile(dir.path(), serde_json::json!({
                "files": [{"path": path, "source": "body", "mode": "600"}],
            }));
            let tree = Memory::default().file("body", &body);
            let checked = check("Fusefile", source.as_bytes(), Some(&tree));
            assert_eq!(checked.problems, []);
            let script = checked.compiled.unwrap().script.startup();
            assert_status(&sh(shell, dir.path(), &script), 0);
            assert_eq!(fs::read(&path).unwrap(), body);
        });
    }
}
