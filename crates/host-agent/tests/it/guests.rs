//! Real guests: made, used, isolated, kept over a restart of the agent, removed.

use std::collections::BTreeMap;
use std::io::Write as _;

use fuse_wire_host::start_agent::Protocol;
use fuse_wire_host::{
    CreateVmRequest, ExecRequest, Expose, FileUpload, StartAgentRequest, UploadRequest, VmState,
};

use crate::agent::{Agent, FC, GPU, PORT, Program};
use crate::machine::{HOST, Image, OUTSIDE, Outside, on_a_machine, run};

const NONE: Vec<String> = Vec::new();

#[test]
fn guests_live_side_by_side_outlive_the_agent_and_leave_nothing() {
    on_a_machine("guests", |image, outside| async move {
        live(Agent::start(FC, &image, &[]).await, outside).await;
    });
}

#[test]
fn guests_of_the_gpu_agent_are_no_others() {
    on_a_machine("guests_gpu", |image, outside| async move {
        live(Agent::start(GPU, &image, &[]).await, outside).await;
    });
}

async fn live(mut agent: Agent, outside: Outside) {
    let (a, b) = tokio::join!(agent.create("a"), agent.create("b"));
    assert_ne!(a.url, b.url);
    assert_eq!(
        (a.state, a.owner.as_deref()),
        (Some(VmState::Running), Some("fleet-1"))
    );
    assert!(a.timings_ms.is_some() && a.boot_id.is_some() && a.guest_version.is_some());
    commands(&agent).await;
    files(&agent).await;
    surface(&agent, &a.url, &outside).await;
    datagrams(&agent, &outside).await;
    isolation(&agent, &b.url, &outside).await;

    let before = agent.processes();
    let groups = agent.cgroups();
    // Where the host has any.
    if groups.missing().count() < 4 {
        assert_eq!(groups.known(), ["a", "b"], "every VMM is limited");
    }
    agent.kill();
    run(&["nft", "flush", "ruleset"]);
    agent.launch().await;
    let kept = agent.client.get("a").await.unwrap();
    assert_eq!((&kept.url, &kept.boot_id), (&a.url, &a.boot_id));
    assert_eq!(kept.guest_version, a.guest_version);
    assert_eq!(kept.state, Some(VmState::Running));
    let after: Vec<_> = agent.processes();
    assert_eq!(
        pids(&before),
        pids(&after),
        "the VMs' processes are the same"
    );
    assert_eq!(agent.exec("a", &["cat", "/tmp/kept"]).await.stdout, b"kept");
    https(&a.url, "tok", "200").await;
    assert!(
        !agent.reaches("a", &agent.guest_address(&b.url), 9550).await,
        "the rules are back"
    );

    agent.client.delete("a").await.unwrap();
    assert_eq!(agent.exec("b", &["true"]).await.exit_code, 0);
    agent.client.delete("b").await.unwrap();
    assert_eq!(agent.leftovers(), NONE);
}

fn pids(processes: &[(i32, String)]) -> Vec<i32> {
    let mut pids: Vec<_> = processes.iter().map(|(pid, _)| *pid).collect();
    pids.sort_unstable();
    pids
}

