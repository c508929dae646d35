//! Writes the archive format of an initramfs: `newc`.
//!
//! Archives may be concatenated; the kernel unpacks one after the other. All
//! entries belong to root and have one fixed time, so equal contents give equal
//! archives.

use std::path::Path;

use crate::ImageError;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive in memory.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory.
    pub(crate) fn directory(&mut self, name: &str, mode: u32) -> Result<(), ImageError> {
        self.entry(name, DIRECTORY | mode, (0, 0), &[])
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, name: &str, mode: u32, data: &[u8]) -> Result<(), ImageError> {
        self.entry(name, REGULAR | mode, (0, 0), data)
    }

    /// Adds a character device.
    pub(crate) fn device(
        &mut self,
        name: &str,
        mode: u32,
        numbers: (u32, u32),
    ) -> Result<(), ImageError> {
        self.entry(name, CHARACTER_DEVICE | mode, numbers, &[])
    }

    /// The finished archive, padded so that another one may follow.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, ImageError> {
        self.entries = 0;
        self.entry(TRAILER, 0, (0, 0), &[])?;
        self.pad(512);
        Ok(self.bytes)
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        data: &[u8],
    ) -> Result<(), ImageError> {
        let too_large = |_| {
            let source = std::io::ErrorKind::FileTooLarge.into();
            ImageError::File {
                verb: "archive",
                path: Path::new(name).to_owned(),
                source,
            }
        };
        let size = u32::try_from(data.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let fields = [
            self.entries, // inode
            mode,
            0, // owner
            0, // group
            links,
            0, // time
            size,
            0, // device of the file system, major
            0, // and minor
            device.0,
            device.1,
            name_size,
            0, // checksum, unused
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend_from_slice(data);
        self.pad(4);
        Ok(())
    }

    fn pad(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// The reference implementation reads what we write.
    #[test]
    fn cpio_lists_both_of_two_concatenated_archives() {
        let mut first = Archive::default();
        first.directory("dev", 0o755).unwrap();
        first.device("dev/console", 0o600, (5, 1)).unwrap();
        let mut second = Archive::default();
        second.file("init", 0o755, b"#!x").unwrap();
        for (archive, expected) in [
            (
                first,
                &["drwxr-xr-x", "crw-------", "dev/console", "5,   1"][..],
            ),
            (second, &["-rwxr-xr-x", "3", "init"][..]),
        ] {
            let bytes = archive.finish().unwrap();
            assert_eq!(bytes.len() % 512, 0);
            let Ok(mut cpio) = Command::new("cpio")
                .args(["-itv", "--quiet"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
            else {
                println!("SKIP: cpio is not installed");
                return;
            };
            cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
            let listed = String::from_utf8(cpio.wait_with_output().unwrap().stdout).unwrap();
            for text in expected {
                assert!(listed.contains(text), "{text} is not in {listed}");
            }
        }
    }
}
