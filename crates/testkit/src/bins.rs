//! Where the programs under test and the guest image are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The directory with the programs of one build.
#[derive(Debug, Clone)]
pub struct Bins {
    dir: PathBuf,
}

impl Bins {
    /// `FUSE_BIN_DIR`, else the directory of the build that the running test belongs to.
    ///
    /// # Errors
    /// When the running executable's place cannot be found out.
    pub fn find() -> Result<Self> {
        if let Some(dir) = std::env::var_os("FUSE_BIN_DIR").filter(|d| !d.is_empty()) {
            let dir = std::path::absolute(PathBuf::from(dir)).context("FUSE_BIN_DIR")?;
            return Ok(Self { dir });
        }
        let exe = std::env::current_exe().context("own executable")?;
        let mut dir = exe.parent().context("executable without a directory")?;
        // Tests live in target/<profile>/deps, programs one level up.
        if dir.ends_with("deps") {
            dir = dir.parent().context("deps without a parent")?;
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// The directory itself.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the program `name`.
    ///
    /// # Errors
    /// When it has not been built; says how to.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        ensure!(
            path.is_file(),
            "{} does not exist: build the programs first (cargo build --workspace --bins), or set FUSE_BIN_DIR",
            path.display()
        );
        Ok(path)
    }
}

/// The programs and the image of one build.
#[derive(Debug, Clone)]
pub struct Release {
    /// Its programs.
    pub bins: Bins,
    /// What its guests boot.
    pub image: Image,
}

impl Release {
    /// This build.
    ///
    /// # Errors
    /// When its place cannot be found out or its image is missing.
    pub fn current() -> Result<Self> {
        Ok(Self {
            bins: Bins::find()?,
            image: Image::find()?,
        })
    }

    /// The build whose programs are in `dir`, with its image in `image` there.
    ///
    /// # Errors
    /// When a file of the image is missing.
    pub fn at(dir: &Path) -> Result<Self> {
        Ok(Self {
            bins: Bins {
                dir: dir.to_owned(),
            },
            image: Image::at(dir.join("image"))?,
        })
    }
}

/// The directory with kernel, initramfs and base image.
#[derive(Debug, Clone)]
pub struct Image {
    dir: PathBuf,
}

impl Image {
    /// `FUSE_IMAGE_DIR`, else `$XDG_CACHE_HOME/fuse/image`, else `~/.cache/fuse/image`.
    ///
    /// # Errors
    /// When a file of the image is missing; says how to build it.
    pub fn find() -> Result<Self> {
        let var = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let dir = var("FUSE_IMAGE_DIR")
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("fuse/image")))
            .or_else(|| var("HOME").map(|d| d.join(".cache/fuse/image")))
            .context("neither FUSE_IMAGE_DIR nor HOME is set")?;
        Self::at(dir)
    }

    fn at(dir: PathBuf) -> Result<Self> {
        let image = Self { dir };
        for file in [image.kernel(), image.initramfs(), image.base()] {
            ensure!(
                file.is_file(),
                "{} does not exist: run `make image` first",
                file.display()
            );
        }
        Ok(image)
    }

    /// The directory itself.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Uncompressed kernel.
    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinux.bin")
    }

    /// Initramfs with `fused` as `/init`.
    #[must_use]
    pub fn initramfs(&self) -> PathBuf {
        self.dir.join("initramfs.img")
    }

    /// Read-only base root file system.
    #[must_use]
    pub fn base(&self) -> PathBuf {
        self.dir.join("rootfs-fused.ext4")
    }
}
