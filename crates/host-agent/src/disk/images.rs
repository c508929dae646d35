//! Base images: what a caller names, pinned by content.
//!
//! An operator places `<images dir>/<name>.ext4` (`.qcow2` for QEMU). The first use hashes it and
//! gives its bytes an immutable second name, `<store>/<sha256>.ext4`, by sharing blocks or by a hard link; VMs only
//! ever open that one. So a name may be pointed at other bytes while VMs run on the old ones, as
//! long as the file is replaced and not written in place.
//!
//! The digest of a file is remembered under its identity (device, inode, size, modification time),
//! across restarts too; an image manifest beside the file that is no older than the file and knows
//! its size saves the first read.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::file_error::{FileError, failed};

use super::copy;

/// File of the store that remembers digests.
const INDEX: &str = "digests.json";
/// Manifest that the image builder writes beside its files.
const MANIFEST: &str = "image.json";

/// A base image that will not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseImage {
    /// Immutable file.
    pub path: PathBuf,
    /// Lower-case hex SHA-256 of its content.
    pub digest: String,
}

/// An image that cannot be used.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The name itself is not allowed.
    #[error("image {name:?} is not a valid image name: {why}")]
    Name {
        /// The name as given.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// Nothing of that name.
    #[error("image {name:?} is not on this host: {}", how_to_get(.name, .path))]
    Missing {
        /// The name as given.
        name: String,
        /// Where it would be.
        path: PathBuf,
    },
    /// The default image is not there.
    #[error("the base image {} is missing: run this agent's `image build --out {}`",
        .path.display(), .path.parent().unwrap_or(Path::new(".")).display())]
    DefaultMissing {
        /// Where it should be.
        path: PathBuf,
    },
    /// The image that a snapshot belongs to is not there.
    #[error("the base image {digest} of the snapshot is not on this host")]
    Gone {
        /// Its digest.
        digest: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ImageError {
    /// Whether the caller's request is at fault rather than the host.
    #[must_use]
    pub fn is_request(&self) -> bool {
        match self {
            Self::Name { .. } | Self::Missing { .. } | Self::Gone { .. } => true,
            Self::DefaultMissing { .. } | Self::File(_) => false,
        }
    }
}

/// The builder knows some images by name.
fn how_to_get(name: &str, path: &Path) -> String {
    let out = path.parent().and_then(Path::parent);
    match (fuse_guest_image::Variant::find(name), out) {
        (Ok(_), Some(out)) => format!(
            "make it there with this agent's `image build --out {} --variant {name}`",
            out.display()
        ),
        _ => format!("bake it and place it at {}", path.display()),
    }
}

/// What identifies the bytes of a file without reading them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Identity {
    dev: u64,
    inode: u64,
    size: u64,
    mtime_s: i64,
    mtime_ns: i64,
}

