//! Firecracker or the emulator: decided by a guest that answers.
//!
//! A device node that exists and a VM that starts prove nothing, so Firecracker is chosen only after
//! a probe guest has booted under it and answered. The verdict is kept for as long as the program,
//! the guest image and the boot of the machine stay the same.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::daemon::boot_id;
use super::root::{self, Step};
use super::{Error, Layout, agent, record, tools};
use crate::io::Io;

const EMULATOR: &str = "fc-emulator";
const USUAL_PLACE: &str = "/usr/local/bin/firecracker";
const KVM: &str = "/dev/kvm";

/// The VMM of the stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Guests run in QEMU.
    pub(crate) emulated: bool,
    /// The program.
    pub(crate) program: PathBuf,
    /// Why this one.
    pub(crate) reason: String,
}

impl Choice {
    /// The word for it.
    pub(crate) fn name(&self) -> &'static str {
        if self.emulated {
            "emulator"
        } else {
            "firecracker"
        }
    }
}

/// What `fc-agent probe` prints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Verdict {
    ok: bool,
    #[serde(default)]
    boot_ms: Option<u64>,
    #[serde(default)]
    reason: Option<String>,
}

/// A verdict and what it holds for.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    about: String,
    verdict: Verdict,
}

/// Chooses, probing if there is something to probe and it was not probed before.
///
/// # Errors
/// When the probe cannot be run at all.
pub(super) fn choose(layout: &Layout, io: Io) -> Result<Choice, Error> {
    let emulator = |reason: String| Choice {
        emulated: true,
        program: layout.program(EMULATOR),
        reason,
    };
    let Some(firecracker) = firecracker() else {
        return Ok(emulator(
            "no firecracker program on this machine".to_owned(),
        ));
    };
    if !Path::new(KVM).exists() {
        return Ok(emulator(format!("no {KVM} on this machine")));
    }
    let about = about(layout, &firecracker);
    let file = layout.file("vmm.json");
    let kept = record::load::<Kept>(&file).filter(|kept| kept.about == about);
    let verdict = if let Some(kept) = kept {
        kept.verdict
    } else {
        io.note("booting a probe guest under Firecracker");
        let verdict = read(&root::run(layout, Step::Probe)?);
        record::save(
            &file,
            &Kept {
                about,
                verdict: verdict.clone(),
            },
        )?;
        verdict
    };
    if verdict.ok {
        let took = verdict
            .boot_ms
            .map(|ms| format!(" in {ms} ms"))
            .unwrap_or_default();
        return Ok(Choice {
            emulated: false,
            program: firecracker,
            reason: format!("a probe guest booted and answered{took}"),
        });
    }
    let why = verdict
        .reason
        .unwrap_or_else(|| "the probe guest did not answer".to_owned());
    // What follows the first line is the log of the VMM.
    let why = why.lines().next().unwrap_or_default();
    Ok(emulator(format!(
        "Firecracker cannot run guests here: {why}"
    )))
}

/// The root step: boots the probe guest and prints the verdict.
///
/// # Errors
/// When the probe cannot be run.
pub(super) fn probe(layout: &Layout) -> Result<String, Error> {
    match firecracker() {
        Some(program) => agent::probe(layout, program),
        None => Ok(String::new()),
    }
}

fn read(printed: &str) -> Verdict {
    serde_json::from_str(printed.trim()).unwrap_or_default()
}

/// Firecracker's program: `FC_BIN`, else `PATH`, else its usual place.
fn firecracker() -> Option<PathBuf> {
    let given = std::env::var_os("FC_BIN")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from);
    given
        .filter(|path| !path.ends_with(EMULATOR) && tools::is_executable(path))
        .or_else(|| tools::find("firecracker"))
        .or_else(|| Some(PathBuf::from(USUAL_PLACE)).filter(|path| tools::is_executable(path)))
}

/// What a verdict depends on.
fn about(layout: &Layout, firecracker: &Path) -> String {
    let image = fs::read(layout.image.join("image.json")).unwrap_or_default();
    format!(
        "{} {} {} {}",
        firecracker.display(),
        identity(firecracker),
        hex::encode(Sha256::digest(image)),
        boot_id()
    )
}

/// Tells one build of a program from another.
pub(super) fn identity(program: &Path) -> String {
    fs::metadata(program)
        .map(|meta| {
            format!(
                "{}-{}-{}.{:09}",
                meta.ino(),
                meta.len(),
                meta.mtime(),
                meta.mtime_nsec()
            )
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_and_anything_else_is_a_no() {
        let yes = read("{\"ok\":true,\"vmm\":\"firecracker\",\"boot_ms\":180}\n");
        assert!(yes.ok);
        assert_eq!(yes.boot_ms, Some(180));
        let no = read(
            "{\"ok\":false,\"vmm\":\"firecracker\",\"boot_ms\":null,\"reason\":\"no answer\"}",
        );
        assert_eq!((no.ok, no.reason.as_deref()), (false, Some("no answer")));
        for text in ["", "Segmentation fault", "[]"] {
            assert!(!read(text).ok, "{text}");
        }
    }
}
