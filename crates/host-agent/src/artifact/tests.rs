//! Two agents, and a line between them that can be cut or falsified.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuse_wire_host::{
    AgentToken, Artifact, CreateVmRequest, Grant, PullRequest, PullState, Snapshot, SnapshotRequest,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::PullError;
use crate::testing::{Served, in_netns, status, text};

const MARK: &[u8] = b"written in a guest";
const AT: u64 = 500 << 20;

/// An agent with a network plan of its own, so that two fit into one namespace.
async fn site(number: u8, more: &[(&str, &str)]) -> Served {
    let subnet = format!("10.2{number}0.0.0/16");
    let (table, tap) = (
        format!("fuse{number}"),
        ["ta", "tb"][usize::from(number)].to_owned(),
    );
    let mut settings = vec![
        ("FUSE_NFT_TABLE", table.as_str()),
        ("FUSE_TAP_PREFIX", &tap),
        ("FUSE_SUBNET", &subnet),
    ];
    settings.extend(more);
    Served::start(&settings).await
}

/// An agent with a snapshot of a disk on which a few MiB are written.
async fn seeded() -> (Served, Snapshot) {
    let from = site(0, &[]).await;
    let request = CreateVmRequest {
        name: Some("vm".to_owned()),
        ..CreateVmRequest::default()
    };
    from.registry.create(request).await.unwrap();
    let disk = from.bench.vm_dir("vm").join("overlay.img");
    let disk = std::fs::File::options().write(true).open(disk).unwrap();
    disk.write_all_at(MARK, AT).unwrap();
    disk.write_all_at(&vec![7; 5 << 20], 600 << 20).unwrap();
    drop(disk);
    let taken = from.registry.snapshot("vm", SnapshotRequest::default());
    let taken = taken.await.unwrap();
    (from, taken)
}

/// Another agent, with another base image.
async fn empty(more: &[(&str, &str)]) -> Served {
    let to = site(1, more).await;
    std::fs::write(to.bench.dir.path().join("rootfs-fused.ext4"), b"another").unwrap();
    to
}

fn grant(digest: &str) -> Grant {
    let token = AgentToken::new("t0ken");
    Grant::mint(&token, digest, Duration::from_secs(300)).unwrap()
}

fn request(peer: SocketAddr, digest: &str) -> PullRequest {
    PullRequest {
        peer_url: format!("http://{peer}"),
        grant: grant(digest),
        snapshot_id: Some("art-1".to_owned()),
        ..PullRequest::default()
    }
}

async fn pull(to: &Served, digest: &str, request: PullRequest) -> Result<Artifact, PullError> {
    to.registry.artifacts().pull(digest, request)?.ended().await
}

/// Whatever there is of artifacts on an agent.
fn traces(to: &Served) -> Vec<String> {
    let paths = &to.bench.config.paths;
    let staging = paths.state.join("artifact-pull-tmp");
    let images = paths.state.join("images");
    let dirs = [paths.snapshots.as_path(), &staging, &images];
    let entries = dirs.iter().flat_map(std::fs::read_dir).flatten().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name != "digests.json" && !is_image(name))
        .collect()
}

fn is_image(name: &str) -> bool {
    // A digest, then the extension: whole and verified.
    name.len() == 64 + 5 && name.ends_with(".ext4")
}

