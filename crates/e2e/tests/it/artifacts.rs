//! What is built on one host starts on another one: two machines with real agents and guests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Guest, Stack, StackOptions, boot_permit, until};
use serde_json::{Value, json};

use crate::machine::{self, Machine};
use crate::suite::{Suite, with_stack};

/// Longest time until bytes arrive.
const ARRIVING: Duration = Duration::from_secs(60);
/// In the middle of the base image.
const MIDDLE: u64 = 32 << 20;
/// What a guest writes: a file to read, and one to lose a byte of.
const WRITE: &str = "mkdir -p /data && echo seed >/data/a && head -c 9M /dev/urandom >/data/b && \
    sha256sum /data/b && sync";

/// A snapshot taken on one host is started from on another one, which has another base image, while
/// the serving agent is killed in the middle of the transfer.
pub(crate) async fn a_seed_moves_to_another_host(_: Suite) -> Result<()> {
    with_stack("artifacts", StackOptions::default(), async |stack| {
        // An image of which nothing ever boots, so that the real one has to come from elsewhere.
        let other = stack.logs().join("other.ext4");
        std::fs::write(&other, b"another base image")?;
        let base = stack.image().base();
        let east = Machine::with("east", stack, "token-of-east".to_owned(), base)?;
        let west = Machine::with("west", stack, "token-of-west".to_owned(), other);
        let test = async |east: &mut Machine, west: &Machine| two_hosts(stack, east, west).await;
        machine::between(east, west, test).await
    })
    .await
}

async fn two_hosts(stack: &Stack, east: &mut Machine, west: &Machine) -> Result<()> {
    let fuse = stack.fuse("artifacts").await?;
    east.register(&fuse, "us", "nvme").await?;
    west.register(&fuse, "eu", "hdd").await?;
    fuse.ok(&["host", "cordon", "h1"]).await?;
    let _turn = boot_permit(1).await?;
    let source = stack
        .create(&request("artifact-a", json!({"host_id": "east"})))
        .await?;
    let written = source.ok(WRITE).await?;
    let seed = fuse
        .ok(&["snapshot", "create", &source.id, "-o", "json"])
        .await?;
    let seed: Value = serde_json::from_str(&seed.stdout)?;
    let seed = seed["id"].as_str().context("an id")?.to_owned();
    source.destroy().await?;
    fuse.ok(&["host", "cordon", "east"]).await?;

    let images = west.state().join("images");
    let (made, killed) = tokio::join!(from(stack, "artifact-b", &seed), async {
        until("the base image arrives", ARRIVING, || async {
            let arrived = arriving(&images)?;
            ensure!(arrived > MIDDLE, "{arrived} bytes");
            Ok(())
        })
        .await?;
        east.kill_agent().await?;
        ensure!(arriving(&images).is_ok(), "it had arrived already");
        east.boot(stack)
    });
    killed?;
    let made = made?;
    ensure!(made.object["host_id"] == "west", "{}", made.object);
    ensure!(made.ok("cat /data/a").await? == "seed", "another disk");
    ensure!(
        made.ok("sha256sum /data/b").await? == written,
        "changed on the way"
    );
    let log = west.log(stack)?;
    ensure!(
        log.contains("a transfer was cut and goes on"),
        "it was not cut: {log}"
    );
    ensure!(arriving(&images).is_err(), "half an image is left");
    for token in ["token-of-east", "token-of-west"] {
        ensure!(!log.contains(token), "a token in the log");
    }

    // Now it is there, and the host that it came from is not needed any more.
    made.destroy().await?;
    east.kill_agent().await?;
    let again = from(stack, "artifact-c", &seed).await?;
    ensure!(again.ok("cat /data/a").await? == "seed", "another disk");
    again.destroy().await?;
    Ok(())
}

fn request(task: &str, mut spec: Value) -> Value {
    spec["cpus"] = 1.into();
    spec["ram_mb"] = 256.into();
    json!({"task_id": task, "spec": spec})
}

async fn from(stack: &Stack, task: &str, seed: &str) -> Result<Guest> {
    let mut request = request(task, json!({}));
    request["seed_snapshot_id"] = seed.into();
    stack.create(&request).await
}

/// Bytes of the image that is arriving.
///
/// # Errors
/// None is.
fn arriving(images: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    for entry in std::fs::read_dir(images)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("pull-") {
            return Ok(entry.metadata()?.blocks() * 512);
        }
    }
    anyhow::bail!("no image is arriving")
}