async fn commands(agent: &Agent) {
    let uname = agent.exec("a", &["uname", "-n"]).await;
    assert_eq!(uname.stdout, b"a\n");
    let binary = agent.exec("a", &["printf", r"\000\377x"]).await;
    assert_eq!(binary.stdout, b"\x00\xffx");
    let both = agent
        .exec("b", &["sh", "-c", "echo out; echo err >&2; exit 7"])
        .await;
    assert_eq!(
        (both.exit_code, &both.stdout[..], &both.stderr[..]),
        (7, &b"out\n"[..], &b"err\n"[..])
    );
    let large = agent
        .exec("a", &["head", "-c", "1048576", "/dev/zero"])
        .await;
    assert_eq!(
        (large.stdout.len(), large.stdout_truncated),
        (1_048_576, false)
    );
    let signalled = agent.exec("a", &["sh", "-c", "kill -9 $$"]).await;
    assert_eq!((signalled.exit_code, signalled.signal), (137, Some(9)));
    assert_eq!(agent.exec("a", &["no-such-program"]).await.exit_code, 127);
    let request = ExecRequest {
        cmd: ["sh", "-c", "echo $X $PWD; sleep 60"]
            .map(str::to_owned)
            .to_vec(),
        timeout_ms: Some(2000),
        env: Some(BTreeMap::from([("X".to_owned(), "x y".to_owned())])),
        cwd: Some("/usr".into()),
    };
    let late = agent.client.exec("a", &request).await.unwrap();
    assert_eq!((late.exit_code, late.timed_out), (124, true));
    assert_eq!(late.stdout, b"x y /usr\n");
    let disk = agent
        .exec("a", &["sh", "-c", "df -k --output=size / | tail -1"])
        .await;
    let kib: u64 = String::from_utf8(disk.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(
        (900_000..1_048_576).contains(&kib),
        "storage_gb bounds the guest: {kib} KiB"
    );
}

fn file(path: &str, content: impl Into<Vec<u8>>) -> FileUpload {
    FileUpload {
        path: path.into(),
        content: content.into(),
        mode: None,
    }
}

async fn files(agent: &Agent) {
    let key = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let large: Vec<u8> = (0..3_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let files = vec![
        file("/fuse/manifest.json", "{}"),
        file("/fuse/secrets.json", r#"{"K":"v"}"#),
        file("/fuse/auth-token", "tok"),
        file("/fuse/tls/cert.pem", key.cert.pem()),
        file("/fuse/tls/key.pem", key.signing_key.serialize_pem()),
        file("/srv/large file", large.clone()),
        FileUpload {
            mode: Some("0750".into()),
            ..file("/srv/deep/er/run", "#!/bin/sh\n")
        },
        file("/tmp/kept", "kept"),
    ];
    agent
        .client
        .upload("a", &UploadRequest { files })
        .await
        .unwrap();
    let modes = [
        "stat",
        "-c",
        "%a",
        "/fuse",
        "/fuse/tls/key.pem",
        "/srv/deep/er/run",
    ];
    assert_eq!(agent.exec("a", &modes).await.stdout, b"700\n600\n750\n");
    let sum = agent
        .exec("a", &["sha256sum", "/srv/large file"])
        .await
        .stdout;
    let want = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&large));
    assert!(String::from_utf8(sum).unwrap().starts_with(&want));
    let bad = UploadRequest {
        files: vec![file("relative", "x")],
    };
    let refused = agent.client.upload("a", &bad).await.unwrap_err();
    assert!(
        matches!(refused, fuse_wire_host::HostError::BadRequest { .. }),
        "{refused:?}"
    );
}

async fn surface(agent: &Agent, url: &str, outside: &Outside) {
    let (_, port) = url.rsplit_once(':').unwrap();
    let port: u16 = port.parse().unwrap();
    assert!(
        !outside.reaches(HOST, port),
        "no port before there are credentials"
    );
    let request = StartAgentRequest {
        manifest_path: "/fuse/manifest.json".into(),
        secrets_path: "/fuse/secrets.json".into(),
        tls_cert_path: Some("/fuse/tls/cert.pem".into()),
        tls_key_path: Some("/fuse/tls/key.pem".into()),
        auth_token: Some("tok".into()),
        expose: vec![Expose {
            port: 9550,
            name: "web".into(),
            protocol: Protocol::Tcp,
        }],
        ..StartAgentRequest::default()
    };
    let published = agent
        .client
        .start_agent("a", &request)
        .await
        .unwrap()
        .endpoints;
    assert_eq!(published.len(), 1);
    // From the host itself, by its own address, by loopback, and from another machine.
    https(url, "tok", "200").await;
    https(&format!("127.0.0.1:{port}"), "tok", "200").await;
    https(url, "wrong", "401").await;
    https(&published[0].url, "tok", "200").await;
    assert!(outside.reaches(HOST, port));
    assert!(outside.reaches(HOST, published[0].host_port));
    let again = agent
        .client
        .start_agent("a", &request)
        .await
        .unwrap()
        .endpoints;
    assert_eq!(again, published);
}

/// UDP is published like TCP, and publishing again leaves one rule, not two.
async fn datagrams(agent: &Agent, outside: &Outside) {
    let server = "use IO::Socket::INET; my $s=IO::Socket::INET->new(LocalPort=>7777,Proto=>'udp') \
                  or die; while ($s->recv(my $m, 100)) { $s->send(uc $m) }";
    let start = "setsid perl -e \"$1\" >/dev/null 2>&1 &";
    agent
        .exec("a", &["bash", "-c", start, "bash", server])
        .await;
    let request = StartAgentRequest {
        manifest_path: "/fuse/manifest.json".into(),
        secrets_path: "/fuse/secrets.json".into(),
        tls_cert_path: Some("/fuse/tls/cert.pem".into()),
        tls_key_path: Some("/fuse/tls/key.pem".into()),
        auth_token: Some("tok".into()),
        expose: vec![Expose {
            port: 7777,
            name: "echo".into(),
            protocol: Protocol::Udp,
        }],
        ..StartAgentRequest::default()
    };
    let publish = async || {
        agent
            .client
            .start_agent("a", &request)
            .await
            .unwrap()
            .endpoints
    };
    let published = publish().await;
    assert_eq!(published[0].protocol, Protocol::Udp);
    let rules = run(&["nft", "list", "table", "inet", "fuse"]);
    assert_eq!(publish().await, published);
    assert_eq!(run(&["nft", "list", "table", "inet", "fuse"]), rules);
    let port = published[0].host_port;
    // The server may still be starting: a datagram that nobody takes is lost.
    let ask = |address: &str| {
        format!(
            "for i in $(seq 30); do exec 3<>/dev/udp/{address}/{port}; echo hi >&3; \
             timeout 0.5 head -n1 <&3 && exit; done; exit 1"
        )
    };
    assert_eq!(outside.run(&["bash", "-c", &ask(HOST)]), "HI\n");
    assert_eq!(run(&["bash", "-c", &ask(HOST)]), "HI\n");
    assert_eq!(run(&["bash", "-c", &ask("127.0.0.1")]), "HI\n");
}

/// The status of the surface's protected route.
async fn https(authority: &str, token: &str, want: &str) {
    let http = reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .no_proxy();
    let request = http
        .build()
        .unwrap()
        .get(format!("https://{authority}/v1/info"));
    let answer = request.bearer_auth(token).send().await.unwrap();
    assert_eq!(answer.status().as_str(), want, "{authority}");
}

async fn isolation(agent: &Agent, other_url: &str, outside: &Outside) {
    let (_, other_port) = other_url.rsplit_once(':').unwrap();
    let other_port: u16 = other_port.parse().unwrap();
    // Guest b listens on its surface's port too, so that only the rules are in the way.
    let files = vec![file("/fuse/m.json", "{}"), file("/fuse/s.json", "{}")];
    agent
        .client
        .upload("b", &UploadRequest { files })
        .await
        .unwrap();
    let request = StartAgentRequest {
        manifest_path: "/fuse/m.json".into(),
        secrets_path: "/fuse/s.json".into(),
        ..StartAgentRequest::default()
    };
    agent.client.start_agent("b", &request).await.unwrap();
    assert!(outside.reaches(HOST, other_port));
    for (address, port, what) in [
        (
            agent.guest_address(other_url).as_str(),
            9550,
            "the other guest",
        ),
        (HOST, other_port, "the other guest's published port"),
        ("10.200.1.1", PORT, "the agent by a link's address"),
        (HOST, PORT, "the agent by the host's address"),
        ("127.0.0.1", PORT, "the agent by loopback"),
    ] {
        assert!(
            !agent.reaches("a", address, port).await,
            "guest a must not reach {what}"
        );
    }
    assert!(!agent.reaches("a", "169.254.169.254", 80).await);
    // The way out works, though: another machine sees the host's address.
    let server = "use IO::Socket::INET; my $s=IO::Socket::INET->new(Listen=>1,LocalPort=>7000,\
                  ReuseAddr=>1) or die; my $c=$s->accept; print $c $c->peerhost;";
    let mut served = outside.start(&["timeout", "60", "perl", "-e", server]);
    let connect = format!(
        "for i in $(seq 50); do exec 3<>/dev/tcp/{OUTSIDE}/7000 && cat <&3 && exit; sleep 0.2; done"
    );
    let seen = agent.exec("a", &["bash", "-c", &connect]).await;
    assert_eq!(String::from_utf8_lossy(&seen.stdout), HOST);
    served.wait().unwrap();
}

#[test]
fn a_base_image_without_a_shell_is_explained_and_leaves_nothing() {
    on_a_machine("no_shell", |image, _outside| no_shell(FC, image));
}

#[test]
fn a_base_image_without_a_shell_is_explained_by_the_gpu_agent() {
    on_a_machine("no_shell_gpu", |image, _outside| no_shell(GPU, image));
}

async fn no_shell(program: Program, image: Image) {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir
        .path()
        .join(format!("bare.{}", program.backend.image_extension));
    std::fs::File::create(&empty)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    run(&["mkfs.ext4", "-q", "-F", empty.to_str().unwrap()]);
    let images = dir.path().to_str().unwrap();
    let agent = Agent::start(program, &image, &[("IMAGES_DIR", images)]).await;
    let request = CreateVmRequest {
        name: Some("bare".into()),
        memory_mb: Some(256),
        image: Some("bare".into()),
        ..CreateVmRequest::default()
    };
    let error = agent.client.create(&request).await.unwrap_err().to_string();
    assert!(
        error.contains("image \"bare\"") && error.contains("/bin/sh"),
        "{error}"
    );
    assert_eq!(agent.leftovers(), NONE);
}

#[test]
fn a_kernel_that_is_none_is_explained_and_leaves_nothing() {
    on_a_machine("no_kernel", |image, _outside| no_kernel(FC, image));
}

#[test]
fn a_kernel_that_is_none_is_explained_by_the_gpu_agent() {
    on_a_machine("no_kernel_gpu", |image, _outside| no_kernel(GPU, image));
}

async fn no_kernel(program: Program, image: Image) {
    let dir = tempfile::tempdir().unwrap();
    let kernel = dir.path().join("kernel");
    std::fs::write(&kernel, b"not a kernel").unwrap();
    let kernel = kernel.to_str().unwrap();
    let settings = [
        ("FUSE_BOOT_TIMEOUT", "20"),
        ("FC_KERNEL", kernel),
        ("QEMU_KERNEL", kernel),
    ];
    let agent = Agent::start(program, &image, &settings).await;
    let request = CreateVmRequest {
        name: Some("x".into()),
        ..CreateVmRequest::default()
    };
    let error = agent.client.create(&request).await.unwrap_err().to_string();
    assert!(error.contains("vm x: "), "{error}");
    assert_eq!(agent.leftovers(), NONE);
}

#[test]
fn a_probe_guest_answers() {
    on_a_machine("probe", |image, _outside| async move { probe(FC, &image) });
}

#[test]
fn a_probe_guest_answers_the_gpu_agent() {
    on_a_machine(
        "probe_gpu",
        |image, _outside| async move { probe(GPU, &image) },
    );
}

/// Where distributions put UEFI firmware.
const FIRMWARE: [&str; 2] = [
    "/usr/share/OVMF/OVMF_CODE.fd",
    "/usr/share/OVMF/OVMF_CODE_4M.fd",
];

#[test]
fn a_probe_guest_begins_with_uefi() {
    on_a_machine("probe_uefi", |image, _outside| async move {
        let skip = |reason: &str| {
            let mut stderr = std::io::stderr().lock();
            writeln!(stderr, "SKIP host-agent::probe_uefi: {reason}").unwrap();
        };
        let kernel = image.dir.join("vmlinuz.bin");
        let Some(firmware) = FIRMWARE
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
        else {
            return skip("ovmf is not installed");
        };
        let dir = tempfile::tempdir().unwrap();
        let mut probe = GPU.command(dir.path(), &image);
        let probe = probe.env("OVMF_CODE", firmware).env("QEMU_KERNEL", kernel);
        let done = probe.args(["probe", "--timeout", "120"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && said.contains("\"ok\":true"),
            "{said}"
        );
    });
}

#[test]
fn whether_kvm_works_is_found_out_once_per_boot_of_the_host() {
    on_a_machine("kvm_gpu", |image, _outside| async move {
        let mut agent = Agent::start(GPU, &image, &[("QEMU_ACCELERATOR", "auto")]).await;
        if !std::path::Path::new("/dev/kvm").exists() {
            assert!(
                agent.log().contains("/dev/kvm cannot be opened"),
                "{}",
                agent.log()
            );
            return;
        }
        let asked = "booting a guest to see whether KVM works here";
        assert!(agent.log().contains(asked), "{}", agent.log());
        // Whatever came out of it, guests boot.
        agent.create("a").await;
        agent.kill();
        agent.launch().await;
        assert!(!agent.log().contains(asked), "{}", agent.log());
        agent.client.delete("a").await.unwrap();
        assert_eq!(agent.leftovers(), NONE);
    });
}

fn probe(program: Program, image: &Image) {
    let dir = tempfile::tempdir().unwrap();
    let mut probe = program.command(dir.path(), image);
    let done = probe.args(["probe", "--timeout", "120"]).output().unwrap();
    std::io::stderr().write_all(&done.stderr).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (done.status.code(), &report["ok"]),
        (Some(0), &true.into()),
        "{report}"
    );
    assert!(report["boot_ms"].as_u64().unwrap() > 0);
    assert_eq!(std::fs::read_dir(dir.path().join("s")).unwrap().count(), 0);
    let vmm = format!("{}_BIN", program.backend.prefix);
    let none = probe.env(vmm, "/bin/false").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&none.stdout).unwrap();
    assert_eq!(
        (none.status.code(), &report["ok"]),
        (Some(1), &false.into()),
        "{report}"
    );
    let reason = report["reason"].as_str().unwrap();
    assert!(reason.contains("the VMM ended"), "{report}");
}
