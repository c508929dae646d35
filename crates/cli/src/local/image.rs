//! The guest image: there, or built now.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Error, Layout, agent, tools};
use crate::io::Io;

/// What the agent boots.
const FILES: [&str; 3] = ["vmlinux.bin", "initramfs.img", "rootfs-fused.ext4"];

/// Makes sure that the image is there. A missing one is built when the guest agent lies beside our
/// programs, as it does in an installation; in a source tree `make image` builds it.
///
/// # Errors
/// When it is missing and cannot be built.
pub(super) fn ensure(layout: &Layout, io: Io) -> Result<(), Error> {
    let Some(missing) = first_missing(&layout.image) else {
        return Ok(());
    };
    let fused = layout.program("fused");
    if !tools::is_executable(&fused) {
        return Err(Error::Image {
            dir: layout.image.clone(),
            file: missing,
        });
    }
    io.note(&format!(
        "building the guest image in {}; this is done once and takes a few minutes",
        layout.image.display()
    ));
    let output = Command::new(layout.program(agent::PROGRAM))
        .args(["image", "build", "--out"])
        .arg(&layout.image)
        .arg("--fused")
        .arg(&fused)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: layout.program(agent::PROGRAM),
            source,
        })?;
    if output.status.success() && first_missing(&layout.image).is_none() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned();
    Err(Error::ImageBuild {
        dir: layout.image.clone(),
        said,
    })
}

fn first_missing(dir: &Path) -> Option<&'static str> {
    FILES.into_iter().find(|file| !dir.join(file).is_file())
}
