//! Services in copies of their guest: a live snapshot has them as they ran; everything that boots from a disk has what
//! they wrote, and starts them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Api, Fuse, Guest, Stack, StackOptions, boot_permit, report_skip, until};
use serde_json::Value;

use crate::containers::{Image, variant, with_archives};
use crate::machine::{self, Machine};
use crate::services::PATIENCE;
use crate::suite::{Suite, project, with_stack};

const IMAGES: &[Image] = &[
    // Counts in its memory, says who it is and how far it is, and keeps the word that it is told.
    Image {
        name: "docker.io/library/counter:1",
        script: "trap 'echo flushed >/data/last; exit 0' TERM\n\
                 read id </proc/sys/kernel/random/uuid\nn=1\n\
                 mkdir -p /www/cgi-bin\ncp /bin/keep /www/cgi-bin/keep\n\
                 test -e /www/data || ln -s /data /www/data\n\
                 echo \"$id $n\" >/www/state\nhttpd -p 8080 -h /www\n\
                 while :; do sleep 1 & wait $!; n=$((n+1)); \
                 echo \"$id $n\" >/www/new; mv /www/new /www/state; done\n",
        tool: Some((
            "keep",
            "echo \"$QUERY_STRING\" >/data/word\necho 'Content-Type: text/plain'\n\
             echo\ncat /data/word\n",
        )),
        volume: Some("/data"),
    },
    // Asks the other one, by its name, for what it is asked for.
    Image {
        name: "docker.io/library/front:1",
        script: "trap 'exit 0' TERM\nmkdir -p /www/cgi-bin\ncp /bin/ask /www/cgi-bin/ask\n\
                 httpd -p 8080 -h /www\nwhile :; do sleep 1 & wait $!; done\n",
        tool: Some((
            "ask",
            "echo 'Content-Type: text/plain'\necho\nwget -qO- \"http://db:8080/$QUERY_STRING\"\n",
        )),
        volume: None,
    },
];

const FUSEFILE: &str = "version: 1\nname: e2e-copied\nimage: services\n\
    resources: {cpus: 2, memory: 1GB, disk: 4GB}\n\
    services:\n  db: {image: 'counter:1', restart: unless-stopped}\n  \
    app: {image: 'front:1', ports: [8080], depends_on: [db]}\n\
    expose: [{port: 8080, as: app}]\n";
const ID: &str = "fuse-e2e-copied";

/// Containers that start in the background are there by then.
const STARTED: Duration = Duration::from_secs(240);

/// One guest with services: restored from memory, forked from both kinds of snapshots, restored from disk, moved.
pub(crate) async fn snapshots_forks_and_a_move(_: Suite) -> Result<()> {
    with_stack("services-copied", StackOptions::default(), async |stack| {
        let built = match variant(stack, "services")? {
            Ok(built) => built,
            Err(reason) => {
                report_skip("services_copied::snapshots_forks_and_a_move", &reason);
                return Ok(());
            }
        };
        let image = with_archives(stack, &built, IMAGES)?;
        let east = Machine::start("east", stack)?;
        let west = Machine::start("west", stack);
        let test = async |east: &mut Machine, west: &Machine| {
            east.give_image(&image)?;
            west.give_image(&image)?;
            copied(stack, east, west).await
        };
        machine::between(east, west, test).await
    })
    .await
}

async fn copied(stack: &Stack, east: &Machine, west: &Machine) -> Result<()> {
    let fuse = stack.fuse("copied").await?.patient(PATIENCE);
    fuse.ok(&["host", "cordon", "h1"]).await?;
    east.register(&fuse, "us", "nvme").await?;
    let dir = project(stack, "copied", FUSEFILE)?;
    let turn = boot_permit(1).await?;
    let up = fuse.run_in(&dir, &["-o", "json", "up"]).await?.ok()?;
    drop(turn);
    let source = Services::of(stack, east, up.json()?)?;

    let started = source.started().await?;
    source.keep("live").await?;
    let at_live = source.look().await?;
    let live = snapshot(&fuse, &["--live"]).await?;
    source.keep("later").await?;
    forked(stack, east, &fuse, &source, &live, ["live", "later"]).await?;
    let before = source.look().await?;
    fuse.ok(&["snapshot", "restore", &live, "--yes"]).await?;
    let after = source.look().await?;
    ensure!(
        after.goes_on_from(&at_live) && after.word == "live" && after.count < before.count,
        "went on as {after:?}; was {at_live:?}, then {before:?}"
    );

    // Meanwhile the control plane has them brought up again, as after every restore, which must not disturb them.
    source.keep("disk").await?;
    let disk = snapshot(&fuse, &[]).await?;
    source.keep("ruined").await?;
    forked(stack, east, &fuse, &source, &disk, ["disk", "ruined"]).await?;
    source.brought_up().await?;
    let before = source.look().await?;
    ensure!(
        before.goes_on_from(&after) && source.started().await? == started,
        "started anew: {before:?} was {after:?}"
    );

    let turn = boot_permit(1).await?;
    fuse.ok(&["snapshot", "restore", &disk, "--yes"]).await?;
    let source = Services::of(stack, east, stack.guest(ID).await?.object)?;
    let booted = until("the services are back", STARTED, || source.look()).await?;
    source.brought_up().await?;
    drop(turn);
    ensure!(
        booted.run != before.run && booted.word == "disk",
        "{booted:?} was {before:?}"
    );

    source.keep("moved").await?;
    west.register(&fuse, "eu", "hdd").await?;
    let turn = boot_permit(1).await?;
    let migrate = ["-o", "json", "environment", "migrate", ID, "--to", "west"];
    let moved = fuse.ok(&migrate).await?.json()?;
    drop(turn);
    let moved = Services::of(stack, west, moved)?;
    let at_west = moved.look().await?;
    ensure!(
        at_west.run != booted.run && at_west.word == "moved",
        "{at_west:?} was {booted:?}"
    );
    ensure!(
        moved.ask("data/last").await? == "flushed",
        "it was cut off before it had written"
    );
    moved.guest.destroy().await
}

