//! The distribution's kernel for virtual machines, taken out of its packages
//! without installing them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::distro::{self, System};
use crate::elf;
use crate::tools;
use crate::{ImageError, KERNEL, VMLINUZ};

/// Packages unpacked into a temporary directory.
#[derive(Debug)]
pub(crate) struct KernelTree {
    /// Release as `uname -r` shows it.
    pub(crate) version: String,
    /// `lib/modules/<version>`.
    pub(crate) modules: PathBuf,
    /// The compressed kernel.
    vmlinuz: PathBuf,
}

impl KernelTree {
    /// Downloads and unpacks the current kernel below `work`.
    pub(crate) fn fetch(system: &System, work: &Path) -> Result<Self, ImageError> {
        let packages = resolve(system)?;
        let download = work.join("packages");
        let root = work.join("kernel");
        for dir in [&download, &root] {
            fs::create_dir_all(dir).map_err(ImageError::file("make", dir))?;
        }
        let mut get = tools::command("apt-get");
        // apt would otherwise change to a user who cannot write here.
        get.args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .args(&packages);
        tools::run("downloading the kernel", get.current_dir(&download))?;
        let archives = fs::read_dir(&download).map_err(ImageError::file("read", &download))?;
        for archive in archives.filter_map(Result::ok) {
            let mut unpack = tools::command("dpkg-deb");
            unpack.arg("-x").arg(archive.path()).arg(&root);
            tools::run("unpacking the kernel", &mut unpack)?;
        }
        Self::open(&packages[0], &root)
    }

    fn open(package: &str, root: &Path) -> Result<Self, ImageError> {
        let problem = |text: &str| ImageError::Kernel {
            package: package.to_owned(),
            problem: text.to_owned(),
        };
        let boot = root.join("boot");
        let version = fs::read_dir(&boot)
            .map_err(ImageError::file("read", &boot))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .find_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
            .ok_or_else(|| problem("holds no /boot/vmlinuz"))?;
        // Merged or not, one of them is there.
        let modules = ["usr/lib/modules", "lib/modules"]
            .map(|dir| root.join(dir).join(&version))
            .into_iter()
            .find(|dir| dir.join("kernel").is_dir())
            .ok_or_else(|| problem("holds no modules for its kernel"))?;
        Ok(Self {
            vmlinuz: boot.join(format!("vmlinuz-{version}")),
            modules,
            version,
        })
    }

    /// Keeps the kernel as it came, in `dir`.
    pub(crate) fn keep_vmlinuz(&self, dir: &Path) -> Result<(), ImageError> {
        let path = dir.join(VMLINUZ);
        let kept = fs::copy(&self.vmlinuz, &path);
        kept.map(drop).map_err(ImageError::file("write", &path))
    }

    /// Writes the uncompressed kernel into `dir`.
    pub(crate) fn write_vmlinux(&self, dir: &Path) -> Result<(), ImageError> {
        let image = fs::read(&self.vmlinuz).map_err(ImageError::file("read", &self.vmlinuz))?;
        let problem = |problem: String| ImageError::Kernel {
            package: format!("linux-image-{}", self.version),
            problem,
        };
        let payload = Payload::find(&image).map_err(|text| problem(text.to_owned()))?;
        let kernel = payload.decompress()?;
        if kernel.len() != payload.size {
            return Err(problem(format!(
                "its kernel unpacks to {} bytes instead of {}",
                kernel.len(),
                payload.size
            )));
        }
        elf::check_x86_64(&kernel).map_err(|text| problem(format!("its kernel {text}")))?;
        let path = dir.join(KERNEL);
        fs::write(&path, kernel).map_err(ImageError::file("write", &path))
    }
}

/// The packages of the current kernel: the image first, its modules if they
/// come apart.
fn resolve(system: &System) -> Result<Vec<String>, ImageError> {
    let meta = system.kernel_package();
    let mut image = first_image(&dependencies(meta)?);
    if image.is_none() {
        distro::update_package_lists()?;
        image = first_image(&dependencies(meta)?);
    }
    let image = image.ok_or_else(|| ImageError::Kernel {
        package: meta.to_owned(),
        problem: "depends on no kernel that apt knows".to_owned(),
    })?;
    let own = dependencies(&image)?;
    let modules = own
        .into_iter()
        .find(|name| name.starts_with("linux-modules-"));
    Ok(std::iter::once(image).chain(modules).collect())
}

