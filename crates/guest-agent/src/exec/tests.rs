//! Commands on the machine that runs the tests, without control groups. What
//! needs a real guest is in `tests/it`.

use std::sync::OnceLock;

use super::*;

/// A process has one reaper, for all tests in it.
fn reaper() -> Arc<Reaper> {
    static REAPER: OnceLock<Arc<Reaper>> = OnceLock::new();
    Arc::clone(REAPER.get_or_init(|| Reaper::start().unwrap()))
}

fn executor_with(memory: usize) -> Executor {
    Executor::new(reaper(), None, memory, TaskTracker::new())
}

fn executor() -> Executor {
    executor_with(64 * 1024 * 1024)
}

fn request(cmd: &[&str]) -> ExecRequest {
    ExecRequest {
        cmd: cmd.iter().map(ToString::to_string).collect(),
        timeout_ms: 60_000,
        ..ExecRequest::default()
    }
}

fn shell(script: &str) -> ExecRequest {
    request(&["/bin/sh", "-c", script])
}

async fn run(request: ExecRequest) -> ExecResponse {
    executor().run(request).await.unwrap()
}

/// Whether a process of this id runs, zombies not counted.
fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

async fn until_gone(pid: &str) {
    let mut check = tokio::time::interval(Duration::from_millis(5));
    while runs(pid) {
        check.tick().await;
    }
}

fn text(blob: &Blob) -> &str {
    std::str::from_utf8(&blob.0).unwrap()
}

#[tokio::test]
async fn streams_stay_apart_and_bytes_stay_bytes() {
    let response = run(shell(r"printf 'a\0\377b'; printf 'err\376' >&2; exit 7")).await;
    assert_eq!(response.exit_code, 7);
    assert_eq!(response.stdout_b64.0, b"a\0\xffb");
    assert_eq!(response.stderr_b64.0, b"err\xfe");
    assert_eq!((response.signal, response.timed_out), (None, false));
}

#[tokio::test]
async fn arguments_environment_and_directory_arrive_unchanged() {
    let mut request = request(&[
        "/bin/sh",
        "-c",
        r#"echo "$1|$A|$HOME|$PWD""#,
        "x",
        "a  b'\"$c",
    ]);
    request.env.insert("A".into(), "1 2".into());
    request.cwd = Some("/usr".into());
    let response = run(request).await;
    assert_eq!(text(&response.stdout_b64), "a  b'\"$c|1 2|/root|/usr\n");
}

#[tokio::test]
async fn a_signal_is_told_and_makes_the_exit_code() {
    let response = run(shell("kill -TERM $$")).await;
    assert_eq!((response.exit_code, response.signal), (143, Some(15)));
}

#[tokio::test]
async fn what_cannot_be_run_ends_as_in_a_shell() {
    let response = run(request(&["no-such-program-here"])).await;
    assert_eq!(response.exit_code, 127);
    assert_eq!(
        text(&response.stderr_b64),
        "no-such-program-here: command not found\n"
    );
    assert_eq!(run(request(&["/no/such/program"])).await.exit_code, 127);
    assert_eq!(run(request(&["/etc/passwd"])).await.exit_code, 126);
    assert_eq!(run(request(&["/etc"])).await.exit_code, 126);
}

#[tokio::test]
async fn a_request_that_means_nothing_is_refused() {
    let mut no_time = request(&["true"]);
    no_time.timeout_ms = 0;
    let mut bad_name = request(&["true"]);
    bad_name.env.insert("A=B".into(), "x".into());
    let mut bad_dir = request(&["true"]);
    bad_dir.cwd = Some("/no/such/dir".into());
    for request in [
        request(&[]),
        request(&[""]),
        request(&["a\0b"]),
        no_time,
        bad_name,
        bad_dir,
    ] {
        let result = executor().run(request.clone()).await;
        assert!(matches!(result, Err(ExecError::Invalid(_))), "{request:?}");
    }
}

