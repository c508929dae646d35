//! Whole command lines, as they would be typed, and the driver against a scripted monitor.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;

use super::*;
use crate::cgroup::Group;
use crate::net::plan::MacAddr;
use crate::vmm::{BootSource, Nic};

fn spec(dir: &Path) -> MachineSpec {
    MachineSpec {
        vm_id: "vm-1".into(),
        cpus: 2,
        memory_mib: 1024,
        boot: BootSource {
            kernel: "/k".into(),
            initrd: "/i".into(),
            cmdline: "console=ttyS0 fuse.vm=vm-1".into(),
        },
        base: "/base, v2.qcow2".into(),
        overlay: "/overlay".into(),
        nic: Some(Nic {
            tap: "qv1".into(),
            mac: MacAddr([6, 0, 0xac, 0x10, 1, 2]),
        }),
        log: dir.join("qemu.log"),
        huge_pages: false,
        devices: Vec::new(),
        number: 1,
        sockets: sockets::of(dir, "vm-1"),
        group: Group::default(),
    }
}

fn options(accelerator: Accelerator) -> Options {
    Options {
        accelerator,
        firmware: None,
        run_as: Some((65534, 65534)),
    }
}

fn driver(dir: &Path) -> Qemu {
    let options = options(Accelerator::Tcg);
    Qemu::new("/usr/bin/qemu".into(), dir.to_owned(), options)
}

#[test]
fn a_guest_with_a_card_and_a_part_of_another() {
    let mut spec = spec(Path::new("/s"));
    let pci = |text: &str| HostDevice::Pci(text.parse().unwrap());
    spec.devices = vec![
        pci("65:00.0"),
        pci("65:00.1"),
        HostDevice::Mediated("c73b0b02-1e4b-4c5a-9d2e-0123456789ab".into()),
    ];
    let options = Options {
        firmware: Some("/usr/share/OVMF/OVMF_CODE.fd".into()),
        ..options(Accelerator::Kvm)
    };
    let expected = r#"
-nodefaults
-no-user-config
-display none
-accel kvm
-cpu host
-name guest=vm-1
-sandbox on,obsolete=deny,spawn=deny,resourcecontrol=deny
-runas 65534:65534
-machine q35,hpet=off,sata=off,smbus=off,smm=off,usb=off,vmport=off
-m 1024M
-smp 2,sockets=1,cores=2,threads=1
-no-reboot
-S
-drive if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE.fd
-kernel /k
-initrd /i
-append console=ttyS0 fuse.vm=vm-1
-chardev stdio,id=console,signal=off
-serial chardev:console
-blockdev {"driver":"file","node-name":"disk0-file","filename":"/base, v2.qcow2","read-only":true,"locking":"off","aio":"threads","cache":{"no-flush":true},"discard":"unmap"}
-blockdev {"driver":"qcow2","node-name":"disk0","file":"disk0-file","backing":null,"read-only":true,"discard":"unmap"}
-device {"driver":"virtio-blk-pci","id":"drive-rootfs","drive":"disk0"}
-blockdev {"driver":"file","node-name":"disk1","filename":"/overlay","read-only":false,"locking":"off","aio":"threads","cache":{"no-flush":false},"discard":"unmap"}
-device {"driver":"virtio-blk-pci","id":"drive-overlay","drive":"disk1"}
-netdev tap,id=net-eth0,ifname=qv1,script=no,downscript=no,vhost=off
-device {"driver":"virtio-net-pci","id":"nic-eth0","netdev":"net-eth0","romfile":"","mac":"06:00:AC:10:01:02"}
-chardev socket,id=channel,server=on,wait=off,path=/s/vm-1.v
-device {"driver":"virtio-serial-pci","id":"channel-bus","max_ports":2}
-device {"driver":"virtserialport","bus":"channel-bus.0","nr":1,"chardev":"channel","id":"channel-port","name":"org.fuse.control"}
-chardev socket,id=qmp,server=on,wait=off,path=/s/vm-1.sock
-mon chardev=qmp,mode=control
-device {"driver":"vfio-pci","id":"host0","host":"0000:65:00.0"}
-device {"driver":"vfio-pci","id":"host1","host":"0000:65:00.1"}
-device {"driver":"vfio-pci","id":"host2","sysfsdev":"/sys/bus/mdev/devices/c73b0b02-1e4b-4c5a-9d2e-0123456789ab"}"#;
    let line = command_line(&spec, &options, Format::Qcow2);
    assert_eq!(line.to_text(), expected);
    let mark = driver(Path::new("/s")).mark(&spec.sockets);
    assert!(line.into_arguments().contains(&mark), "{mark:?}");
}