fn first_image(dependencies: &[String]) -> Option<String> {
    let concrete = |name: &&String| {
        name.strip_prefix("linux-image-")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    dependencies.iter().find(concrete).cloned()
}

/// What a package depends on, empty if apt does not know it.
fn dependencies(package: &str) -> Result<Vec<String>, ImageError> {
    let mut show = tools::command("apt-cache");
    show.args(["depends", "--important", package]);
    match tools::run("looking up the kernel", &mut show) {
        Ok(text) => Ok(parse_dependencies(&String::from_utf8_lossy(&text))),
        // apt-cache fails for a name it does not know, as before the first update.
        Err(ImageError::Command { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse_dependencies(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            line.trim()
                .trim_start_matches('|')
                .strip_prefix("Depends: ")
        })
        .map(|name| name.trim().to_owned())
        .collect()
}

/// The compressed kernel inside a bootable image.
#[derive(Debug, PartialEq, Eq)]
struct Payload<'a> {
    data: &'a [u8],
    /// Program that unpacks it.
    tool: &'static str,
    /// Size when unpacked.
    size: usize,
}

/// Compressions by their first bytes.
const MAGIC: [(&[u8], &str); 5] = [
    (&[0x02, 0x21, 0x4c, 0x18], "lz4"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (&[0x1f, 0x8b], "gzip"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
    (b"BZh", "bzip2"),
];

impl<'a> Payload<'a> {
    /// Reads the x86 boot protocol's header (version 2.08 and later).
    fn find(image: &'a [u8]) -> Result<Self, &'static str> {
        let word = |at: usize| {
            let bytes = image.get(at..at + 4)?;
            usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
        };
        if image.get(0x202..0x206) != Some(b"HdrS") {
            return Err("its kernel is not a bootable x86 image");
        }
        let cut = "its kernel image is cut short";
        let setup_sectors = match image.get(0x1f1).ok_or(cut)? {
            0 => 4,
            count => usize::from(*count),
        };
        let (offset, length) = (word(0x248).ok_or(cut)?, word(0x24c).ok_or(cut)?);
        let start = (setup_sectors + 1) * 512 + offset;
        let data = start
            .checked_add(length)
            .and_then(|end| image.get(start..end))
            .ok_or(cut)?;
        let (packed, size) = data.split_at_checked(length.wrapping_sub(4)).ok_or(cut)?;
        let size = u32::from_le_bytes(size.try_into().map_err(|_| cut)?);
        let (_, tool) = MAGIC
            .iter()
            .find(|(magic, _)| data.starts_with(magic))
            .ok_or("its kernel is compressed in an unknown way")?;
        // gzip ends with that size itself; for the others it was appended.
        let data = if *tool == "gzip" { data } else { packed };
        Ok(Self {
            data,
            tool,
            size: size.try_into().map_err(|_| cut)?,
        })
    }

    fn decompress(&self) -> Result<Vec<u8>, ImageError> {
        decompress(self.tool, self.data)
    }
}

/// Unpacks data with one of the usual programs.
pub(crate) fn decompress(tool: &'static str, data: &[u8]) -> Result<Vec<u8>, ImageError> {
    let package = match tool {
        "xz" => "xz-utils",
        other => other,
    };
    tools::require(&[(tool, package)])?;
    tools::filter(
        "unpacking the kernel",
        tools::command(tool).args(["-d", "-c"]),
        data,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A boot image with one setup sector and `payload` behind it.
    fn image(payload: &[u8], size: u32) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        let length = u32::try_from(payload.len() + 4).unwrap();
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image.extend(payload);
        image.extend(size.to_le_bytes());
        image.extend(b"trailing");
        image
    }

    #[test]
    fn the_payload_is_found_by_the_header_and_its_kind_by_its_magic() {
        let zstd = [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3];
        let boot = image(&zstd, 77);
        assert_eq!(
            Payload::find(&boot),
            Ok(Payload {
                data: &zstd,
                tool: "zstd",
                size: 77
            })
        );
        let boot = image(&[0x1f, 0x8b, 9], 77);
        assert_eq!(Payload::find(&boot).unwrap().data.len(), 7);
        assert!(
            Payload::find(&image(b"????", 1))
                .unwrap_err()
                .contains("unknown way")
        );
        assert!(Payload::find(&zstd).unwrap_err().contains("not a bootable"));
    }

    proptest! {
        #[test]
        fn damaged_images_do_not_panic(header in prop::collection::vec(any::<u8>(), 0x252..0x400)) {
            let mut header = header;
            header[0x202..0x206].copy_from_slice(b"HdrS");
            Payload::find(&header).ok();
        }
    }

    #[test]
    fn the_concrete_kernel_is_chosen() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(
            first_image(&parse_dependencies(text)).unwrap(),
            "linux-image-6.1.0-57-cloud-amd64"
        );
        let text = "linux-image-virtual\n  Depends: linux-image-generic\n |Depends: linux-image-5.15.0-1-generic\n";
        assert_eq!(
            first_image(&parse_dependencies(text)).unwrap(),
            "linux-image-5.15.0-1-generic"
        );
    }
}