/// What the line does to the answers that cross it.
#[derive(Debug, Clone, Default)]
struct Line {
    /// Bodies are cut off after so many bytes, one after the other.
    cuts: Arc<Mutex<Vec<usize>>>,
    /// The artifact, and the byte of it, that arrives changed.
    falsified: Option<(String, usize)>,
    /// First lines and ranges of the requests.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Line {
    /// A way to `to` that ends with the result.
    async fn open(&self, to: SocketAddr) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (line, mut tasks) = (self.clone(), JoinSet::new());
        tasks.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // One after the other is enough, and an error is a peer that has left.
                let _left = line.cross(stream, to).await;
            }
        });
        (address, tasks)
    }

    async fn cross(&self, mut client: TcpStream, to: SocketAddr) -> io::Result<()> {
        let mut server = TcpStream::connect(to).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let mut told = head.lines().next().unwrap().to_owned();
        told.extend(head.lines().filter(|line| line.starts_with("range")));
        assert!(!head.contains("authorization"), "{head}");
        self.seen.lock().unwrap().push(told);
        // So that each request is a connection of its own.
        let head = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let head = head.replacen("get", "GET", 1).replacen("http/", "HTTP/", 1);
        server.write_all(head.as_bytes()).await?;
        let mut left = {
            let mut cuts = self.cuts.lock().unwrap();
            if cuts.is_empty() {
                usize::MAX
            } else {
                cuts.remove(0)
            }
        };
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(server.read_u8().await?);
        }
        client.write_all(&answer).await?;
        let falsified = self.falsified.as_ref();
        let falsified = falsified.filter(|(digest, _)| head.contains(digest));
        let (mut passed, mut buffer) = (0, vec![0; 64 * 1024]);
        while left > 0 {
            let want = left.min(buffer.len());
            let read = server.read(&mut buffer[..want]).await?;
            if read == 0 {
                return Ok(());
            }
            if let Some((_, at)) = falsified
                && (passed..passed + read).contains(at)
            {
                buffer[at - passed] ^= 1;
            }
            client.write_all(&buffer[..read]).await?;
            (passed, left) = (passed + read, left - read);
        }
        Ok(())
    }
}

fn read_mark(disk: &Path) -> Vec<u8> {
    let mut mark = vec![0; MARK.len()];
    let file = std::fs::File::open(disk).unwrap();
    file.read_exact_at(&mut mark, AT).unwrap();
    mark
}

#[test]
fn a_disk_and_its_base_image_move_and_boot_there() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let to = empty(&[]).await;
        let pulled = pull(&to, &taken.digest, request(from.address, &taken.digest)).await;
        let pulled = pulled.unwrap();
        assert_eq!(
            (pulled.snapshot_id.as_str(), &pulled.digest),
            ("art-1", &taken.digest)
        );
        assert_eq!(
            pulled.comment,
            format!("pulled from http://{}", from.address)
        );
        assert_eq!(
            (pulled.origin_vm_id.as_str(), &pulled.base_digest),
            ("", &taken.base_digest)
        );
        assert!(
            pulled.bytes > 5 << 20 && pulled.bytes < 12 << 20,
            "{pulled:?}"
        );
        let overlay = to.bench.config.paths.snapshots.join("art-1/overlay.img");
        assert_eq!(std::fs::metadata(&overlay).unwrap().len(), 1 << 30);
        let request = CreateVmRequest {
            name: Some("seeded".to_owned()),
            seed_snapshot: Some("art-1".to_owned()),
            ..CreateVmRequest::default()
        };
        to.registry.create(request).await.unwrap();
        assert_eq!(
            read_mark(&to.bench.vm_dir("seeded").join("overlay.img")),
            MARK
        );
        let base = taken.base_digest.unwrap();
        let base = to
            .bench
            .config
            .paths
            .state
            .join(format!("images/{base}.ext4"));
        assert_eq!(std::fs::read(base).unwrap(), b"base image");
        // It survives a restart of the agent, and is not fetched again.
        from.stop().await;
        let again = pull(&to, &taken.digest, request_of_nobody(&taken.digest)).await;
        assert_eq!(again.unwrap(), pulled);
        let other = pull(&to, &"0".repeat(64), request_of_nobody(&"0".repeat(64))).await;
        assert_eq!(
            other,
            Err(PullError::Taken {
                id: "art-1".to_owned()
            })
        );
        to.registry.delete_snapshot("art-1").await.unwrap();
        to.stop().await;
    });
}

/// A request that must not reach its peer.
fn request_of_nobody(digest: &str) -> PullRequest {
    request("127.0.0.1:1".parse().unwrap(), digest)
}