#[tokio::test]
async fn the_time_limit_ends_the_whole_group_and_keeps_the_output() {
    let mut request = shell("echo $$; sleep 1000 & echo $!; echo late >&2; wait");
    request.timeout_ms = 300;
    let response = run(request).await;
    assert_eq!((response.exit_code, response.timed_out), (124, true));
    assert_eq!(text(&response.stderr_b64), "late\n");
    for pid in text(&response.stdout_b64).lines() {
        until_gone(pid).await;
    }
}

#[tokio::test]
async fn input_is_written_while_output_is_read() {
    let input: Vec<u8> = (0..251).cycle().take(2_000_000).collect();
    let mut request = request(&["cat"]);
    request.stdin_b64 = Some(Blob(input.clone()));
    let response = run(request).await;
    assert!(response.stdout_b64.0 == input);
    // A command that does not read its input ends all the same.
    let mut deaf = shell("exit 3");
    deaf.stdin_b64 = Some(Blob(input));
    assert_eq!(run(deaf).await.exit_code, 3);
}

#[tokio::test]
async fn output_beyond_the_cap_is_dropped_and_the_command_goes_on() {
    let mut request = shell("head -c 300000 /dev/zero; echo done >&2");
    request.max_output_bytes = Some(100_000);
    let response = run(request).await;
    assert_eq!(response.stdout_b64.0.len(), 100_000);
    assert_eq!(
        (response.stdout_truncated, response.stderr_truncated),
        (true, false)
    );
    assert_eq!(
        (response.exit_code, text(&response.stderr_b64)),
        (0, "done\n")
    );
}

#[tokio::test]
async fn output_of_all_commands_together_is_bounded() {
    let executor = executor_with(128 * 1024);
    let response = executor
        .run(shell("head -c 1000000 /dev/zero"))
        .await
        .unwrap();
    assert!(response.stdout_truncated);
    assert_eq!(response.stdout_b64.0.len(), 128 * 1024);
    // What it held is given back.
    let response = executor.run(shell("head -c 1000 /dev/zero")).await.unwrap();
    assert_eq!(
        (response.stdout_truncated, response.stdout_b64.0.len()),
        (false, 1000)
    );
}

#[tokio::test]
async fn a_background_process_neither_holds_up_its_command_nor_ends_with_it() {
    let executor = executor();
    let script = "(while sleep 0.05; do echo beat || exit 9; done) & echo $!";
    let response = executor.run(shell(script)).await.unwrap();
    let pid = text(&response.stdout_b64)
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let check = "sleep 0.4; kill -0 \"$0\"";
    let alive = executor
        .run(request(&["/bin/sh", "-c", check, &pid]))
        .await
        .unwrap();
    assert_eq!(alive.exit_code, 0, "it was ended by the pipe it writes to");
    executor
        .run(request(&["kill", "-KILL", &pid]))
        .await
        .unwrap();
    until_gone(&pid).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let executor = executor();
    let script = format!(
        "echo $$ > {}.new; mv {0}.new {0}; sleep 1000",
        file.display()
    );
    let run = executor.run(shell(&script));
    let started = async {
        let mut check = tokio::time::interval(Duration::from_millis(5));
        while !file.exists() {
            check.tick().await;
        }
    };
    tokio::select! {
        _ = run => panic!("it ended by itself"),
        () = started => {}
    }
    until_gone(std::fs::read_to_string(&file).unwrap().trim()).await;
}

#[tokio::test]
async fn many_commands_at_once_lose_no_exit_status() {
    let executor = Arc::new(executor());
    let mut runs = tokio::task::JoinSet::new();
    for code in 0..100 {
        let executor = Arc::clone(&executor);
        runs.spawn(async move {
            let response = executor.run(shell(&format!("exit {code}"))).await.unwrap();
            assert_eq!(response.exit_code, code);
        });
    }
    runs.join_all().await;
}
