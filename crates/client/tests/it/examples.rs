//! The examples do what they say, against an orchestrator of this build.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fuse_client::api::{Capacity, CreateEnvironment, RegisterHost};
use fuse_client::{BaseUrl, Client, Options, Token};
use fuse_testkit::fake_agent::{FakeAgent, TOKEN};
use fuse_testkit::{Bins, free_port, until};

struct Orchestrator {
    child: Child,
    base: String,
    client: Client,
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Orchestrator {
    /// On the stub, in memory.
    async fn start() -> Self {
        let address = format!("127.0.0.1:{}", free_port().unwrap());
        let base = format!("http://{address}");
        let child = Command::new(Bins::find().unwrap().path("orchestrator").unwrap())
            .env_clear()
            .env("ORCH_LISTEN", &address)
            .env("ORCH_AUTH_TOKEN", "master")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = BaseUrl::parse(&base).unwrap();
        let client = Client::new(Options::new(url, Some(Token::new("master")), "test/1")).unwrap();
        let started = Self {
            child,
            base,
            client,
        };
        let up = || async { Ok(started.client.health().await.map(drop)?) };
        until("an orchestrator that serves", Duration::from_secs(30), up)
            .await
            .unwrap();
        started
    }

    async fn run(&self, example: &str, args: &[&str]) -> Output {
        let path = Bins::find().unwrap().dir().join("examples").join(example);
        assert!(
            path.is_file(),
            "the examples are not built: cargo build -p fuse-client --examples"
        );
        let mut command = Command::new(path);
        command
            .args(args)
            .env("FUSE_BASE_URL", &self.base)
            .env("FUSE_TOKEN", "master");
        // The fake agent runs in this process.
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        output.await.unwrap()
    }
}

#[track_caller]
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test]
async fn watch_and_list() {
    let fuse = Orchestrator::start().await;
    let mut fleet = fuse.client.fleet_events(None).await.unwrap();
    let told = printed(&fuse.run("watch", &[]).await);
    let states: Vec<&str> = told.split_whitespace().collect();
    assert!(
        states.ends_with(&["destroying", "fuse-example-watch", "destroyed"]),
        "{told}"
    );
    // Who watches the fleet saw the same.
    for state in ["provisioning", "running", "destroying", "destroyed"] {
        assert_eq!(fleet.next().await.unwrap().state, state);
    }

    for n in 0..5 {
        let request = CreateEnvironment {
            task_id: format!("t{n}"),
            ..CreateEnvironment::default()
        };
        fuse.client.create(&request).await.unwrap();
    }
    let listed = printed(&fuse.run("list", &[]).await);
    let wanted: String = (0..5).map(|n| format!("fuse-t{n} running\n")).collect();
    assert_eq!(listed, wanted);
}

#[tokio::test]
async fn exec() {
    let agent = FakeAgent::start().await.unwrap();
    agent.on_exec(|argv| fuse_testkit::fake_agent::printing(&format!("{argv:?}\n")));
    let fuse = Orchestrator::start().await;
    let host = RegisterHost {
        id: "h".to_owned(),
        url: agent.url(),
        token: TOKEN.to_owned(),
        capacity: Capacity {
            vm_count: 1,
            ..Capacity::default()
        },
        ..RegisterHost::default()
    };
    fuse.client.register_host(&host).await.unwrap();
    let told = printed(&fuse.run("exec", &["uname", "-a"]).await);
    assert_eq!(told, "[\"uname\", \"-a\"]\nexit status 0\n");
    assert!(agent.vms().is_empty(), "it was destroyed");
}