#[test]
fn a_cut_transfer_goes_on_where_it_was_cut() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let to = empty(&[]).await;
        let line = Line::default();
        // Opening the disk, the base image, and the disk again, which is cut twice.
        line.cuts
            .lock()
            .unwrap()
            .extend([usize::MAX, usize::MAX, 1 << 20, 2 << 20]);
        let (address, _tasks) = line.open(from.address).await;
        let request = request(address, &taken.digest);
        let pulling = to
            .registry
            .artifacts()
            .pull(&taken.digest, request)
            .unwrap();
        pulling.ended().await.unwrap();
        let seen = line.seen.lock().unwrap().clone();
        assert_eq!(seen.len(), 5, "{seen:?}");
        assert!(
            seen[1].contains(taken.base_digest.as_ref().unwrap()),
            "{seen:?}"
        );
        assert!(!seen[2].contains("range"), "{seen:?}");
        for resumed in &seen[3..] {
            assert!(resumed.contains("range: bytes="), "{seen:?}");
        }
        let view = pulling.view();
        assert_eq!(view.state, PullState::Done);
        assert_eq!(Some(view.bytes_done), view.bytes_total);
        let overlay = to.bench.config.paths.snapshots.join("art-1/overlay.img");
        assert_eq!(read_mark(&overlay), MARK);
        from.stop().await;
        to.stop().await;
    });
}

#[test]
fn a_line_that_never_holds_is_given_up_and_leaves_nothing() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let to = empty(&[]).await;
        let line = Line::default();
        line.cuts
            .lock()
            .unwrap()
            .extend([usize::MAX, usize::MAX, 1 << 20]);
        line.cuts.lock().unwrap().extend([0; 16]);
        let (address, _tasks) = line.open(from.address).await;
        let failed = pull(&to, &taken.digest, request(address, &taken.digest)).await;
        let Err(PullError::Failed(text)) = failed else {
            panic!("{failed:?}")
        };
        assert!(text.contains("the disk was cut off after"), "{text}");
        assert_eq!(traces(&to), Vec::<String>::new());
        from.stop().await;
        to.stop().await;
    });
}

#[test]
fn deleting_what_is_being_fetched_ends_that() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let to = empty(&[]).await;
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let request = request(silent.local_addr().unwrap(), &taken.digest);
        let artifacts = to.registry.artifacts();
        let pulling = artifacts.pull(&taken.digest, request).unwrap();
        let _asked = silent.accept().await.unwrap();
        let answer = to.send("DELETE", "/v1/snapshots/art-1", "", "").await;
        assert_eq!(status(&answer), "404", "{answer}");
        let said = pulling.ended().await.unwrap_err().to_string();
        assert_eq!(said, "the snapshot was deleted before it was there");
        assert_eq!(traces(&to), Vec::<String>::new());
        // It may be fetched after all.
        let request = self::request(from.address, &taken.digest);
        pull(&to, &taken.digest, request).await.unwrap();
        from.stop().await;
        to.stop().await;
    });
}

#[test]
fn a_changed_byte_is_found_out_wherever_it_is() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let to = empty(&[]).await;
        // In the base image, which the first answers are, and in the disk.
        let base = taken.base_digest.clone().unwrap();
        for (digest, at, what) in [
            (&base, 9, "the base image are not those of its digest"),
            (
                &taken.digest,
                1 << 20,
                "the disk are not those of its digest",
            ),
            (&taken.digest, 3, "not a disk in sparse form"),
        ] {
            let line = Line {
                falsified: Some((digest.clone(), at)),
                ..Line::default()
            };
            let (address, _tasks) = line.open(from.address).await;
            let failed = pull(&to, &taken.digest, request(address, &taken.digest)).await;
            let Err(PullError::Failed(text)) = failed else {
                panic!("{failed:?}")
            };
            assert!(text.contains(what), "{text}");
            assert_eq!(traces(&to), Vec::<String>::new());
        }
        // Nothing of it is in the way of the right one.
        let pulled = pull(&to, &taken.digest, request(from.address, &taken.digest)).await;
        pulled.unwrap();
        from.stop().await;
        to.stop().await;
    });
}

