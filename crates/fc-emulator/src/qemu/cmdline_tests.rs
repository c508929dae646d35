//! Whole command lines, as they would be typed.

use serde_json::json;

use super::cmdline::{Channels, Start, line};
use crate::config::{BootSource, VmConfig};

fn text(config: &VmConfig, channels: &Channels, start: Start<'_>) -> String {
    line(config, channels, start).to_text()
}

fn source() -> BootSource {
    BootSource {
        kernel_image_path: "/img/vmlinux.bin".into(),
        initrd_path: Some("/img/initramfs.img".into()),
        boot_args: Some("console=ttyS0 pci=off".into()),
    }
}

fn full() -> VmConfig {
    serde_json::from_value(json!({
        "boot_source": null,
        "machine": {"vcpu_count": 4, "mem_size_mib": 512, "smt": true},
        "drives": [
            {"drive_id": "rootfs", "path_on_host": "/img/base, v2.ext4", "is_root_device": true,
             "is_read_only": true},
            {"drive_id": "overlay", "path_on_host": "/vm/overlay.img", "is_root_device": false,
             "is_read_only": false, "cache_type": "Writeback", "io_engine": "Async"},
        ],
        "networks": [
            {"iface_id": "eth0", "host_dev_name": "fcv7", "guest_mac": "06:00:AC:10:00:02"},
            {"iface_id": "eth1", "host_dev_name": "fcv8"},
        ],
        "vsock": {"guest_cid": 3, "uds_path": "/vm/v.sock"},
        "entropy": {"rate_limiter": {"bandwidth": {"size": 1000, "refill_time": 100}}},
        "serial": {"serial_out_path": "/vm/a,b.log"},
    }))
    .unwrap()
}

const MACHINE: &str = "q35,hpet=off,sata=off,smbus=off,smm=off,usb=off,vmport=off";

#[test]
fn a_bare_machine_has_a_console_and_a_monitor() {
    let channels = Channels {
        qmp: 5,
        vsock: None,
        taps: Vec::new(),
    };
    let expected = format!(
        "
-nodefaults
-no-user-config
-display none
-accel tcg,tb-size=256
-cpu max,smap=off
-machine {MACHINE}
-m 128M
-smp 1,sockets=1,cores=1,threads=1
-no-reboot
-S
-kernel /img/vmlinux.bin
-initrd /img/initramfs.img
-append console=ttyS0 norandmaps
-chardev socket,id=qmp,fd=5
-mon chardev=qmp,mode=control
-chardev stdio,id=console,signal=off
-serial chardev:console"
    );
    assert_eq!(
        text(&VmConfig::default(), &channels, Start::Boot(&source())),
        expected
    );
}

#[test]
fn every_device_is_on_the_line() {
    let channels = Channels {
        qmp: 5,
        vsock: Some(6),
        taps: vec![7, 8],
    };
    let devices = r#"
-chardev socket,id=qmp,fd=5
-mon chardev=qmp,mode=control
-chardev file,id=console,append=on,path=/vm/a,,b.log
-serial chardev:console
-blockdev {"driver":"file","node-name":"disk0","filename":"/img/base, v2.ext4","read-only":true,"locking":"off","aio":"threads","cache":{"no-flush":true},"discard":"unmap"}
-device {"driver":"virtio-blk-pci","id":"drive-rootfs","drive":"disk0"}
-blockdev {"driver":"file","node-name":"disk1","filename":"/vm/overlay.img","read-only":false,"locking":"off","aio":"io_uring","cache":{"no-flush":false},"discard":"unmap"}
-device {"driver":"virtio-blk-pci","id":"drive-overlay","drive":"disk1"}
-netdev tap,id=net-eth0,fd=7,vhost=off
-device {"driver":"virtio-net-pci","id":"nic-eth0","netdev":"net-eth0","romfile":"","mac":"06:00:ac:10:00:02"}
-netdev tap,id=net-eth1,fd=8,vhost=off
-device {"driver":"virtio-net-pci","id":"nic-eth1","netdev":"net-eth1","romfile":""}
-chardev socket,id=vsock,fd=6
-device {"driver":"virtio-serial-pci","id":"vsock-bus","max_ports":2}
-device {"driver":"virtserialport","bus":"vsock-bus.0","nr":1,"chardev":"vsock","id":"vsock-port","name":"org.fuse.control"}
-object rng-random,id=rng,filename=/dev/urandom
-device {"driver":"virtio-rng-pci","id":"entropy","rng":"rng","max-bytes":10000,"period":1000}"#;
    let head = format!(
        "
-nodefaults
-no-user-config
-display none
-accel tcg,tb-size=256
-cpu max,smap=off
-machine {MACHINE}
-m 512M
-smp 4,sockets=1,cores=2,threads=2
-no-reboot
-S"
    );
    let boot = "
-kernel /img/vmlinux.bin
-initrd /img/initramfs.img
-append console=ttyS0 norandmaps root=/dev/vda ro";
    let config = full();
    assert_eq!(
        text(&config, &channels, Start::Boot(&source())),
        format!("{head}{boot}{devices}")
    );
    // A snapshot is loaded into the very same machine, and needs no kernel.
    assert_eq!(
        text(&config, &channels, Start::Incoming),
        format!("{head}\n-incoming defer{devices}")
    );
}

#[test]
fn huge_pages_back_the_memory() {
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 256, "huge_pages": "2M"});
    let config = VmConfig {
        machine: serde_json::from_value(machine).unwrap(),
        ..VmConfig::default()
    };
    let channels = Channels {
        qmp: 3,
        vsock: None,
        taps: Vec::new(),
    };
    let text = text(&config, &channels, Start::Incoming);
    assert!(text.contains(&format!("-machine {MACHINE},memory-backend=ram")));
    assert!(text.contains(
        r#"-object {"qom-type":"memory-backend-memfd","id":"ram","hugetlb":true,"hugetlbsize":2097152,"size":268435456}"#
    ));
}
