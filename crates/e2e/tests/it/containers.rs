//! Container images without a registry: OCI archives with a static busybox in them, in a root file system.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fuse_testkit::Stack;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

/// A container image whose only program is a shell script.
pub(crate) struct Image {
    /// As a Fusefile names it.
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
    /// Another program: name and text.
    pub(crate) tool: Option<(&'static str, &'static str)>,
    /// A directory that outlives its containers.
    pub(crate) volume: Option<&'static str>,
}

/// Applets of busybox that scripts use.
const APPLETS: [&str; 13] = [
    "sh", "cat", "cp", "echo", "httpd", "ln", "mkdir", "mv", "nslookup", "sleep", "test", "touch",
    "wget",
];

/// The variant `name` as it was built, for the stack; `None` with the reason to skip.
pub(crate) fn variant(stack: &Stack, name: &str) -> Result<Result<PathBuf, String>> {
    let file = format!("{name}.ext4");
    let built = stack.image().dir().join("images").join(&file);
    if !built.is_file() {
        let how = format!("make image VARIANTS={name}");
        return Ok(Err(format!("{} is not there: {how}", built.display())));
    }
    Ok(Ok(built))
}

/// Makes the variant `services` with archives of `images` in it an image of the stack, once.
pub(crate) async fn give_services(
    stack: &Stack,
    images: &'static [Image],
) -> Result<Result<(), String>> {
    static GIVEN: OnceCell<()> = OnceCell::const_new();
    let built = match variant(stack, "services")? {
        Ok(built) => built,
        Err(reason) => return Ok(Err(reason)),
    };
    // Under its name when it is whole: whoever finds it there may boot it.
    let give = || async {
        let whole = with_archives(stack, &built, images)?;
        anyhow::Ok(fs::rename(whole, stack.images_dir().join("services.ext4"))?)
    };
    GIVEN.get_or_try_init(give).await?;
    Ok(Ok(()))
}

/// A copy of `built` with archives of `images` in it.
pub(crate) fn with_archives(stack: &Stack, built: &Path, images: &[Image]) -> Result<PathBuf> {
    let work = stack.dir().join("containers");
    fs::create_dir_all(&work)?;
    let draft = work.join("services.ext4");
    let (from, to) = (built.to_string_lossy(), draft.to_string_lossy());
    run("cp", &["--reflink=auto", "--sparse=always", &from, &to])?;
    run("debugfs", &["-w", "-R", "mkdir /srv/images", &to])?;
    for (number, image) in images.iter().enumerate() {
        let archive = archive(&work.join(number.to_string()), image)?;
        let write = format!("write {} /srv/images/{number}.tar", archive.display());
        run("debugfs", &["-w", "-R", &write, &to])?;
    }
    Ok(draft)
}

fn archive(dir: &Path, image: &Image) -> Result<PathBuf> {
    let (root, blobs) = (dir.join("root"), dir.join("oci/blobs/sha256"));
    for made in [root.join("bin"), root.join("tmp"), blobs] {
        fs::create_dir_all(made)?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).context("busybox-static is installed")?;
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    let tools = [Some(("main", image.script)), image.tool];
    for (name, text) in tools.into_iter().flatten() {
        let path = root.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let layer = dir.join("layer.tar");
    let (root, oci) = (root.to_string_lossy(), dir.join("oci"));
    let owners = ["--owner=0", "--group=0", "--numeric-owner"];
    run(
        "tar",
        &[
            &owners[..],
            &["-C", &root, "-cf", &layer.to_string_lossy(), "."],
        ]
        .concat(),
    )?;
    let layer = blob(&oci, &fs::read(&layer)?, "image.layer.v1.tar")?;
    let volumes: Map<_, _> = image
        .volume
        .map(|at| (at.to_owned(), json!({})))
        .into_iter()
        .collect();
    let config = json!({"architecture": "amd64", "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/main"], "Volumes": volumes},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}});
    let config = blob(&oci, config.to_string().as_bytes(), "image.config.v1+json")?;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer],
        "mediaType": "application/vnd.oci.image.manifest.v1+json"});
    let mut entry = blob(
        &oci,
        manifest.to_string().as_bytes(),
        "image.manifest.v1+json",
    )?;
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": image.name});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    fs::write(oci.join("index.json"), index.to_string())?;
    fs::write(oci.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let archive = dir.join("image.tar");
    let (oci, to) = (oci.to_string_lossy(), archive.to_string_lossy());
    run("tar", &["-C", &oci, "-cf", &to, "."])?;
    Ok(archive)
}

fn blob(oci: &Path, content: &[u8], kind: &str) -> Result<Value> {
    let digest = hex::encode(Sha256::digest(content));
    fs::write(oci.join("blobs/sha256").join(&digest), content)?;
    Ok(json!({"mediaType": format!("application/vnd.oci.{kind}"),
        "digest": format!("sha256:{digest}"), "size": content.len()}))
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let done = Command::new(program).args(args).output();
    let done = done.with_context(|| format!("start {program}"))?;
    ensure!(done.status.success(), "{program} {args:?}: {done:?}");
    Ok(())
}