#[test]
fn grants_open_one_artifact_on_one_host_for_a_while_and_say_no_more() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let digest = taken.digest.as_str();
        let mint = |token: &str, digest: &str, seconds| {
            let token = AgentToken::new(token);
            let grant = Grant::mint(&token, digest, Duration::from_secs(seconds));
            format!("X-Fuse-Artifact-Grant: {}\r\n", grant.unwrap().expose())
        };
        let unknown = "1".repeat(64);
        let path = |digest: &str| format!("/v1/artifacts/{digest}");
        for refused in [
            String::new(),
            "X-Fuse-Artifact-Grant: v1.a.b.c\r\n".to_owned(),
            mint("another host's", digest, 300),
            mint("t0ken", &unknown, 300),
            mint("t0ken", digest, 0),
            // Going on with what was never begun.
            mint("t0ken", digest, 0) + "Range: bytes=5-\r\n",
        ] {
            // `send` brings the agent's token, which opens everything else.
            let answer = from.send("GET", &path(digest), &refused, "").await;
            assert_eq!(
                (status(&answer), text(&answer)),
                ("403", "forbidden"),
                "{refused}"
            );
        }
        let none = from
            .send("GET", &path(&unknown), &mint("t0ken", &unknown, 300), "")
            .await;
        assert_eq!((status(&none), text(&none)), ("404", "artifact not found"));
        let beyond = mint("t0ken", digest, 300) + "Range: bytes=99999999999-\r\n";
        let beyond = from.send("GET", &path(digest), &beyond, "").await;
        assert_eq!(status(&beyond), "416", "{beyond}");
        // The grant of another artifact of the host does not open this one through the base either.
        let base = taken.base_digest.as_deref().unwrap();
        let image = from
            .send("GET", &path(base), &mint("t0ken", base, 300), "")
            .await;
        assert_eq!((status(&image), text(&image)), ("200", "base image"));
        assert!(
            image.contains(&format!("x-fuse-artifact-digest: {base}")),
            "{image}"
        );
        let rest = mint("t0ken", base, 300) + "Range: bytes=5-\r\n";
        let rest = from.send("GET", &path(base), &rest, "").await;
        assert_eq!((status(&rest), text(&rest)), ("206", "image"));
        assert!(rest.contains("content-range: bytes 5-9/10"), "{rest}");
        from.stop().await;
    });
}

#[test]
fn a_begun_transfer_may_go_on_after_its_grant_has_expired() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let base = taken.base_digest.as_deref().unwrap();
        let token = AgentToken::new("t0ken");
        let short = Grant::mint(&token, base, Duration::from_secs(1)).unwrap();
        let artifacts = from.registry.artifacts();
        artifacts.serve(base, Some(&short), None).await.unwrap();
        while short.verify(&token, base).unwrap().is_open() {
            tokio::task::yield_now().await;
        }
        let mut rest = artifacts.serve(base, Some(&short), Some(5)).await.unwrap();
        assert_eq!(rest.chunks.recv().await.unwrap().unwrap(), b"image");
        let anew = artifacts.serve(base, Some(&short), None).await;
        assert!(
            matches!(anew, Err(super::ServeError::Forbidden)),
            "{anew:?}"
        );
        from.stop().await;
    });
}

#[test]
fn what_does_not_fit_is_refused_with_figures_and_a_full_disk_leaves_nothing() {
    in_netns(|| async {
        // Before any thread is started, so that all of them see what is mounted.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let (from, taken) = seeded().await;
        let small = tempfile::tempdir().unwrap();
        let mount = |size: &str| {
            let (none, flags) = (Some("tmpfs"), nix::mount::MsFlags::empty());
            nix::mount::mount(none, small.path(), none, flags, Some(size)).unwrap();
        };
        mount("size=66m");
        let settings = [("SNAPSHOTS_DIR", small.path().to_str().unwrap())];
        let to = empty(&settings).await;
        let failed = pull(&to, &taken.digest, request(from.address, &taken.digest)).await;
        let Err(PullError::Failed(text)) = failed else {
            panic!("{failed:?}")
        };
        assert!(
            text.contains("the host lacks ") && text.contains("64 MiB of them are kept"),
            "{text}"
        );
        let staging = small.path().join(".pulls");
        assert_eq!(std::fs::read_dir(&staging).unwrap().count(), 0);
        // It fits when it begins, and then somebody else writes: the last byte that is let through
        // before is in the middle.
        nix::mount::mount(
            None::<&str>,
            small.path(),
            None::<&str>,
            nix::mount::MsFlags::MS_REMOUNT,
            Some("size=72m"),
        )
        .unwrap();
        let line = Line::default();
        line.cuts
            .lock()
            .unwrap()
            .extend([usize::MAX, usize::MAX, 1 << 20]);
        let (address, _tasks) = line.open(from.address).await;
        let begun = to
            .registry
            .artifacts()
            .pull(&taken.digest, request(address, &taken.digest));
        let begun = begun.unwrap();
        while line.seen.lock().unwrap().len() < 3 {
            tokio::task::yield_now().await;
        }
        let filler = std::fs::File::create(small.path().join(".filler")).unwrap();
        let _full = (0..72).try_for_each(|mib| filler.write_all_at(&vec![1; 1 << 20], mib << 20));
        let failed = begun.ended().await;
        let Err(PullError::Failed(text)) = failed else {
            panic!("{failed:?}")
        };
        assert!(text.contains("MiB more were needed"), "{text}");
        assert_eq!(std::fs::read_dir(&staging).unwrap().count(), 0);
        assert!(std::fs::metadata(small.path().join("art-1")).is_err());
        assert!(filler.metadata().unwrap().blocks() > 0);
        from.stop().await;
        to.stop().await;
    });
}

