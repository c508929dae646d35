//! Loads the drivers for the devices that this VM really has.
//!
//! The initramfs holds modules in `/modules` and, in `/modules/list`, one line
//! per wanted module: `name: dependency ... name`, in the order of loading. A
//! module that is not listed is built into the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rustix::io::Errno;

use super::InitError;

const DIR: &str = "/modules";
const DEVICES: &str = "/sys/bus/virtio/devices";

/// Drivers by virtio device type, in the order of the specification.
const DRIVERS: [(u32, &str); 5] = [
    (1, "virtio_net"),
    (2, "virtio_blk"),
    (3, "virtio_console"),
    (4, "virtio_rng"),
    (19, "vmw_vsock_virtio_transport"),
];

/// ACPI id under which a VMM describes virtio devices that are not on PCI.
const MMIO_ACPI_ID: &str = "LNRO0005";

/// Loads the buses, then a driver for each kind of device on them, and the
/// overlay file system.
pub(super) fn load_drivers() -> Result<(), InitError> {
    let mut modules = Modules::read()?;
    modules.load("virtio_pci")?;
    if names_in("/sys/bus/acpi/devices")
        .iter()
        .any(|name| name.starts_with(MMIO_ACPI_ID))
    {
        modules.load("virtio_mmio")?;
    }
    for kind in device_kinds() {
        if let Some((_, driver)) = DRIVERS.iter().find(|(id, _)| *id == kind) {
            modules.load(driver)?;
        }
    }
    modules.load("ext4")?;
    modules.load("overlay")
}

/// The kinds of virtio devices there are.
fn device_kinds() -> BTreeSet<u32> {
    let kind = |name: &String| {
        let text = fs::read_to_string(format!("{DEVICES}/{name}/device")).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    names_in(DEVICES).iter().filter_map(kind).collect()
}

fn names_in(dir: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

struct Modules {
    /// What to load for a module, itself last.
    list: BTreeMap<String, Vec<String>>,
    loaded: BTreeSet<String>,
}

impl Modules {
    fn read() -> Result<Self, InitError> {
        let path = Path::new(DIR).join("list");
        let text = fs::read_to_string(&path).map_err(|e| InitError::file("read", &path, e))?;
        Ok(Self {
            list: parse_list(&text),
            loaded: BTreeSet::new(),
        })
    }

    fn load(&mut self, name: &str) -> Result<(), InitError> {
        for part in self.list.get(name).into_iter().flatten() {
            if self.loaded.insert(part.clone()) {
                insert(part)?;
            }
        }
        Ok(())
    }
}

fn parse_list(text: &str) -> BTreeMap<String, Vec<String>> {
    let words = |parts: &str| parts.split_whitespace().map(str::to_owned).collect();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, parts)| (name.trim().to_owned(), words(parts)))
        .collect()
}

fn insert(name: &str) -> Result<(), InitError> {
    let path = Path::new(DIR).join(format!("{name}.ko"));
    let file = fs::File::open(&path).map_err(|e| InitError::file("read", &path, e))?;
    match rustix::system::finit_module(&file, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(InitError::Module {
            name: name.to_owned(),
            source: errno.into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn the_list_keeps_the_order_of_loading() {
        let list = parse_list("virtio_net: failover net_failover virtio_net\n\noverlay: overlay\n");
        assert_eq!(
            list["virtio_net"],
            ["failover", "net_failover", "virtio_net"]
        );
        assert_eq!(list.len(), 2);
    }
}
