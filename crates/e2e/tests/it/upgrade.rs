//! From an earlier release to this one, part by part, in every order, while guests run; the earlier one is real
//! programs and a real image, which `ops/dev/upgrade-test.sh` builds and names in `FUSE_UPGRADE_FROM`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fuse_testkit::postgres::{Durability, Postgres};
use fuse_testkit::{Database, Fuse, Guest, Part, Release, Stack, StackOptions, VmRecord};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::suite::{Suite, with_stack};

/// Names the directory of the earlier release.
const FROM: &str = "FUSE_UPGRADE_FROM";
const ORDERS: [(&str, [Part; 3]); 6] = {
    use Part::{Agent as A, Image as I, Orchestrator as O};
    [
        ("upgrade::orchestrator_agent_image", [O, A, I]),
        ("upgrade::orchestrator_image_agent", [O, I, A]),
        ("upgrade::agent_orchestrator_image", [A, O, I]),
        ("upgrade::agent_image_orchestrator", [A, I, O]),
        ("upgrade::image_orchestrator_agent", [I, O, A]),
        ("upgrade::image_agent_orchestrator", [I, A, O]),
    ]
};

/// None without an earlier release: it takes minutes to build, so it is made for a release and not for each change.
pub(crate) fn trials(suite: &Suite) -> Vec<Trial> {
    if std::env::var_os(FROM).is_none() {
        return Vec::new();
    }
    let in_order = |(name, order)| suite.trial(name, move |_| in_order(name, order));
    let mut trials: Vec<Trial> = ORDERS.into_iter().map(in_order).collect();
    trials.push(suite.trial("upgrade::replicas_one_by_one", replicas_one_by_one));
    trials
}

fn earlier() -> Result<Release> {
    let dir = std::env::var_os(FROM).context(FROM)?;
    Release::at(Path::new(&dir))
}

async fn in_order(name: &'static str, order: [Part; 3]) -> Result<()> {
    let (old, new) = (earlier()?, Release::current()?);
    let options = StackOptions {
        release: Some(old.clone()),
        ..StackOptions::default()
    };
    with_stack(name, options, async |stack| {
        let clients = Clients::connect(stack, &old, &new).await?;
        let kept = Kept::boot(stack, "from-before").await?;
        let path = format!("/v1/environments/{}/snapshots", kept.guest.id);
        let api = stack.api()?;
        let taken = api.post(&path, &json!({})).await?.expect(201)?.json()?;
        kept.guest.ok("echo later > /srv/marker").await?;
        for part in order {
            move_to(stack, part, &new).await?;
            let step = format!("after {part:?}");
            kept.is_untouched(stack).await.context(step.clone())?;
            clients.work(&kept.guest).await.context(step.clone())?;
            comes_and_goes(stack, &format!("{part:?}").to_lowercase())
                .await
                .context(step)?;
        }
        // One made by this release lives through an agent that is taken back to the earlier one.
        let made = Kept::boot(stack, "from-after").await?;
        move_to(stack, Part::Agent, &old).await?;
        made.is_untouched(stack)
            .await
            .context("with the agent taken back")?;
        move_to(stack, Part::Agent, &new).await?;
        // What the earlier release kept of it is still what it was then.
        let id = taken["id"].as_str().context("no id")?;
        let restore = format!("/v1/snapshots/{id}?action=restore");
        api.post(&restore, &json!({})).await?.expect(204)?;
        let marker = kept.guest.ok("cat /srv/marker").await?;
        ensure!(marker == "first", "the snapshot has {marker:?}");
        for kept in [kept, made] {
            kept.guest.destroy().await?;
            stack.expect_gone(&kept.record)?;
        }
        Ok(())
    })
    .await
}

async fn move_to(stack: &Stack, part: Part, release: &Release) -> Result<()> {
    stack.move_to(part, release);
    match part {
        Part::Orchestrator => {
            stack.kill_orchestrator().await?;
            stack.start_orchestrator().await
        }
        Part::Agent | Part::Image => {
            stack.kill_agent().await?;
            stack.start_agent().await
        }
    }
}

