//! Puts the parts together and into place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::distro::System;
use crate::manifest::{FileEntry, Image, Manifest, Parts};
use crate::{INITRAMFS, ImageError, MANIFEST, base, digest, initramfs};

#[cfg(test)]
mod tests;

/// Told what the build is doing, in words for people.
pub type Progress<'a> = dyn FnMut(&str) + 'a;

/// Beginning of the names of directories, inside the image's, that builds work in.
const WORK_PREFIX: &str = ".build-";

/// What to build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Directory of the image. Other files in it are left alone.
    pub out: PathBuf,
    /// The guest agent, a static program.
    pub fused: PathBuf,
    /// Build all parts, with the current versions of all packages, even if
    /// nothing changed.
    pub refresh: bool,
}

/// What has to be built, as a text for people; `None` if the image is current.
/// Does not change anything and needs neither root nor network.
///
/// # Errors
/// The guest agent is missing or of no use, or the system is not supported.
pub fn needs_build(options: &BuildOptions) -> Result<Option<&'static str>, ImageError> {
    let plan = Plan::make(options)?;
    Ok(match (&plan.reusable, &plan.present) {
        _ if options.refresh => Some("a refresh was asked for"),
        (_, None) => Some("there is no complete image yet"),
        (None, Some(_)) => Some("the distribution or the list of packages changed"),
        (Some(_), Some(image)) if image.manifest.parts != plan.parts => {
            Some("the guest agent changed")
        }
        _ => None,
    })
}

/// Builds what is not current and returns the complete image. Waits for another
/// build of the same directory to end.
///
/// # Errors
/// See [`ImageError`]; an image that was there before is still there.
pub fn build(options: &BuildOptions, progress: &mut Progress<'_>) -> Result<Image, ImageError> {
    let out = &options.out;
    fs::create_dir_all(out).map_err(ImageError::file("make", out))?;
    let _lock = lock(out, progress)?;
    let plan = Plan::make(options)?;
    if let (None, Some(image)) = (needs_build(options)?, &plan.present) {
        return Ok(image.clone());
    }
    remove_leftovers(out);
    let work = workplace(out)?;
    let fused = initramfs::read_fused(&options.fused)?;
    let kernel_version = match &plan.reusable {
        Some(image) => {
            base::reuse(image, work.path())?;
            image.manifest.kernel_version.clone()
        }
        None => base::build(&plan.system, work.path(), progress)?,
    };
    progress("writing the initramfs");
    initramfs::write(&fused, work.path())?;
    let manifest = Manifest {
        inputs_digest: plan.parts.inputs_digest(),
        kernel_version,
        arch: plan.system.arch.clone(),
        files: describe(work.path(), plan.reusable.as_ref())?,
        built_at: jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        parts: plan.parts,
    };
    install(work.path(), out, &manifest)?;
    Image::open(out)
}

/// What there is and what is wanted.
struct Plan {
    system: System,
    parts: Parts,
    present: Option<Image>,
    /// The present image, if its base can stay.
    reusable: Option<Image>,
}

impl Plan {
    fn make(options: &BuildOptions) -> Result<Self, ImageError> {
        let system = System::detect()?;
        initramfs::read_fused(&options.fused)?;
        let base = base::inputs(&system);
        let fused = digest::of_file(&options.fused)?;
        let initramfs = digest::of_inputs(&["initramfs", initramfs::VERSION, &fused, &base]);
        let present = Image::open(&options.out).ok();
        let current = |image: &Image| base::is_current(&image.manifest, &base);
        let reusable = present.clone().filter(current).filter(|_| !options.refresh);
        Ok(Self {
            system,
            parts: Parts { base, initramfs },
            present,
            reusable,
        })
    }
}

/// Sizes and digests of all files; those of an unchanged base are known.
fn describe(dir: &Path, reused: Option<&Image>) -> Result<BTreeMap<String, FileEntry>, ImageError> {
    let mut files = BTreeMap::new();
    for name in base::FILES.into_iter().chain([INITRAMFS]) {
        let known = reused.filter(|_| name != INITRAMFS);
        let entry = match known.and_then(|image| image.manifest.files.get(name)) {
            Some(entry) => entry.clone(),
            None => describe_file(&dir.join(name))?,
        };
        files.insert(name.to_owned(), entry);
    }
    Ok(files)
}

/// Size and digest of a file.
pub(crate) fn describe_file(path: &Path) -> Result<FileEntry, ImageError> {
    let meta = fs::metadata(path).map_err(ImageError::file("read", path))?;
    Ok(FileEntry {
        sha256: digest::of_file(path)?,
        size: meta.len(),
    })
}

/// A directory to work in, beside the result, so that files can be moved into place.
pub(crate) fn workplace(out: &Path) -> Result<tempfile::TempDir, ImageError> {
    tempfile::Builder::new()
        .prefix(WORK_PREFIX)
        .tempdir_in(out)
        .map_err(ImageError::file("make a directory in", out))
}

/// Moves the files into place. While that goes on there is no manifest, so
/// nobody takes a mixture of two images for one.
fn install(work: &Path, out: &Path, manifest: &Manifest) -> Result<(), ImageError> {
    let json = work.join(MANIFEST);
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|error| ImageError::file("write", &json)(error.into()))?;
    fs::write(&json, text).map_err(ImageError::file("write", &json))?;
    for name in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
        sync(&work.join(name))?;
    }
    let present = out.join(MANIFEST);
    match fs::remove_file(&present) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(ImageError::file("replace", &present)(error));
        }
        _ => {}
    }
    for name in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
        let target = out.join(name);
        fs::rename(work.join(name), &target).map_err(ImageError::file("write", &target))?;
    }
    sync(out)
}

pub(crate) fn sync(path: &Path) -> Result<(), ImageError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(ImageError::file("write", path))
}

/// Holds off other builds of the same directory until it is dropped.
pub(crate) fn lock(out: &Path, progress: &mut Progress<'_>) -> Result<File, ImageError> {
    let path = out.join(".image.lock");
    let file = File::create(&path).map_err(ImageError::file("make", &path))?;
    if file.try_lock().is_err() {
        progress("waiting for another build of this image");
        file.lock().map_err(ImageError::file("lock", &path))?;
    }
    Ok(file)
}

/// Removes what interrupted builds left. Nobody else builds here now.
pub(crate) fn remove_leftovers(out: &Path) {
    let Ok(entries) = fs::read_dir(out) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
            // What cannot be removed costs space only.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}
