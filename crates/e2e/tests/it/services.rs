//! Services of a Fusefile: containers in a real guest, from archives, in order, until the drain.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Api, Fuse, Guest, Stack, boot_permit, report_skip};
use serde_json::Value;

use crate::containers::{Image, give_services, variant};
use crate::failing::expect_nothing_of;
use crate::suite::{Suite, project, repository};

/// Stands for the images that the example names and that no test can pull.
const STAND_INS: &[Image] = &[
    Image {
        name: "docker.io/library/postgres:16",
        script: "trap 'cat /proc/uptime >/stopped-db; exit 0' TERM\n\
                 echo \"a password of ${#POSTGRES_PASSWORD} characters for $POSTGRES_DB\"\n\
                 sleep 3\ntouch /tmp/ready\nwhile :; do sleep 1 & wait $!; done\n",
        tool: Some(("pg_isready", "test -e /tmp/ready\n")),
        volume: None,
    },
    Image {
        name: "docker.io/library/adminer:5",
        script: "trap 'cat /proc/uptime >/stopped-app; exit 0' TERM\n\
                 mkdir /www\nnslookup \"$ADMINER_DEFAULT_SERVER\" >/www/index.html\n\
                 httpd -p 8080 -h /www\nwhile :; do sleep 1 & wait $!; done\n",
        tool: None,
        volume: None,
    },
];

/// Compose is a large program, and so is podman: emulated on a busy machine they take minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

const ID: &str = "fuse-e2e-services";

/// The shipped example as it stands, from `up` to what its containers leave when they are asked to stop.
pub(crate) async fn the_example_from_up_to_drain(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    if let Err(reason) = give_services(stack, STAND_INS).await? {
        report_skip("services::the_example_from_up_to_drain", &reason);
        return Ok(());
    }
    let fuse = stack.fuse("services").await?.patient(PATIENCE);
    let file = repository("examples/services/Fusefile");
    let file = file.to_string_lossy();
    let password = "pa$$word-of-the-shop";
    let secret = format!("db_password={password}");
    let turn = boot_permit(1).await?;
    let args = [
        "-o",
        "json",
        "up",
        "-f",
        &*file,
        "--task-id",
        "e2e-services",
        "--secret",
        &secret,
    ];
    let up = fuse
        .run(&[&args[..], &["--wait-healthy"]].concat())
        .await?
        .ok()?;
    drop(turn);
    ensure!(
        !up.stderr.contains(password) && !up.stdout.contains(password),
        "{}",
        up.stderr
    );
    in_order(&up.stderr)?;
    let environment = up.json()?;
    ensure!(environment["health"]["state"] == "passing", "{environment}");

    // What they print, and that they have what they were given: name, secret, port.
    let logs = fuse.ok(&["environment", "logs", ID]).await?.stdout;
    ensure!(
        logs.contains("fuse_db_1") && !logs.contains(password),
        "{logs}"
    );
    let said = exec(&fuse, &["podman", "logs", "fuse_db_1"]).await?;
    let expected = format!("a password of {} characters for shop", password.len());
    ensure!(said.contains(&expected), "{said}");
    let shown = exec(
        &fuse,
        &["podman", "ps", "--format", "{{.Names}} {{.Status}}"],
    )
    .await?;
    ensure!(shown.contains("(healthy)"), "{shown}");
    // The socket that podman is handed is not for its containers.
    let environ = exec(
        &fuse,
        &["podman", "exec", "fuse_db_1", "cat", "/proc/1/environ"],
    )
    .await?;
    ensure!(
        environ.contains("POSTGRES_DB=") && !environ.contains("LISTEN_"),
        "{environ}"
    );
    let endpoint = environment["endpoints"][0]["url"]
        .as_str()
        .context("an endpoint")?;
    let page = Api::new(format!("http://{endpoint}"), None)?
        .get("/")
        .await?
        .expect(200)?;
    ensure!(
        page.text().contains("Name:"),
        "the name of db leads nowhere: {}",
        page.text()
    );

    drained_in_order(stack, &fuse).await?;
    fuse.ok(&["environment", "destroy", ID, "--yes"]).await?;
    Ok(())
}