/// A new environment can be made, used and thrown away.
async fn comes_and_goes(stack: &Stack, task: &str) -> Result<()> {
    let guest = stack.boot(task).await?;
    ensure!(guest.ok("echo made").await? == "made");
    let record = stack.record(&guest.id)?;
    guest.destroy().await?;
    stack.expect_gone(&record)
}

/// An environment that must not notice.
struct Kept {
    guest: Guest,
    record: VmRecord,
    boot: String,
}

impl Kept {
    async fn boot(stack: &Stack, task: &str) -> Result<Self> {
        let guest = stack.boot(task).await?;
        let boot = guest.ok("cat /proc/sys/kernel/random/boot_id").await?;
        guest.ok("echo first > /srv/marker").await?;
        let record = stack.record(&guest.id)?;
        Ok(Self {
            guest,
            record,
            boot,
        })
    }

    async fn is_untouched(&self, stack: &Stack) -> Result<()> {
        let now = self.guest.get().await?;
        ensure!(now["state"] == "running", "{now}");
        let boot = self.guest.ok("cat /proc/sys/kernel/random/boot_id").await?;
        ensure!(boot == self.boot, "it was booted again");
        let record = stack.record(&self.guest.id)?;
        ensure!(record.pid == self.record.pid, "it has another VMM");
        Ok(())
    }
}

/// The command line of both releases.
struct Clients([Fuse; 2]);

impl Clients {
    async fn connect(stack: &Stack, old: &Release, new: &Release) -> Result<Self> {
        Ok(Self([
            stack.fuse_of("earlier", old).await?,
            stack.fuse_of("this", new).await?,
        ]))
    }

    async fn work(&self, guest: &Guest) -> Result<()> {
        for fuse in &self.0 {
            let listed = fuse.ok(&["environment", "list", "-o", "json"]).await?;
            let listed: Value = listed.json()?;
            ensure!(
                listed["environments"][0]["id"] == guest.id.as_str(),
                "{listed}"
            );
            let exec = ["environment", "exec", &guest.id, "--", "cat", "/srv/marker"];
            ensure!(fuse.ok(&exec).await?.stdout.trim() == "later");
            fuse.ok(&["version"]).await?;
            fuse.ok(&["hosts"]).await?;
        }
        Ok(())
    }
}

/// Two orchestrators on one database, of two releases, while one is replaced after the other.
async fn replicas_one_by_one(_: Suite) -> Result<()> {
    let (old, new) = (earlier()?, Release::current()?);
    let server = Postgres::start(Durability::Careless)?;
    let options = StackOptions {
        database: Database::Url(server.database()?),
        release: Some(old),
        ..StackOptions::default()
    };
    with_stack("upgrade-replicas", options, async |stack| {
        let kept = Kept::boot(stack, "from-before").await?;
        let (mut replica, api) = stack.replica(&new).await?;
        // The earlier one goes on with the schema of this one; each works on what the other made.
        let by_old = stack.boot("by-old").await?;
        let body = json!({"task_id": "by-new", "spec": {"cpus": 1, "ram_mb": 256}});
        let by_new = api.post("/v1/environments", &body).await?;
        let by_new = Guest::new(
            by_new.expect(201)?.json()?,
            stack.api()?,
            stack.agent_api()?,
        )?;
        for guest in [&kept.guest, &by_old, &by_new] {
            let record = api.get(&format!("/v1/environments/{}", guest.id)).await?;
            ensure!(record.expect(200)?.json()?["state"] == "running");
            guest.ok("true").await?;
        }
        let path = format!("/v1/environments/{}", by_old.id);
        api.delete(&path).await?.expect(204)?;
        by_new.destroy().await?;
        kept.is_untouched(stack).await?;
        // The last of the earlier release is replaced, and the other leaves.
        move_to(stack, Part::Orchestrator, &new).await?;
        replica.stop().await?;
        kept.is_untouched(stack).await?;
        kept.guest.destroy().await
    })
    .await
}