/// A fork of a snapshot has services of its own with the word that the snapshot has, and the source keeps its own.
async fn forked(
    stack: &Stack,
    host: &Machine,
    fuse: &Fuse,
    source: &Services,
    snapshot: &str,
    [of_snapshot, of_source]: [&str; 2],
) -> Result<()> {
    let before = source.look().await?;
    let fork = ["-o", "json", "environment", "fork", ID, "--reuse-snapshot"];
    let turn = boot_permit(1).await?;
    let made = fuse.ok(&[&fork[..], &[snapshot]].concat()).await?.json()?;
    drop(turn);
    let fork = Services::of(stack, host, made)?;
    let (its, ours) = (fork.look().await?, source.look().await?);
    ensure!(
        its.run != ours.run && its.word == of_snapshot,
        "{its:?} is a fork of {ours:?}"
    );
    fork.keep("of-the-fork").await?;
    let ours = source.look().await?;
    ensure!(
        ours.goes_on_from(&before) && ours.word == of_source,
        "{ours:?} was {before:?}"
    );
    fork.guest.destroy().await
}

async fn snapshot(fuse: &Fuse, flags: &[&str]) -> Result<String> {
    let create = ["-o", "json", "snapshot", "create", ID];
    let made = fuse.ok(&[&create[..], flags].concat()).await?.json()?;
    Ok(made["id"].as_str().context("an id")?.to_owned())
}

/// The services of a guest, as they are seen from outside.
struct Services {
    guest: Guest,
    front: Api,
}

/// How the one that counts is.
#[derive(Debug)]
struct Looks {
    /// Of its process.
    run: String,
    count: u64,
    /// What is in its volume.
    word: String,
}

impl Looks {
    /// Whether it is the same process, and what it has in memory is no older.
    fn goes_on_from(&self, earlier: &Self) -> bool {
        self.run == earlier.run && self.count >= earlier.count
    }
}

impl Services {
    fn of(stack: &Stack, host: &Machine, environment: Value) -> Result<Self> {
        let front = host.published(&environment)?;
        let guest = Guest::new(environment, stack.api()?, host.agent_api()?)?;
        Ok(Self { guest, front })
    }

    /// What the one that counts answers, by way of the other one.
    async fn ask(&self, path: &str) -> Result<String> {
        let answer = self.front.get(&format!("/cgi-bin/ask?{path}")).await?;
        Ok(answer.expect(200)?.text().trim().to_owned())
    }

    async fn look(&self) -> Result<Looks> {
        let state = self.ask("state").await?;
        let (run, count) = state
            .split_once(' ')
            .with_context(|| format!("it says {state:?}"))?;
        Ok(Looks {
            run: run.to_owned(),
            count: count.parse()?,
            word: self.ask("data/word").await?,
        })
    }

    /// Has a word written into the volume.
    async fn keep(&self, word: &str) -> Result<()> {
        let kept = self.ask(&format!("cgi-bin/keep?{word}")).await?;
        ensure!(kept == word, "it kept {kept:?}");
        Ok(())
    }

    /// When podman started each of them.
    async fn started(&self) -> Result<String> {
        let inspect = "podman inspect --format '{{.Name}} {{.State.Status}} {{.State.StartedAt}}' \
             fuse_db_1 fuse_app_1";
        let started = self.guest.ok(inspect).await?;
        ensure!(started.matches(" running ").count() == 2, "{started}");
        Ok(started)
    }

    /// Waits for what the control plane started in the background, and reads how it went.
    async fn brought_up(&self) -> Result<()> {
        until("it has ended", STARTED, || async {
            self.guest.ok("! pgrep -f 'services [u]p'").await
        })
        .await?;
        let said = self.guest.ok("cat /fuse/services.log").await?;
        let failed = said.to_lowercase().contains("error") || said.contains("cannot ");
        ensure!(!failed, "{said}");
        Ok(())
    }
}