/// The database runs and is healthy before the application starts.
fn in_order(stderr: &str) -> Result<()> {
    let events = stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let services = events.filter(|event| event["event"] == "service");
    let steps: Vec<String> = services
        .map(|event| format!("{} {}", event["service"], event["status"]).replace('"', ""))
        .collect();
    ensure!(
        steps == ["db started", "db healthy", "app started"],
        "{steps:?}"
    );
    Ok(())
}

/// Those that others need stop last, and each is asked before it is ended.
async fn drained_in_order(stack: &Stack, fuse: &Fuse) -> Result<()> {
    let record = fuse
        .ok(&["-o", "json", "environment", "get", ID])
        .await?
        .json()?;
    let guest = Guest::new(record, stack.api()?, stack.agent_api()?)?;
    fuse.ok(&["environment", "drain", ID]).await?;
    // An environment that drains takes no commands but from its host.
    let stopped = async |name: &str| -> Result<f64> {
        let script = format!("cat /var/lib/containers/storage/overlay/*/diff/stopped-{name}");
        let answer = guest.agent_exec(&["sh", "-c", &script], 30_000).await?;
        let text = answer.out();
        let seconds = text.split(' ').next().and_then(|word| word.parse().ok());
        seconds.with_context(|| format!("{name} was not asked to stop: {answer:?}"))
    };
    let (app, db) = (stopped("app").await?, stopped("db").await?);
    ensure!(app < db, "app stopped at {app}, db at {db}");
    Ok(())
}

async fn exec(fuse: &Fuse, command: &[&str]) -> Result<String> {
    let run = fuse
        .ok(&[&["environment", "exec", ID, "--"], command].concat())
        .await?;
    Ok(run.stdout + &run.stderr)
}

/// A service that ends at once, and an image that has no container engine: no environment, and the reason.
pub(crate) async fn those_that_do_not_start_say_why(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("no-services").await?.patient(PATIENCE);
    let up = async |name: &str, image: &str, command: &str| {
        let text = format!(
            "version: 1\nname: {name}\n{image}resources: {{cpus: 2, memory: 1GB, disk: 4GB}}\n\
             services:\n  db:\n    image: postgres:16\n    command: [sh, -c, '{command}']\n"
        );
        let dir = project(stack, name, &text)?;
        let turn = boot_permit(1).await?;
        let run = fuse.run_in(&dir, &["up"]).await?.expect(1)?;
        drop(turn);
        expect_nothing_of(stack, &format!("fuse-{name}")).await?;
        anyhow::Ok(run)
    };
    let no_engine = up("e2e-no-engine", "", "true").await?;
    no_engine.says("this image has no podman")?;
    no_engine.says("fc-agent image build --variant services")?;
    if let Err(reason) = give_services(stack, STAND_INS).await? {
        report_skip("services::those_that_do_not_start_say_why", &reason);
        return Ok(());
    }
    let command = "echo no table here; exit 3";
    let ended = up("e2e-bad-service", "image: services\n", command).await?;
    ended.says("service db ended with exit status 3")?;
    ended.says("no table here")
}

/// The shipped web application: Node serves, the probe passes, the port is published.
pub(crate) async fn the_web_application_serves(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let built = match variant(stack, "node")? {
        Ok(built) => built,
        Err(reason) => {
            report_skip("services::the_web_application_serves", &reason);
            return Ok(());
        }
    };
    let given = stack.images_dir().join("node.ext4");
    if std::fs::hard_link(&built, &given).is_err() {
        std::fs::copy(&built, &given)?;
    }
    let fuse = stack.fuse("web-app").await?.patient(PATIENCE);
    let file = repository("examples/web-app/Fusefile");
    let file = file.to_string_lossy();
    let args = [
        "-o",
        "json",
        "up",
        "-f",
        &*file,
        "--task-id",
        "e2e-web-app",
        "--wait-healthy",
    ];
    let turn = boot_permit(1).await?;
    let up = fuse.run(&args).await?.ok()?;
    drop(turn);
    let environment = up.json()?;
    ensure!(environment["health"]["state"] == "passing", "{environment}");
    let endpoint = environment["endpoints"][0]["url"]
        .as_str()
        .context("an endpoint")?;
    let page = Api::new(format!("http://{endpoint}"), None)?
        .get("/")
        .await?
        .expect(200)?;
    ensure!(page.text().starts_with("up for "), "{}", page.text());
    fuse.ok(&["environment", "destroy", "fuse-e2e-web-app", "--yes"])
        .await?;
    Ok(())
}
