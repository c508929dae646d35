//! The commands of `docs/api/README.md`, typed at a shell as its reader types them.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use fuse_orchestrator::openapi::document;
use fuse_testkit::fake_agent::{FakeAgent, TOKEN as AGENT_TOKEN};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    api_page,
    support::{MASTER, Options, Orchestrator},
};

/// A heading with its command, and the statuses of the table below it.
struct Example {
    heading: String,
    command: String,
    statuses: Vec<u16>,
}

fn examples() -> Vec<Example> {
    let page = api_page::render(&document());
    page.split("\n### `")
        .skip(1)
        .filter_map(|section| {
            let command = section.split("```sh\n").nth(1)?.split("```").next()?;
            let statuses = section
                .lines()
                .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok());
            Some(Example {
                heading: section.split('`').next()?.to_owned(),
                command: command.to_owned(),
                statuses: statuses.collect(),
            })
        })
        .collect()
}

/// What the reader has: an orchestrator with two hosts, and the ids of things in it.
struct Reader {
    fuse: Orchestrator,
    agents: [FakeAgent; 3],
    home: TempDir,
    tasks: usize,
}

impl Reader {
    async fn new() -> Self {
        let home = TempDir::new().unwrap();
        let fuse = Orchestrator::with(Options::file(home.path())).await;
        let one = FakeAgent::start().await.unwrap();
        one.serve_surfaces();
        let two = FakeAgent::start().await.unwrap();
        let three = FakeAgent::start().await.unwrap();
        for (id, agent, disk) in [("host-3", &one, "hdd"), ("host-2", &two, "nvme")] {
            let host = json!({
                "id": id, "url": agent.url(), "token": AGENT_TOKEN, "labels": {"disk": disk},
                "capacity": {"cpus": 100, "ram_mb": 100_000, "storage_gb": 1000, "vm_count": 100}
            });
            fuse.post("/v1/hosts", &host).await.is(201);
        }
        let settings = "silent\nshow-error\ninclude\nno-buffer\nnoproxy = \"*\"\n";
        std::fs::write(home.path().join(".curlrc"), settings).unwrap();
        Self {
            fuse,
            agents: [one, two, three],
            home,
            tasks: 0,
        }
    }

    /// An environment of its own for each command, on the host that a migration leaves.
    async fn environment(&mut self) -> String {
        self.tasks += 1;
        let body =
            json!({"task_id": format!("task-{}", self.tasks), "spec": {"host_id": "host-3"}});
        let made = self.fuse.create(&body).await.is(201);
        made["id"].as_str().unwrap().to_owned()
    }

    async fn snapshot(&mut self) -> String {
        let path = format!("/v1/environments/{}/snapshots", self.environment().await);
        let made = self.fuse.post(&path, &json!({})).await.is(201);
        made["id"].as_str().unwrap().to_owned()
    }

    /// What the reader puts in the place of `ID`.
    async fn id(&mut self, heading: &str) -> String {
        let collection = heading.split('/').nth(2).unwrap_or_default();
        match collection {
            _ if !heading.contains('{') => String::new(),
            "environments" => self.environment().await,
            "snapshots" => self.snapshot().await,
            "tasks" => {
                self.environment().await;
                format!("task-{}", self.tasks)
            }
            "hosts" => {
                let id = format!("spare-{}", self.tasks);
                self.tasks += 1;
                self.fuse.register(&id, &self.agents[2]).await;
                id
            }
            "api-keys" => {
                let made = self.fuse.post("/v1/api-keys", &json!({"label": "l"})).await;
                made.is(201)["id"].as_str().unwrap().to_owned()
            }
            other => panic!("{heading}: what is the id of {other}?"),
        }
    }

    fn type_(&self, command: &str) -> Child {
        Command::new("sh")
            .args(["-euc", &format!("exec {command}")])
            .env("CURL_HOME", self.home.path())
            .env("FUSE_URL", &self.fuse.base)
            .env("FUSE_TOKEN", MASTER)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

/// Status and the rest of an answer; a stream is left after its head.
fn answer(mut child: Child) -> (u16, String) {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(lines.read_line(&mut head).unwrap() > 0, "no answer: {head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = String::new();
    if head.contains("text/event-stream") {
        child.kill().unwrap();
    } else {
        lines.read_to_string(&mut body).unwrap();
    }
    child.wait().unwrap();
    (status, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_page_is_accepted() {
    let mut reader = Reader::new().await;
    let examples = examples();
    assert!(examples.len() > 40, "{}", examples.len());
    let mut wrong = String::new();
    for example in examples {
        let id = reader.id(&example.heading).await;
        let command = example
            .command
            .replace("/ID", &format!("/{id}"))
            .replace("http://10.0.0.5:8090", &reader.agents[2].url())
            .replace("the-agents-token", AGENT_TOKEN)
            .replace("the-master-token", MASTER);
        let child = reader.type_(&command);
        let (status, body) = tokio::task::spawn_blocking(|| answer(child)).await.unwrap();
        if !example.statuses.contains(&status) || !(200..300).contains(&status) {
            wrong += &format!("{}: {status}\n{command}{body}\n", example.heading);
        }
    }
    assert_eq!(wrong, "");
    reader.fuse.stop().await;
}
