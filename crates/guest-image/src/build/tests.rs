//! Builds over a made-up base, which needs neither root nor a mirror. The base
//! itself is built for real by `make image` and checked by booting it.

use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc;

use super::*;
use crate::{KERNEL, ROOTFS};

/// A directory with an image whose base is current.
struct Fixture {
    dir: tempfile::TempDir,
}

/// The smallest file that passes for a static program.
fn static_program(mark: u8) -> Vec<u8> {
    let mut elf = vec![0; 64];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    elf[18] = 62;
    elf.push(mark);
    elf
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(fixture.out()).unwrap();
        let mut files = BTreeMap::new();
        for name in base::FILES.into_iter().chain([INITRAMFS]) {
            let path = fixture.out().join(name);
            fs::write(&path, name).unwrap();
            let sha256 = digest::of_file(&path).unwrap();
            files.insert(
                name.to_owned(),
                FileEntry {
                    sha256,
                    size: name.len() as u64,
                },
            );
        }
        let base = base::inputs(&System::detect().unwrap());
        let manifest = Manifest {
            inputs_digest: "old".into(),
            kernel_version: "6.1.0-test".into(),
            arch: "amd64".into(),
            files,
            built_at: "2026-01-01T00:00:00Z".into(),
            parts: Parts {
                base,
                initramfs: "old".into(),
            },
        };
        let json = serde_json::to_vec(&manifest).unwrap();
        fs::write(fixture.out().join(MANIFEST), json).unwrap();
        fixture.set_fused(&static_program(1));
        fixture
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn set_fused(&self, content: &[u8]) {
        fs::write(self.dir.path().join("fused"), content).unwrap();
    }

    fn options(&self) -> BuildOptions {
        BuildOptions {
            out: self.out(),
            fused: self.dir.path().join("fused"),
            refresh: false,
        }
    }

    fn build(&self) -> Result<Image, ImageError> {
        build(&self.options(), &mut |_| {})
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.out()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_new_guest_agent_rebuilds_the_initramfs_alone() {
    let fixture = Fixture::new();
    let inode = |name| fs::metadata(fixture.out().join(name)).unwrap().ino();
    let base = [inode(KERNEL), inode(ROOTFS)];
    assert_eq!(
        needs_build(&fixture.options()).unwrap(),
        Some("the guest agent changed")
    );
    let first = fixture.build().unwrap();
    assert_eq!(needs_build(&fixture.options()).unwrap(), None);
    assert_eq!([inode(KERNEL), inode(ROOTFS)], base);
    let initramfs = fs::read(first.initramfs()).unwrap();
    assert!(initramfs.starts_with(b"070701") && initramfs.ends_with(b"modules.cpio"));
    assert_eq!(first.manifest.kernel_version, "6.1.0-test");

    fixture.set_fused(&static_program(2));
    let second = fixture.build().unwrap();
    assert_ne!(second.manifest.inputs_digest, first.manifest.inputs_digest);
    assert_ne!(
        second.manifest.files[INITRAMFS].sha256,
        first.manifest.files[INITRAMFS].sha256
    );
    assert_eq!(second.manifest.files[ROOTFS], first.manifest.files[ROOTFS]);
    assert_eq!(
        fixture.build().unwrap().manifest,
        second.manifest,
        "nothing to do"
    );
}

#[test]
fn a_failed_build_leaves_the_image_of_before() {
    let fixture = Fixture::new();
    let before = fixture.build().unwrap().manifest;
    let names = fixture.names();
    fixture.set_fused(b"#!/bin/sh\n");
    let error = fixture.build().unwrap_err().to_string();
    assert!(error.contains("make fused"), "{error}");
    fs::remove_file(fixture.dir.path().join("fused")).unwrap();
    let error = fixture.build().unwrap_err().to_string();
    assert!(error.contains("is not there"), "{error}");
    assert_eq!(Image::open(&fixture.out()).unwrap().manifest, before);
    assert_eq!(fixture.names(), names);
}

#[test]
fn what_others_keep_in_the_directory_stays_and_leftovers_go() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.out().join("agent-state/vms")).unwrap();
    fs::create_dir_all(fixture.out().join(".build-killed/work")).unwrap();
    fixture.build().unwrap();
    let names = fixture.names();
    assert!(names.contains(&"agent-state".to_owned()), "{names:?}");
    assert!(
        !names.iter().any(|name| name.starts_with(WORK_PREFIX)),
        "{names:?}"
    );
}

#[test]
fn half_an_image_is_none() {
    let fixture = Fixture::new();
    fixture.build().unwrap();
    let rootfs = fixture.out().join(ROOTFS);
    fs::write(&rootfs, "cut").unwrap();
    assert!(matches!(
        Image::open(&fixture.out()),
        Err(ImageError::NoImage { .. })
    ));
    let why = needs_build(&fixture.options()).unwrap();
    assert_eq!(why, Some("there is no complete image yet"));
    fs::remove_file(fixture.out().join(MANIFEST)).unwrap();
    let error = Image::open(&fixture.out()).unwrap_err().to_string();
    assert!(error.contains("fc-agent image build"), "{error}");
}

#[test]
fn a_second_build_of_the_same_image_waits_for_the_first() {
    let fixture = Fixture::new();
    let held = lock(&fixture.out(), &mut |_| {}).unwrap();
    let (said, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        let options = fixture.options();
        let second =
            scope.spawn(move || build(&options, &mut |text| said.send(text.to_owned()).unwrap()));
        assert_eq!(
            heard.recv().unwrap(),
            "waiting for another build of this image"
        );
        assert!(!second.is_finished());
        drop(held);
        second.join().unwrap().unwrap();
    });
}
