//! Kernel, initrd and kernel command line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Drive;

/// Command line of a guest that was given none; Firecracker's default.
const DEFAULT_ARGS: &str = "reboot=k panic=1 nomodule 8250.nr_uarts=0 \
                            i8042.noaux i8042.nomux i8042.dumbkbd swiotlb=noforce";

/// Body of `PUT /boot-source`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BootSource {
    /// Uncompressed ELF kernel with a PVH entry, or a bzImage.
    pub(crate) kernel_image_path: PathBuf,
    pub(crate) initrd_path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) boot_args: Option<String>,
}

impl BootSource {
    /// The command line the kernel gets. `root` is the drive that is marked as
    /// the root device, which always is the first disk of the guest.
    ///
    /// `pci=off` is taken out: it is what one tells a guest whose devices are all
    /// memory mapped, as Firecracker's are by default, and it would leave a guest
    /// of QEMU, whose devices all sit on PCI, without any.
    ///
    /// `norandmaps` is put in: QEMU translates code by its address, so every
    /// program that starts at a new one is translated anew, libc and all. Without
    /// address randomization a small program starts four times as fast.
    pub(crate) fn command_line(&self, root: Option<&Drive>) -> String {
        const FIXED_ADDRESSES: &str = "norandmaps";
        let args = self.boot_args.as_deref().unwrap_or(DEFAULT_ARGS);
        let mut words: Vec<&str> = args
            .split_ascii_whitespace()
            .filter(|word| !["pci=off", FIXED_ADDRESSES].contains(word))
            .collect();
        words.push(FIXED_ADDRESSES);
        let root_word = root.map(|drive| match &drive.partuuid {
            Some(uuid) => format!("root=PARTUUID={uuid}"),
            None => "root=/dev/vda".to_owned(),
        });
        if let (Some(word), Some(drive)) = (&root_word, root) {
            words.push(word);
            words.push(if drive.read_only() { "ro" } else { "rw" });
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(args: Option<&str>) -> BootSource {
        BootSource {
            kernel_image_path: "/k".into(),
            initrd_path: None,
            boot_args: args.map(str::to_owned),
        }
    }

    fn root(partuuid: Option<&str>, read_only: bool) -> Drive {
        let mut body = serde_json::json!({
            "drive_id": "r", "path_on_host": "/r", "is_root_device": true, "is_read_only": read_only,
        });
        if let Some(uuid) = partuuid {
            body["partuuid"] = uuid.into();
        }
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn the_root_drive_is_named_to_the_kernel() {
        let line = source(Some("a b")).command_line(Some(&root(None, true)));
        assert_eq!(line, "a b norandmaps root=/dev/vda ro");
        let line = source(Some("a")).command_line(Some(&root(Some("0eaa-01"), false)));
        assert_eq!(line, "a norandmaps root=PARTUUID=0eaa-01 rw");
    }

    #[test]
    fn pci_is_never_switched_off() {
        let line = source(Some("norandmaps pci=off panic=1")).command_line(None);
        assert_eq!(line, "panic=1 norandmaps");
    }

    #[test]
    fn no_arguments_mean_firecrackers_own() {
        let line = source(None).command_line(None);
        assert_eq!(line, format!("{DEFAULT_ARGS} norandmaps"));
        assert_eq!(source(Some("")).command_line(None), "norandmaps");
    }
}
