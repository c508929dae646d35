//! Variants: root file systems with more in them than the base, for requests that name them.
//!
//! ```text
//! rootfs-fused.ext4 --modules--+
//! mmdebstrap, more packages ---+--> images/NAME.ext4, described by images/image.json
//! ```
//!
//! A variant belongs to the base beside it: it holds modules for that kernel, so it is stale as soon
//! as the base is another one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::build::{self, Progress};
use crate::distro::System;
use crate::manifest::{FileEntry, Image};
use crate::rootfs::{self, Modules, Recipe};
use crate::{ImageError, MANIFEST, ROOTFS, VARIANTS_DIR, base, digest};

/// Raised when the content changes for another reason than its inputs.
const VERSION: &str = "1";

/// A root file system that can be built beside the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// What a request calls it.
    pub name: &'static str,
    /// What it is for, in words for people.
    pub purpose: &'static str,
    packages: &'static [&'static str],
    script: &'static str,
}

/// All that there are.
pub const VARIANTS: [Variant; 2] = [
    Variant {
        name: "services",
        purpose: "containers: podman and compose",
        packages: &[
            "aardvark-dns",
            "crun",
            "docker-compose",
            "iptables",
            "netavark",
            "podman",
        ],
        script: include_str!("variant/services.sh"),
    },
    Variant {
        name: "node",
        purpose: "programs for Node",
        packages: &["nodejs"],
        script: "node --version >/dev/null",
    },
];

/// Content of `images/image.json`. The host agent reads the digests of the files from it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Variants {
    files: BTreeMap<String, FileEntry>,
    /// Digest of the inputs by name of the variant.
    inputs: BTreeMap<String, String>,
}

/// What to build.
#[derive(Debug, Clone, Copy)]
pub struct VariantOptions<'a> {
    /// The variant.
    pub variant: &'a Variant,
    /// Ending of image files, as the agent that uses them wants it.
    pub extension: &'a str,
    /// Build it even if nothing changed.
    pub refresh: bool,
}

impl Variant {
    /// The variant of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<&'static Self, ImageError> {
        let found = VARIANTS.iter().find(|variant| variant.name == name);
        found.ok_or_else(|| ImageError::NoVariant {
            name: name.to_owned(),
            known: VARIANTS.map(|variant| variant.name).join(", "),
        })
    }

    /// Those that were built beside an image, current or not.
    #[must_use]
    pub fn built(image: &Image) -> Vec<&'static Self> {
        let known = Variants::read(&image.dir.join(VARIANTS_DIR));
        let names = known.inputs.keys();
        names.filter_map(|name| Self::find(name).ok()).collect()
    }

    fn inputs(&self, system: &System, image: &Image) -> String {
        let base = image.manifest.files.get(ROOTFS);
        let base = base.map_or("", |entry| entry.sha256.as_str());
        let mut inputs = vec!["variant", VERSION, rootfs::VERSION, self.name, self.script];
        inputs.extend(system.inputs());
        inputs.push(base);
        inputs.extend(self.packages);
        digest::of_inputs(&inputs)
    }
}

/// Builds a variant beside a complete image, if it is not current; answers with its file.
///
/// # Errors
/// See [`ImageError`]; a variant that was there before is still there.
pub fn build_variant(
    image: &Image,
    options: &VariantOptions<'_>,
    progress: &mut Progress<'_>,
) -> Result<PathBuf, ImageError> {
    let system = System::detect()?;
    let _lock = build::lock(&image.dir, progress)?;
    let (variant, dir) = (options.variant, image.dir.join(VARIANTS_DIR));
    let file = format!("{}.{}", variant.name, options.extension);
    let (target, inputs) = (dir.join(&file), variant.inputs(&system, image));
    fs::create_dir_all(&dir).map_err(ImageError::file("make", &dir))?;
    let mut known = Variants::read(&dir);
    if !options.refresh && known.is_current(variant, &target, &inputs) {
        return Ok(target);
    }
    base::check_means()?;
    build::remove_leftovers(&dir);
    let work = build::workplace(&dir)?;
    progress(&format!(
        "making the root file system {:?} for {} (a minute or two)",
        variant.name, variant.purpose
    ));
    let recipe = Recipe {
        packages: variant.packages,
        script: variant.script,
        identity: &inputs,
    };
    let made = work.path().join(&file);
    rootfs::write(
        &system,
        &Modules::Image(image),
        &recipe,
        (work.path(), &made),
    )?;
    let entry = build::describe_file(&made)?;
    build::sync(&made)?;
    fs::rename(&made, &target).map_err(ImageError::file("write", &target))?;
    known.files.insert(file, entry);
    known.inputs.insert(variant.name.to_owned(), inputs);
    known.write(&dir, work.path())?;
    Ok(target)
}

impl Variants {
    /// What is known of a directory; what cannot be read is built anew.
    fn read(dir: &Path) -> Self {
        fs::read(dir.join(MANIFEST))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    fn is_current(&self, variant: &Variant, target: &Path, inputs: &str) -> bool {
        let size = fs::metadata(target).ok().map(|meta| meta.len());
        let name = target.file_name().and_then(|name| name.to_str());
        let entry = name.and_then(|name| self.files.get(name));
        size.is_some()
            && entry.map(|entry| entry.size) == size
            && self.inputs.get(variant.name).is_some_and(|it| it == inputs)
    }

    fn write(&self, dir: &Path, work: &Path) -> Result<(), ImageError> {
        let (draft, target) = (work.join(MANIFEST), dir.join(MANIFEST));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ImageError::file("write", &target)(error.into()))?;
        fs::write(&draft, text).map_err(ImageError::file("write", &draft))?;
        build::sync(&draft)?;
        fs::rename(&draft, &target).map_err(ImageError::file("write", &target))?;
        build::sync(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_variant_is_refused_with_those_that_there_are() {
        let error = Variant::find("desktop").unwrap_err().to_string();
        assert!(
            error.contains("desktop") && error.contains("services, node"),
            "{error}"
        );
        assert_eq!(Variant::find("node").unwrap().name, "node");
    }

    #[test]
    fn a_variant_is_stale_when_its_file_or_its_inputs_changed() {
        let dir = tempfile::tempdir().unwrap();
        let variant = &VARIANTS[0];
        let target = dir.path().join("services.ext4");
        fs::write(&target, "image").unwrap();
        let mut known = Variants::default();
        assert!(!known.is_current(variant, &target, "a"), "not known");
        let entry = build::describe_file(&target).unwrap();
        known.files.insert("services.ext4".into(), entry);
        known.inputs.insert("services".into(), "a".into());
        known.write(dir.path(), dir.path()).unwrap();
        let known = Variants::read(dir.path());
        assert!(known.is_current(variant, &target, "a"));
        assert!(!known.is_current(variant, &target, "b"), "other inputs");
        assert!(!known.is_current(variant, &dir.path().join("services.qcow2"), "a"));
        fs::write(&target, "cut").unwrap();
        assert!(!known.is_current(variant, &target, "a"), "another size");
        fs::remove_file(&target).unwrap();
        assert!(!known.is_current(variant, &target, "a"), "gone");
    }
}
