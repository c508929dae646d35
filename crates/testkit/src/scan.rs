//! Searching for a secret where it must not be: process arguments, logs, databases, disks.
//!
//! A value is looked for as it is, in base64 and in hex, so that "encoded" does not pass for "absent".

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{SeekFrom, seek};

/// A secret value in the spellings that are searched for.
#[derive(Clone)]
pub struct Needle {
    spellings: Vec<Vec<u8>>,
    /// When the secret came into being; a file last written before that cannot hold it.
    born: Option<SystemTime>,
}

// By hand: a debug print must not be the place where the secret turns up.
impl std::fmt::Debug for Needle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Needle").finish_non_exhaustive()
    }
}

impl Needle {
    /// Prepares `secret`, which should be long and random enough not to occur by chance.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        let mut spellings = vec![secret.as_bytes().to_vec(), hex::encode(secret).into_bytes()];
        // base64 depends on the position modulo 3; the inner characters of each alignment are enough to recognise it.
        for pad in 0..3 {
            let shifted = [vec![b'x'; pad], secret.as_bytes().to_vec()].concat();
            let text = STANDARD.encode(shifted);
            let inner = text.trim_end_matches('=');
            spellings.push(inner.as_bytes()[4..inner.len() - 2].to_vec());
        }
        Self {
            spellings,
            born: None,
        }
    }

    /// Prepares a secret that was made just now, so that searches can leave out what is older, which is
    /// above all the base image.
    #[must_use]
    pub fn fresh(secret: &str) -> Self {
        Self {
            born: Some(SystemTime::now()),
            ..Self::new(secret)
        }
    }

    fn may_be_in(&self, file: &std::fs::Metadata) -> bool {
        let modified = file.modified().ok();
        self.born
            .zip(modified)
            .is_none_or(|(born, modified)| modified >= born)
    }

    /// Whether `haystack` contains the secret in any spelling.
    #[must_use]
    pub fn is_in(&self, haystack: &[u8]) -> bool {
        self.spellings
            .iter()
            .any(|needle| contains(haystack, needle))
    }

    fn longest(&self) -> usize {
        self.spellings.iter().map(Vec::len).max().unwrap_or(0)
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    let Some(&first) = needle.first() else {
        return false;
    };
    let mut rest = haystack;
    while let Some(at) = rest.iter().position(|&b| b == first) {
        if rest[at..].starts_with(needle) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Files below `dir` (sparse ones by their data only) that contain the secret.
///
/// # Errors
/// When a file cannot be read.
pub fn files(dir: &Path, needle: &Needle) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            for entry in
                std::fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?
            {
                open.push(entry?.path());
            }
        } else if meta.is_file() && needle.may_be_in(&meta) && file_contains(&path, needle)? {
            found.push(path);
        }
    }
    Ok(found)
}

fn file_contains(path: &Path, needle: &Needle) -> Result<bool> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("open {}", path.display())),
    };
    let (overlap, size) = (needle.longest() as u64, file.metadata()?.len());
    let mut offset = 0;
    let mut buffer = vec![0_u8; 1 << 20];
    // Disk images are mostly holes: there is nothing to search in.
    while let Ok(data) = seek(&file, SeekFrom::Data(offset)) {
        let hole = seek(&file, SeekFrom::Hole(data)).unwrap_or(size);
        offset = data;
        while offset < hole {
            let read = file
                .read_at(&mut buffer, offset)
                .with_context(|| format!("read {}", path.display()))?;
            if needle.is_in(&buffer[..read]) {
                return Ok(true);
            }
            if read < buffer.len() {
                break;
            }
            offset += read as u64 - overlap;
        }
        offset = hole;
    }
    Ok(false)
}

/// Watches the arguments and names of all processes of the machine until stopped.
#[derive(Debug)]
pub struct ProcessWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(BTreeSet<String>, u64)>,
}

impl ProcessWatch {
    /// Starts looking, every few milliseconds.
    #[must_use]
    pub fn start(needle: Needle) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut rounds) = (BTreeSet::new(), 0);
            let mut known = HashMap::new();
            while !flag.load(Ordering::Relaxed) {
                rounds += 1;
                for (pid, field) in leaking_processes(&needle, &mut known) {
                    seen.insert(format!("{field} of process {pid}"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            (seen, rounds)
        });
        Self { stop, thread }
    }

    /// Ends the watch: where the secret was seen, and how many rounds were made.
    ///
    /// # Errors
    /// When the watching thread panicked.
    pub fn stop(self) -> Result<(Vec<String>, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let (seen, rounds) = self
            .thread
            .join()
            .map_err(|_| anyhow!("the process watch panicked"))?;
        Ok((seen.into_iter().collect(), rounds))
    }
}

/// Processes with the secret in their arguments or name right now. Environments are the owner's own business: they
/// are readable by root and by that user alone, and the CLI takes secrets from them on purpose. What was searched
/// before is in `known` and not searched again.
fn leaking_processes(
    needle: &Needle,
    known: &mut HashMap<(u32, &'static str), Vec<u8>>,
) -> Vec<(u32, &'static str)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        for field in ["cmdline", "comm"] {
            let mut text = Vec::new();
            // Processes come and go while we look.
            let read = std::fs::File::open(entry.path().join(field))
                .and_then(|mut f| f.read_to_end(&mut text));
            if read.is_err() || known.get(&(pid, field)) == Some(&text) {
                continue;
            }
            if needle.is_in(&text) {
                found.push((pid, field));
            }
            known.insert((pid, field), text);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_spelling_at_every_alignment() {
        let secret = "s3cr3t-value-0123456789";
        let needle = Needle::new(secret);
        assert!(needle.is_in(format!("a={secret}\n").as_bytes()));
        assert!(needle.is_in(hex::encode(secret).as_bytes()));
        for before in 0..7 {
            let json = format!("{}\"{secret}\"}}", "k".repeat(before));
            assert!(
                needle.is_in(STANDARD.encode(json).as_bytes()),
                "base64 after {before} bytes"
            );
        }
        assert!(!needle.is_in(b"s3cr3t-value-012345678 is cut short"));
    }

    #[test]
    fn finds_a_value_across_a_read_boundary() {
        let dir = tempfile::tempdir().unwrap();
        let needle = Needle::new("s3cr3t-value-0123456789");
        let mut bytes = vec![b'.'; (1 << 20) - 5];
        bytes.extend_from_slice(b"s3cr3t-value-0123456789");
        std::fs::write(dir.path().join("log"), bytes).unwrap();
        assert_eq!(files(dir.path(), &needle).unwrap().len(), 1);
    }

    #[test]
    fn a_watch_sees_a_secret_in_an_argument() {
        let watch = ProcessWatch::start(Needle::new("watch-me-0123456789abcdef"));
        let status = std::process::Command::new("sh")
            .args(["-c", "sleep 0.3; : \"$0\"", "watch-me-0123456789abcdef"])
            .status()
            .unwrap();
        assert!(status.success());
        let (seen, rounds) = watch.stop().unwrap();
        assert!(rounds > 0);
        assert!(
            seen.iter().any(|s| s.starts_with("cmdline of process")),
            "{seen:?}"
        );
    }
}