impl Identity {
    fn of(meta: &fs::Metadata) -> Self {
        Self {
            dev: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            mtime_s: meta.mtime(),
            mtime_ns: meta.mtime_nsec(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Known {
    identity: Identity,
    digest: String,
}

/// Resolves image names.
#[derive(Debug)]
pub struct Images {
    default: PathBuf,
    named: PathBuf,
    store: PathBuf,
    /// Of image files.
    extension: &'static str,
    /// Digests by identity.
    known: Mutex<HashMap<Identity, String>>,
}

impl Images {
    /// `default` is the image without a name, `named` the directory of named ones, `store` where
    /// the immutable files live; files of images end in `extension`.
    ///
    /// # Errors
    /// The store cannot be made.
    pub fn new(
        default: PathBuf,
        named: PathBuf,
        store: PathBuf,
        extension: &'static str,
    ) -> Result<Self, ImageError> {
        fs::create_dir_all(&store).map_err(failed("create", &store))?;
        // An unreadable index only costs a second read of the images.
        let known: Vec<Known> = fs::read(store.join(INDEX))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let known = known.into_iter().map(|k| (k.identity, k.digest)).collect();
        Ok(Self {
            default,
            named,
            store,
            extension,
            known: Mutex::new(known),
        })
    }

    /// The immutable file for `name`; empty or absent is the default image.
    ///
    /// # Errors
    /// The name is not allowed, nothing has it, or the file cannot be read or pinned.
    pub fn resolve(&self, name: Option<&str>) -> Result<BaseImage, ImageError> {
        let path = match name.filter(|name| !name.is_empty()) {
            Some(name) => self.find(name)?,
            None if self.default.is_file() => self.default.clone(),
            None => {
                return Err(ImageError::DefaultMissing {
                    path: self.default.clone(),
                });
            }
        };
        // Held for the reading and the naming, so that two creates do either once.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = self.digest(&mut known, &path)?;
        let pinned = self.store.join(format!("{digest}.{}", self.extension));
        if !pinned.exists() {
            pin(&path, &pinned)?;
        }
        Ok(BaseImage {
            path: pinned,
            digest,
        })
    }

    /// The image of a digest that was used before.
    ///
    /// # Errors
    /// It is not in the store.
    pub fn pinned(&self, digest: &str) -> Result<BaseImage, ImageError> {
        let plain = !digest.is_empty() && digest.bytes().all(|b| b.is_ascii_alphanumeric());
        let path = self.store.join(format!("{digest}.{}", self.extension));
        if !plain || !path.is_file() {
            return Err(ImageError::Gone {
                digest: digest.to_owned(),
            });
        }
        Ok(BaseImage {
            path,
            digest: digest.to_owned(),
        })
    }

    /// Whether the image of a digest is here; the default image is, before it was first used.
    pub fn has(&self, digest: &str) -> bool {
        self.pinned(digest).is_ok() || self.resolve(None).is_ok_and(|image| image.digest == digest)
    }

    /// Where an image that is arriving is written: the file system of the store.
    #[must_use]
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// Takes over a durable file whose digest was verified.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn adopt(&self, file: &Path, digest: &str) -> Result<(), FileError> {
        let path = self.store.join(format!("{digest}.{}", self.extension));
        fs::rename(file, &path).map_err(failed("rename the image to", &path))?;
        let synced = File::open(&self.store).and_then(|dir| dir.sync_all());
        synced.map_err(failed("sync", &self.store))
    }

    fn find(&self, name: &str) -> Result<PathBuf, ImageError> {
        let refuse = |why| ImageError::Name {
            name: name.to_owned(),
            why,
        };
        if name.trim().is_empty() {
            return Err(refuse("it is blank"));
        }
        if name.chars().any(char::is_control) {
            return Err(refuse("it has control characters"));
        }
        if name.starts_with('/') || name.starts_with('~') {
            return Err(refuse("it must be relative to the images directory"));
        }
        // Names that climb are refused before the file system is asked what is up there.
        if Path::new(name)
            .components()
            .any(|c| !matches!(c, std::path::Component::Normal(_)))
        {
            return Err(refuse("it leaves the images directory"));
        }
        let path = self.named.join(format!("{name}.{}", self.extension));
        let missing = || ImageError::Missing {
            name: name.to_owned(),
            path: path.clone(),
        };
        let root = self.named.canonicalize().map_err(|_| missing())?;
        let found = path.canonicalize().map_err(|_| missing())?;
        if !found.starts_with(&root) || found == root {
            return Err(refuse("it leaves the images directory"));
        }
        if found.is_file() {
            Ok(found)
        } else {
            Err(missing())
        }
    }

    fn digest(
        &self,
        known: &mut HashMap<Identity, String>,
        path: &Path,
    ) -> Result<String, ImageError> {
        let meta = fs::metadata(path).map_err(failed("read", path))?;
        let identity = Identity::of(&meta);
        if let Some(digest) = known.get(&identity) {
            return Ok(digest.clone());
        }
        let digest = match from_manifest(path, &meta) {
            Some(digest) => digest,
            None => hash(path).map_err(failed("read", path))?,
        };
        known.insert(identity, digest.clone());
        let list: Vec<Known> = known
            .iter()
            .map(|(identity, digest)| Known {
                identity: identity.clone(),
                digest: digest.clone(),
            })
            .collect();
        let text = serde_json::to_vec_pretty(&list).unwrap_or_default();
        // Losing the index costs one read of the image at the next start.
        if let Err(error) = fs::write(self.store.join(INDEX), text) {
            tracing::debug!(%error, "image digests are not remembered");
        }
        Ok(digest)
    }
}

/// Gives the bytes of `path` the immutable name `pinned`.
fn pin(path: &Path, pinned: &Path) -> Result<(), ImageError> {
    let partial = pinned.with_extension(format!("partial-{}", std::process::id()));
    let _stale = fs::remove_file(&partial);
    let shared = File::open(path).and_then(|source| {
        let target = File::create_new(&partial)?;
        rustix::fs::ioctl_ficlone(&target, &source).map_err(io::Error::from)
    });
    if shared.is_err() {
        let _unshared = fs::remove_file(&partial);
        // A hard link copies nothing; another file system needs a copy.
        if fs::hard_link(path, &partial).is_err() {
            copy::sparse(path, &partial).map_err(failed("copy the image to", &partial))?;
        }
    }
    Ok(fs::rename(&partial, pinned).map_err(failed("rename the image to", pinned))?)
}

fn from_manifest(path: &Path, meta: &fs::Metadata) -> Option<String> {
    #[derive(Deserialize)]
    struct Manifest {
        files: HashMap<String, Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        sha256: String,
        size: u64,
    }
    let manifest = path.with_file_name(MANIFEST);
    // A file newer than its manifest was changed behind the manifest's back.
    if fs::metadata(&manifest).ok()?.modified().ok()? < meta.modified().ok()? {
        return None;
    }
    let manifest: Manifest = serde_json::from_slice(&fs::read(&manifest).ok()?).ok()?;
    let entry = manifest.files.get(path.file_name()?.to_str()?)?;
    let is_digest = entry.sha256.len() == 64
        && entry
            .sha256
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (is_digest && entry.size == meta.len()).then(|| entry.sha256.clone())
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1024 * 1024];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(hex::encode(hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(dir: &Path) -> Images {
        let named = dir.join("images");
        fs::create_dir_all(named.join("team")).unwrap();
        fs::write(named.join("team/cuda.ext4"), b"cuda").unwrap();
        fs::write(dir.join("base.ext4"), b"base").unwrap();
        Images::new(dir.join("base.ext4"), named, dir.join("store"), "ext4").unwrap()
    }

    #[test]
    fn a_replaced_name_leaves_the_old_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let images = images(dir.path());
        let old = images.resolve(None).unwrap();
        assert_eq!(fs::read(&old.path).unwrap(), b"base");
        fs::write(dir.path().join("next"), b"other").unwrap();
        fs::rename(dir.path().join("next"), dir.path().join("base.ext4")).unwrap();
        let new = images.resolve(Some("")).unwrap();
        assert_ne!(new.digest, old.digest);
        assert_eq!(fs::read(&new.path).unwrap(), b"other");
        assert_eq!(fs::read(&old.path).unwrap(), b"base");
    }

    #[test]
    fn nested_names_resolve_and_digests_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let found = images(dir.path()).resolve(Some("team/cuda")).unwrap();
        assert_eq!(found.digest.len(), 64);
        let again = images(dir.path());
        assert_eq!(again.resolve(Some("team/cuda")).unwrap().digest.len(), 64);
        let text = fs::read_to_string(dir.path().join("store/digests.json")).unwrap();
        assert!(text.contains(&found.digest));
    }

    #[test]
    fn names_stay_in_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let images = images(dir.path());
        fs::write(dir.path().join("secret.ext4"), b"x").unwrap();
        std::os::unix::fs::symlink(
            dir.path().join("secret.ext4"),
            dir.path().join("images/link.ext4"),
        )
        .unwrap();
        for name in [
            "../secret",
            "/etc/x",
            "~x",
            " ",
            "a\u{7f}",
            "team/../../secret",
            "link",
        ] {
            let error = images.resolve(Some(name)).unwrap_err();
            assert!(matches!(error, ImageError::Name { .. }), "{name}: {error}");
            assert!(error.is_request());
        }
        let error = images.resolve(Some("absent")).unwrap_err();
        assert!(matches!(&error, ImageError::Missing { .. }) && error.is_request());
    }

    #[test]
    fn a_missing_default_says_what_to_run() {
        let dir = tempfile::tempdir().unwrap();
        let images = images(dir.path());
        fs::remove_file(dir.path().join("base.ext4")).unwrap();
        let error = images.resolve(None).unwrap_err();
        assert!(error.to_string().contains("image build --out"), "{error}");
        assert!(!error.is_request());
    }

    #[test]
    fn a_missing_image_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let images = images(dir.path());
        let said = |name| images.resolve(Some(name)).unwrap_err().to_string();
        let (at, own) = (dir.path().display(), said("services"));
        assert!(
            own.contains(&format!("`image build --out {at} --variant services`")),
            "{own}"
        );
        let other = said("mine");
        assert!(
            other.contains(&format!("place it at {at}/images/mine.ext4")),
            "{other}"
        );
    }

    #[test]
    fn a_manifest_saves_the_read_only_while_it_is_true() {
        let dir = tempfile::tempdir().unwrap();
        let images = images(dir.path());
        let claimed = "ab".repeat(32);
        let manifest = |size: u64| {
            let text =
                format!(r#"{{"files":{{"base.ext4":{{"sha256":"{claimed}","size":{size}}}}}}}"#);
            fs::write(dir.path().join(MANIFEST), text).unwrap();
        };
        manifest(4);
        assert_eq!(images.resolve(None).unwrap().digest, claimed);
        fs::write(dir.path().join("base.ext4"), b"other").unwrap();
        assert_ne!(images.resolve(None).unwrap().digest, claimed);
        let again = Images::new(
            dir.path().join("base.ext4"),
            dir.path().join("images"),
            dir.path().join("store2"),
            "ext4",
        )
        .unwrap();
        manifest(4);
        assert_ne!(
            again.resolve(None).unwrap().digest,
            claimed,
            "the size differs"
        );
    }
}
