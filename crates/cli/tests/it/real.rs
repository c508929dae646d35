//! Against the real orchestrator on its stub provider.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fuse::User;

const TOKEN: &str = "master";

/// The real orchestrator; it ends with the test.
struct Orchestrator {
    child: Child,
    url: String,
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Starts it, or says why not. `fuse connect` waits for it by trying again while it is refused.
fn start() -> Option<Orchestrator> {
    let program = Path::new(env!("CARGO_BIN_EXE_fuse")).with_file_name("orchestrator");
    if !program.is_file() {
        println!("SKIP {} has not been built", program.display());
        return None;
    }
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut child = Command::new(&program)
        .env_clear()
        .env("ORCH_LISTEN", format!("127.0.0.1:{port}"))
        .env("ORCH_AUTH_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It logs its first lines once it serves; which stream they go to is its own affair.
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (told, ready) = std::sync::mpsc::channel();
    for stream in [
        Box::new(stdout) as Box<dyn std::io::Read + Send>,
        Box::new(stderr),
    ] {
        let told = told.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                told.send(line).ok();
            }
        });
    }
    drop(told);
    let url = format!("http://127.0.0.1:{port}");
    while let Ok(line) = ready.recv_timeout(std::time::Duration::from_secs(20)) {
        if line.contains("listening") || line.contains("serving") {
            break;
        }
    }
    Some(Orchestrator { child, url })
}

#[test]
fn a_session() {
    let Some(server) = start() else { return };
    let user = User::new();
    user.run(&["connect", &server.url, "--token", "wrong"])
        .exits(1)
        .says("rejected the token");
    user.run(&["connect", &server.url, "--token", TOKEN, "--master"])
        .ok();
    user.run(&["hosts"]).ok().says("no results");
    user.run(&["env", "get", "zzz"])
        .exits(1)
        .says("not found: ");

    user.write(
        "Fusefile",
        "version: 1\nname: shop\nresources: {cpus: 1}\nrun: \"true\"\n",
    );
    let up = user.run(&["up"]).ok();
    assert!(
        up.stdout.contains("environment        fuse-shop  running"),
        "{}",
        up.stdout
    );
    user.run(&["up"]).exits(1).says("conflict: ");
    let create = user
        .run(&["-o", "json", "env", "create", "--task-id", "b"])
        .ok();
    assert_eq!(create.json()["id"], "fuse-b");
    let list = user.run(&["-o", "json", "env", "list"]).ok().json();
    assert_eq!(list["environments"].as_array().unwrap().len(), 2);
    user.run(&["env", "exec", "fuse-b", "--", "true"])
        .exits(1)
        .says("exec");

    let watcher = user
        .command(&["env", "watch", "fuse-b"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    user.run(&["env", "destroy", "b", "--yes"]).ok();
    let seen = watcher.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&seen.stdout);
    // The watcher may have come too late to see anything; what it sees ends with the end.
    let last = text.lines().last().unwrap_or("destroyed");
    assert!(last.contains("destroyed"), "{text}");
    user.run(&["env", "destroy", "b", "--yes"])
        .exits(1)
        .says("environment fuse-b is gone");
    user.run(&[
        "host",
        "register",
        "h",
        "--url",
        "http://127.0.0.1:9",
        "--max-vms",
        "1",
        "--token",
        "x",
    ])
    .exits(1)
    .says("could not probe host capacity");
}