#[test]
fn an_emulated_guest_without_any() {
    let mut spec = spec(Path::new("/s"));
    spec.nic = None;
    spec.huge_pages = true;
    let options = Options {
        run_as: None,
        ..options(Accelerator::Tcg)
    };
    let line = command_line(&spec, &options, Format::Raw).to_text();
    for part in [
        "\n-accel tcg,tb-size=256\n-cpu max,smap=off\n",
        "\n-append console=ttyS0 fuse.vm=vm-1 norandmaps\n",
        "memory-backend=ram\n",
        r#""node-name":"disk0","filename":"/base, v2.qcow2""#,
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    for part in ["runas", "pflash", "vfio", "netdev"] {
        assert!(!line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_base_is_read_as_what_it_begins_with() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("base");
    for (bytes, want) in [
        (&b"QFI\xfb\0\0\0\x03"[..], Format::Qcow2),
        (&[0; 4096], Format::Raw),
        (b"QF", Format::Raw),
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(format_of(&file).unwrap(), want);
    }
    assert!(format_of(&dir.path().join("none")).is_err());
}

#[tokio::test]
async fn everybody_has_the_same_channel_while_somebody_has_it() {
    let driver = driver(Path::new("/s"));
    let sockets = driver.sockets("vm-1", Path::new("/"));
    let first = driver.transport(&sockets);
    assert!(Arc::ptr_eq(&first, &driver.transport(&sockets)));
    let other = driver.transport(&driver.sockets("vm-2", Path::new("/")));
    assert!(!Arc::ptr_eq(&first, &other));
    drop((first, other));
    drop(driver.transport(&driver.sockets("vm-3", Path::new("/"))));
    assert_eq!(
        driver.channels.lock().unwrap().len(),
        1,
        "the dead are forgotten"
    );
}

/// A monitor that greets, and answers every command with `answer`. Lists what it was told.
async fn monitor(listener: UnixListener, answer: &'static str) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (lines, mut out) = stream.into_split();
        let greeting = br#"{"QMP":{"version":{"qemu":{"micro":0,"minor":2,"major":7}}}}"#;
        out.write_all(greeting).await.unwrap();
        out.write_all(b"\n").await.unwrap();
        let mut lines = BufReader::new(lines).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let command: serde_json::Value = serde_json::from_str(&line).unwrap();
            let command = command["execute"].as_str().unwrap().to_owned();
            let negotiation = command == "qmp_capabilities";
            let said = if negotiation {
                r#"{"return":{}}"#
            } else {
                answer
            };
            out.write_all(format!("{said}\n").as_bytes()).await.unwrap();
            if !negotiation {
                told.push(command);
            }
        }
        if told.len() >= 3 {
            return told;
        }
    }
}

#[tokio::test]
async fn the_monitor_starts_halts_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let (driver, spec) = (driver(dir.path()), spec(dir.path()));
    let listener = UnixListener::bind(&spec.sockets.api).unwrap();
    let calls = async {
        driver.boot(&spec).await.unwrap();
        driver.pause(&spec.sockets).await.unwrap();
        driver.resume(&spec.sockets, CALL_LIMIT).await.unwrap();
    };
    let (told, ()) = tokio::join!(monitor(listener, r#"{"return":{}}"#), calls);
    assert_eq!(told, ["cont", "stop", "cont"]);
    // Nothing listens any more.
    assert!(!driver.serves(&spec.sockets).await);
    let error = driver.boot(&spec).await.unwrap_err();
    assert!(
        matches!(error, VmmError::Broken { call: "cont", .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_refusal_is_told_with_qemus_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (driver, spec) = (driver(dir.path()), spec(dir.path()));
    let listener = UnixListener::bind(&spec.sockets.api).unwrap();
    let refuse = r#"{"error":{"class":"GenericError","desc":"not today"}}"#;
    let error = tokio::select! {
        told = monitor(listener, refuse) => panic!("{told:?}"),
        refused = driver.boot(&spec) => refused.unwrap_err(),
    };
    let text = crate::report::chain(&error);
    assert!(
        text.contains("told cont in vain") && text.contains("not today"),
        "{text}"
    );
}

#[tokio::test]
async fn memory_is_neither_written_nor_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver(dir.path());
    assert!(!driver.limits().snapshots);
    let store = crate::snapshot::Snapshots::open(dir.path().join("snapshots")).unwrap();
    let staged = store.stage().unwrap();
    let files = staged.files();
    let error = driver
        .save(&spec(dir.path()).sockets, &files)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the VMM cannot write the memory"),
        "{error}"
    );
}