#[test]
fn a_pull_is_followed_joined_and_refused_over_http() {
    in_netns(|| async {
        let (from, taken) = seeded().await;
        let to = empty(&[]).await;
        let digest = taken.digest.as_str();
        let path = format!("/v1/artifacts/{digest}/pull");
        let peer = format!("http://{}", from.address);
        let body = |more: &str| {
            let grant = grant(digest);
            format!(
                r#"{{"peer_url":"{peer}","grant":"{}"{more}}}"#,
                grant.expose()
            )
        };
        let no_grant = format!(r#"{{"peer_url":"{peer}"}}"#);
        for (path, body, says) in [
            (path.as_str(), no_grant.as_str(), "grant"),
            (&path, r#"{"grant":"g"}"#, "peer_url"),
            (
                &path,
                r#"{"grant":"g","peer_url":"ftp://h"}"#,
                "http or https",
            ),
            (&path, &body(r#","snapshot_id":"../x""#), "snapshot_id"),
            ("/v1/artifacts/ABC/pull", &body(""), "digest"),
        ] {
            let answer = to.post(path, body).await;
            assert_eq!(status(&answer), "400", "{answer}");
            assert!(text(&answer).contains(says), "{answer}");
        }
        let begun = to.post(&path, &body(r#","async":true"#)).await;
        assert_eq!(status(&begun), "202", "{begun}");
        let begun: fuse_wire_host::Pull = serde_json::from_str(text(&begun)).unwrap();
        let done = to.post(&path, &body("")).await;
        assert_eq!(status(&done), "200", "{done}");
        let record: Artifact = serde_json::from_str(text(&done)).unwrap();
        assert_eq!(record.snapshot_id, format!("art-{}", &digest[..16]));
        let progress = format!("/v1/artifacts/pulls/{}", begun.pull_id);
        let progress = to.send("GET", &progress, "", "").await;
        let progress: fuse_wire_host::Pull = serde_json::from_str(text(&progress)).unwrap();
        assert_eq!(
            (progress.state, progress.record),
            (PullState::Done, Some(record))
        );
        let unknown = to.send("GET", "/v1/artifacts/pulls/pull-0", "", "").await;
        assert_eq!(
            (status(&unknown), text(&unknown)),
            ("404", "pull not found")
        );
        let missing = "2".repeat(64);
        let missing_path = format!("/v1/artifacts/{missing}/pull");
        let missing = to
            .post(&missing_path, &body("").replace(digest, &missing))
            .await;
        assert_eq!(status(&missing), "422", "{missing}");
        assert!(text(&missing).contains("403 Forbidden"), "{missing}");
        from.stop().await;
        to.stop().await;
    });
}

#[test]
fn what_a_killed_agent_left_goes_at_the_next_start() {
    in_netns(|| async {
        let to = empty(&[]).await;
        let paths = to.bench.config.paths.clone();
        let staging = paths.state.join("artifact-pull-tmp");
        std::fs::create_dir_all(&staging).unwrap();
        for dir in [staging, paths.state.join("images")] {
            std::fs::write(dir.join("pull-0.tmp"), b"half").unwrap();
        }
        assert_eq!(traces(&to).len(), 2);
        let images = crate::disk::Images::new(
            paths.base.clone(),
            paths.images.clone(),
            paths.state.join("images"),
            "ext4",
        );
        super::Artifacts::open(
            &to.bench.config,
            Arc::new(crate::snapshot::Snapshots::open(paths.snapshots).unwrap()),
            Arc::new(images.unwrap()),
            Default::default(),
            Default::default(),
        )
        .unwrap();
        assert_eq!(traces(&to), Vec::<String>::new());
        to.stop().await;
    });
}
