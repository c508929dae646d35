//! Kernel modules: which ones the initramfs needs, and in what order.
//!
//! Packages come without `modules.dep`, which is made when they are installed,
//! so dependencies are read from the modules themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::ImageError;
use crate::cpio::Archive;
use crate::kernel::{self, KernelTree};

/// Drivers and file systems of a guest. `fused` loads those that its VM has
/// devices for; a module that is built into the kernel is left out.
pub(crate) const WANTED: [&str; 9] = [
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "vmw_vsock_virtio_transport",
    "ext4",
    "overlay",
];

/// Where `fused` finds them.
const DIR: &str = "modules";

/// All modules of a kernel.
struct Catalogue {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

/// The archive with all modules that a guest may need at boot.
pub(crate) fn archive(tree: &KernelTree) -> Result<Vec<u8>, ImageError> {
    let catalogue = Catalogue::read(&tree.modules)?;
    let mut loaded = BTreeMap::new();
    let mut list = String::new();
    for name in WANTED {
        let order = catalogue
            .order(name, &mut loaded)
            .map_err(|missing| ImageError::Kernel {
                package: format!("linux-image-{}", tree.version),
                problem: format!("has no module {missing}"),
            })?;
        if !order.is_empty() {
            list.push_str(&format!("{name}: {}\n", order.join(" ")));
        }
    }
    let mut archive = Archive::default();
    archive.directory(DIR, 0o755)?;
    for (name, module) in &loaded {
        archive.file(&format!("{DIR}/{name}.ko"), 0o644, module)?;
    }
    archive.file(&format!("{DIR}/list"), 0o644, list.as_bytes())?;
    archive.finish()
}

impl Catalogue {
    fn read(dir: &Path) -> Result<Self, ImageError> {
        let mut files = BTreeMap::new();
        collect(&dir.join("kernel"), &mut files)?;
        let builtin = dir.join("modules.builtin");
        let builtin = fs::read_to_string(&builtin).map_err(ImageError::file("read", &builtin))?;
        let builtin = builtin
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(Self { files, builtin })
    }

    /// Modules to load for `name`, itself last; empty if it is built in. Adds
    /// their content to `loaded`. The error is the name of a missing one.
    fn order(
        &self,
        name: &str,
        loaded: &mut BTreeMap<String, Vec<u8>>,
    ) -> Result<Vec<String>, String> {
        let mut order = Vec::new();
        self.visit(name, loaded, &mut order)?;
        Ok(order)
    }

    fn visit(
        &self,
        name: &str,
        loaded: &mut BTreeMap<String, Vec<u8>>,
        order: &mut Vec<String>,
    ) -> Result<(), String> {
        if self.builtin.contains(name) || order.iter().any(|done| done == name) {
            return Ok(());
        }
        let path = self.files.get(name).ok_or_else(|| name.to_owned())?;
        let module = match loaded.get(name) {
            Some(module) => module.clone(),
            None => read_module(path).map_err(|error| format!("{name} ({error})"))?,
        };
        let needed = dependencies(&module);
        loaded.insert(name.to_owned(), module);
        // The kernel's build refuses circular dependencies, so this ends.
        for needed in needed {
            self.visit(&needed, loaded, order)?;
        }
        order.push(name.to_owned());
        Ok(())
    }
}

fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), ImageError> {
    for entry in fs::read_dir(dir).map_err(ImageError::file("read", dir))? {
        let path = entry.map_err(ImageError::file("read", dir))?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The kernel's name for a module file: without extensions, with underscores.
fn module_name(path: &Path) -> Option<String> {
    let (name, extensions) = path.file_name()?.to_str()?.split_once('.')?;
    matches!(extensions, "ko" | "ko.xz" | "ko.zst" | "ko.gz").then(|| name.replace('-', "_"))
}

fn read_module(path: &Path) -> Result<Vec<u8>, ImageError> {
    let data = fs::read(path).map_err(ImageError::file("read", path))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => kernel::decompress("xz", &data),
        Some("zst") => kernel::decompress("zstd", &data),
        Some("gz") => kernel::decompress("gzip", &data),
        _ => Ok(data),
    }
}

/// The modules that a module names in its `depends` entry.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(modules: &[(&str, &str)], builtin: &str) -> (tempfile::TempDir, Catalogue) {
        let dir = tempfile::tempdir().unwrap();
        let drivers = dir.path().join("kernel/drivers/net");
        fs::create_dir_all(&drivers).unwrap();
        for (name, depends) in modules {
            let content = format!("\x7fELF..license=GPL\0depends={depends}\0name=x\0");
            fs::write(drivers.join(format!("{name}.ko")), content).unwrap();
        }
        fs::write(dir.path().join("modules.builtin"), builtin).unwrap();
        let catalogue = Catalogue::read(dir.path()).unwrap();
        (dir, catalogue)
    }

    #[test]
    fn dependencies_come_first_once_and_without_what_is_built_in() {
        let modules = [
            ("virtio-net", "net_failover,virtio"),
            ("net_failover", "failover,virtio"),
            ("failover", ""),
        ];
        let (_dir, catalogue) = tree(&modules, "kernel/drivers/virtio/virtio.ko\n");
        let mut loaded = BTreeMap::new();
        let order = catalogue.order("virtio_net", &mut loaded).unwrap();
        assert_eq!(order, ["failover", "net_failover", "virtio_net"]);
        assert_eq!(loaded.len(), 3);
        assert!(catalogue.order("virtio", &mut loaded).unwrap().is_empty());
        assert_eq!(
            catalogue.order("absent", &mut loaded).unwrap_err(),
            "absent"
        );
    }

    #[test]
    fn compressed_modules_are_modules() {
        for name in ["a-b.ko", "a_b.ko.xz", "a-b.ko.zst"] {
            assert_eq!(module_name(Path::new(name)).unwrap(), "a_b");
        }
        assert_eq!(module_name(Path::new("modules.order")), None);
    }
}
