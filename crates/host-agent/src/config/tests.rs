//! Defaults are compatibility facts; bad values are named.

use std::collections::HashMap;

use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let mut map: HashMap<String, String> = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    map.entry("FC_AGENT_TOKEN".into())
        .or_insert_with(|| "s3cret-token".into());
    Config::from_env(FIRECRACKER, |name| map.get(name).cloned())
}

#[test]
fn defaults() {
    let config = read(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:8090");
    assert_eq!(
        config.paths.kernel.to_str(),
        Some("/home/ubuntu/fc/vmlinux.bin")
    );
    assert_eq!(
        config.paths.initrd.to_str(),
        Some("/home/ubuntu/fc/initramfs.img")
    );
    assert_eq!(
        config.paths.base.to_str(),
        Some("/home/ubuntu/fc/rootfs-fused.ext4")
    );
    assert_eq!(config.paths.images.to_str(), Some("/home/ubuntu/fc/images"));
    assert_eq!(
        config.paths.state.to_str(),
        Some("/home/ubuntu/fc/agent-state")
    );
    assert_eq!(config.paths.sockets.to_str(), Some("/tmp/fuse-fc-socks"));
    assert_eq!(
        config.paths.vmm.to_str(),
        Some("/usr/local/bin/firecracker")
    );
    assert_eq!(
        (config.http.body, config.http.upload),
        (1_048_576, 67_108_864)
    );
    assert_eq!(config.net.plan.slot(1).host_port, 19551);
    assert_eq!(config.net.table, "fuse");
    assert_eq!(config.net.fused_port, 9550);
    assert!(!format!("{config:?}").contains("s3cret-token"));
}

#[test]
fn a_side_by_side_agent_has_names_of_its_own() {
    let config = read(&[
        ("FC_DIR", "/x"),
        ("FC_AGENT_BIND", "127.0.0.1"),
        ("FC_AGENT_PORT", "0"),
        ("FUSE_TAP_PREFIX", "ta"),
        ("FUSE_SUBNET", "10.201.0.0/16"),
        ("FUSE_HOST_PORT_BASE", "30000"),
        ("FUSE_NFT_TABLE", "fuse_test"),
        ("FUSE_MAX_VMS", "8"),
    ])
    .unwrap();
    let slot = config.net.plan.slot(3);
    assert_eq!((slot.tap.as_str(), slot.host_port), ("ta3", 30003));
    assert_eq!(slot.guest_ip.to_string(), "10.201.3.2");
    assert_eq!(config.listen.to_string(), "127.0.0.1:0");
    assert_eq!(config.paths.kernel.to_str(), Some("/x/vmlinux.bin"));
}

#[test]
fn a_missing_token_is_named() {
    let error = Config::from_env(FIRECRACKER, |_| None).unwrap_err();
    assert!(
        error.to_string().starts_with("FC_AGENT_TOKEN is not set"),
        "{error}"
    );
    let blank = Config::from_env(FIRECRACKER, |_| Some(" ".into())).unwrap_err();
    assert!(matches!(blank, ConfigError::Missing { .. }));
}

#[test]
fn bad_values_are_named() {
    for (name, value) in [
        ("FC_AGENT_PORT", "70000"),
        ("FC_AGENT_BIND", "localhost"),
        ("FC_AGENT_MAX_BODY_BYTES", "-1"),
        ("FC_AGENT_REQUEST_TIMEOUT", "0"),
        ("FUSE_NFT_TABLE", "a; drop"),
        ("FUSE_EXPOSE_PORT_RANGE", "5-1"),
        ("FUSE_EXPOSE_PORT_RANGE", "19000-20000"),
        ("FUSE_GUEST_DNS", "dns.example"),
        ("FUSE_DEFAULT_STORAGE_GB", "999999"),
        ("FUSE_BOOT_TIMEOUT", "121"),
    ] {
        let error = read(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
    let host = read(&[("PUBLIC_HOST", "a b")]).unwrap_err().to_string();
    assert!(host.contains("PUBLIC_HOST"), "{host}");
    let subnet = read(&[("FUSE_SUBNET", "10.0.0.0/30")])
        .unwrap_err()
        .to_string();
    assert!(subnet.contains("10.0.0.0/30"), "{subnet}");
}

fn read_qemu(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let map: HashMap<&str, &str> = pairs.iter().copied().collect();
    Config::from_env(QEMU, |name| match name {
        "QEMU_AGENT_TOKEN" => Some("s3cret-token".into()),
        name => map.get(name).map(|value| (*value).to_owned()),
    })
}

#[test]
fn defaults_of_the_qemu_agent() {
    let config = read_qemu(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:8091");
    let slot = config.net.plan.slot(1);
    assert_eq!((slot.tap.as_str(), slot.host_port), ("qv1", 19651));
    assert_eq!(config.vms.memory_mib, 1024);
    let root = std::path::Path::new("/home/ubuntu/qemu");
    assert_eq!(config.paths.kernel, root.join("vmlinuz.bin"));
    assert_eq!(config.paths.base, root.join("rootfs-cuda.qcow2"));
    assert_eq!(config.paths.images, root.join("images"));
    let qemu = config.qemu.unwrap();
    assert_eq!(qemu.gpus.vfio_inventory, root.join("vfio-inventory.txt"));
    assert_eq!(qemu.gpus.mig_inventory, root.join("mig-inventory.txt"));
    assert_eq!((qemu.firmware, qemu.run_as), (None, Some((65534, 65534))));
    assert_eq!(
        (qemu.accelerator, qemu.gpus.mig_setup),
        (AcceleratorChoice::Auto, None)
    );
    assert!(read(&[]).unwrap().qemu.is_none());
}

#[test]
fn the_layout_is_managed_when_it_is_said_so() {
    let script = |value: &str| {
        let pairs = [
            ("MIG_LIFECYCLE_MANAGED", value),
            ("MIG_SETUP_SCRIPT", "/x/setup"),
        ];
        read_qemu(&pairs).unwrap().qemu.unwrap().gpus.mig_setup
    };
    for off in ["", "0", "false"] {
        assert_eq!(script(off), None, "{off:?}");
    }
    assert_eq!(script("1").unwrap(), std::path::Path::new("/x/setup"));
    let beside = read_qemu(&[("MIG_LIFECYCLE_MANAGED", "true")]).unwrap();
    let beside = beside.qemu.unwrap().gpus.mig_setup.unwrap();
    assert!(beside.is_absolute() && beside.ends_with("qemu-mig-setup.sh"));
}

#[test]
fn what_qemu_is_told_is_checked() {
    for (name, value, part) in [
        ("QEMU_ACCELERATOR", "xen", "is not auto, kvm or tcg"),
        ("QEMU_RUN_AS", "nobody", "a user and a group by number"),
        ("QEMU_RUN_AS", "1:-2", "a user and a group by number"),
    ] {
        let error = read_qemu(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        read_qemu(&[("QEMU_RUN_AS", "0:0")])
            .unwrap()
            .qemu
            .unwrap()
            .run_as,
        None
    );
}
