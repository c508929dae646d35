//! The guest image and other things a test may lack.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::emulator::Emulator;

/// Tells why a test did not run. The suite counts these lines.
pub(crate) fn skip(test: &str, why: &str) {
    println!("SKIP {test}: {why}");
}

/// A guest image to boot from.
pub(crate) struct Image(PathBuf);

impl Image {
    /// The image, or why there is none. QEMU must be there too.
    pub(crate) fn find() -> Result<Self, String> {
        has_qemu()?;
        let cache = || {
            let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
            let cache = std::env::var_os("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(home);
            cache.map(|cache| cache.join("fuse/image"))
        };
        let dir = std::env::var_os("FUSE_IMAGE_DIR")
            .map(PathBuf::from)
            .or_else(cache);
        let dir = dir.ok_or("neither FUSE_IMAGE_DIR nor HOME is set")?;
        for file in ["vmlinux.bin", "initramfs.img", "rootfs-fused.ext4"] {
            if !dir.join(file).exists() {
                return Err(format!(
                    "no {file} in {}; build the guest image with `make image`",
                    dir.display()
                ));
            }
        }
        Ok(Self(dir))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The boot source of a guest that calls itself `vm`.
    pub(crate) fn boot_source(&self, vm: &str) -> serde_json::Value {
        let params = fuse_wire_guest::BootParams {
            vm_id: vm.to_owned(),
            hostname: "emulated".to_owned(),
            network: None,
        };
        let identity = params.to_cmdline().unwrap();
        let args = format!("{} {identity}", fuse_wire_guest::boot::KERNEL_ARGS);
        json!({
            "kernel_image_path": self.file("vmlinux.bin"),
            "initrd_path": self.file("initramfs.img"),
            "boot_args": args,
        })
    }

    pub(crate) fn drives(&self, dir: &Path) -> [serde_json::Value; 2] {
        let overlay = dir.join("overlay.img");
        std::fs::File::create(&overlay)
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        [
            json!({
                "drive_id": "rootfs", "path_on_host": self.file("rootfs-fused.ext4"),
                "is_root_device": true, "is_read_only": true,
            }),
            json!({
                "drive_id": "overlay", "path_on_host": overlay,
                "is_root_device": false, "is_read_only": false,
            }),
        ]
    }

    /// Configures a whole VM through the API, up to its start.
    pub(crate) fn configure(&self, emulator: &Emulator, dir: &Path, vm: &str) {
        emulator.set("PUT", "/boot-source", self.boot_source(vm));
        for drive in self.drives(dir) {
            let path = format!("/drives/{}", drive["drive_id"].as_str().unwrap());
            emulator.set("PUT", &path, drive);
        }
        let vsock = json!({"guest_cid": 3, "uds_path": dir.join("v.sock")});
        emulator.set("PUT", "/vsock", vsock);
        emulator.set("PUT", "/entropy", json!({}));
        let machine = json!({"vcpu_count": 1, "mem_size_mib": 256, "track_dirty_pages": true});
        emulator.set("PUT", "/machine-config", machine);
    }
}

/// Whether QEMU can be started at all.
pub(crate) fn has_qemu() -> Result<(), String> {
    let tried = Command::new("qemu-system-x86_64")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => Ok(()),
        Ok(_) | Err(_) => Err("qemu-system-x86_64 is missing; install qemu-system-x86".to_owned()),
    }
}
