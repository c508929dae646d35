//! Help, version, usage errors, completion scripts: what needs no orchestrator.

use crate::fuse::User;

#[test]
fn version_line() {
    for flag in ["-v", "--version"] {
        let run = User::new().run(&[flag]).ok();
        assert!(run.stdout.starts_with("fuse version "), "{}", run.stdout);
    }
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let run = User::new().run(&["completion", shell]).ok();
        assert!(run.stdout.contains("environment"), "{shell}");
    }
    User::new().run(&["completion", "tcsh"]).exits(1);
}

#[test]
fn groups_print_their_help() {
    for group in [&["environment"][..], &["context"], &["local"], &[]] {
        let run = User::new().run(group).ok();
        assert!(
            run.stdout.contains("Commands:"),
            "{group:?}: {}",
            run.stdout
        );
        assert_eq!(run.stderr, "");
    }
    let help = User::new().run(&["help", "environment", "exec"]).ok();
    assert!(
        help.stdout
            .contains("fuse environment exec fuse-hello -- uname -a")
    );
}

#[test]
fn usage_errors_exit_1_without_decoration() {
    let run = User::new().run(&["hosts", "frob"]).exits(1);
    assert_eq!(run.stdout, "");
    assert!(!run.stderr.starts_with("error:"), "{}", run.stderr);
    let run = User::new().run(&["-o", "yaml", "hosts"]).exits(1);
    assert!(run.stderr.contains("yaml"), "{}", run.stderr);
    let run = User::new().run(&["-o", "json", "hosts", "frob"]).exits(1);
    assert_eq!(run.error()["code"], "usage");
}

#[test]
fn a_broken_config_stops_every_command() {
    let user = User::new();
    user.write(".config/fuse/config.yaml", "contexts: [\n");
    let run = user.run(&["completion", "bash"]).exits(1);
    assert!(run.stderr.contains("config.yaml"), "{}", run.stderr);
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let user = User::new();
    let mut child = user
        .command(&["completion", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn colour_is_for_terminals() {
    let run = User::new().run(&["hosts"]).exits(1);
    assert!(!run.stderr.contains('\u{1b}'), "{}", run.stderr);
}
