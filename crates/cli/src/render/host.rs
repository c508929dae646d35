//! Hosts as text. The block's columns are fixed by the published documentation.

use fuse_wire_api::{GpuDevice, Host};
use jiff::Timestamp;

use super::block::Block;
use super::table::{self, TableCell, text};
use super::{or_dash, style, time};

/// Header of the host list.
pub(crate) const HEADER: [&str; 10] = [
    "",
    "ID",
    "REGION",
    "STATE",
    "CPUS",
    "RAM MB",
    "GPUS",
    "VMS",
    "LAST SEEN",
    "AGENT",
];

/// Header of the GPU inventory.
pub(crate) const DEVICE_HEADER: [&str; 7] = [
    "UUID",
    "MODEL",
    "PCI",
    "MEMORY MB",
    "DRIVER",
    "MIG MODE",
    "MIG",
];

/// Printed after every host block.
pub(crate) const NOTE: &str =
    "note: last_seen is set at registration and not refreshed; it is not a liveness signal";

/// One row of the host list.
pub(crate) fn row(host: &Host, active: bool, now: Timestamp) -> Vec<TableCell> {
    let (allocated, capacity) = (&host.allocated, &host.capacity);
    vec![
        table::mark(active),
        text(&host.id),
        text(&host.region),
        table::state(&host.state),
        text(&format!("{}/{}", allocated.cpus, capacity.cpus)),
        text(&format!("{}/{}", allocated.ram_mb, capacity.ram_mb)),
        text(&gpus(host, "/").unwrap_or_default()),
        text(&format!("{}/{}", allocated.vm_count, capacity.vm_count)),
        text(&time::age(host.last_seen, now)),
        agent_cell(host, now),
    ]
}

/// One row of the GPU inventory.
pub(crate) fn device_row(device: &GpuDevice) -> Vec<TableCell> {
    vec![
        text(&device.uuid),
        text(&device.model),
        text(&device.pci_bus_id),
        text(&device.memory_mb.to_string()),
        text(&device.driver_version),
        text(&device.mig_mode),
        text(if device.mig_capable { "yes" } else { "no" }),
    ]
}

fn agent_cell(host: &Host, now: Timestamp) -> TableCell {
    match (&host.agent, trouble(host, now)) {
        (None, _) => text(""),
        (Some(_), None) => table::state("ok"),
        (Some(_), Some(trouble)) => table::trouble(&trouble),
    }
}

/// What keeps the host's agent from taking placements, if anything does.
fn trouble(host: &Host, now: Timestamp) -> Option<String> {
    let agent = host.agent.as_ref()?;
    if !agent.reachable {
        let since = agent.changed_at.unwrap_or(agent.checked_at);
        return Some(format!("unreachable ({})", time::age(since, now)));
    }
    let since = agent.quarantined_at?;
    Some(format!("quarantined ({})", time::age(since, now)))
}

/// The host block.
pub(crate) fn block(host: &Host, now: Timestamp) -> String {
    let (allocated, capacity) = (&host.allocated, &host.capacity);
    let ratio = |a: i32, c: i32| format!("{a} / {c}");
    let mut block = Block::new();
    block
        .row("id", host.id.as_str())
        .row("url", host.url.as_str())
        .row("region", or_dash(&host.region))
        .row("backend", or_dash(&host.backend));
    if capacity.arch != "amd64" {
        block.row_if_some("arch", &capacity.arch);
    }
    if !host.labels.is_empty() {
        let labels: Vec<_> = host
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        block.row("labels", labels.join(", "));
    }
    block
        .row("state", style::state(&host.state))
        .row("cpus", ratio(allocated.cpus, capacity.cpus))
        .row("ram mb", ratio(allocated.ram_mb, capacity.ram_mb))
        .row(
            "storage gb",
            ratio(allocated.storage_gb, capacity.storage_gb),
        )
        .row("vms", ratio(allocated.vm_count, capacity.vm_count));
    if let Some(gpus) = gpus(host, " / ") {
        block.row("gpus", gpus);
    }
    mig(&mut block, host);
    // The block of a host that is well is the published one.
    if let Some(agent) = &host.agent
        && let Some(trouble) = trouble(host, now)
    {
        let why = if agent.reachable {
            &agent.last_boot_error
        } else {
            &agent.error
        };
        block.row("agent", format!("{trouble}: {}", or_dash(why)));
    }
    let seen = time::stamp(host.last_seen);
    block
        .row(
            "last seen",
            format!("{seen} ({})", time::age(host.last_seen, now)),
        )
        .row("created", time::stamp(host.created_at))
        .row("updated", time::stamp(host.updated_at));
    block.render_host()
}

/// What is allocated and what is free. Bookkeeping, not load.
pub(crate) fn metrics(host: &Host) -> String {
    let (allocated, capacity) = (&host.allocated, &host.capacity);
    let free = |a: i32, c: i32| format!("{a} / {c} ({} free", (c - a).max(0));
    let plain = |a: i32, c: i32| free(a, c) + ")";
    let mut block = Block::new();
    block
        .row("host", host.id.as_str())
        .row("state", style::state(&host.state))
        .row("cpus", plain(allocated.cpus, capacity.cpus))
        .row("ram mb", plain(allocated.ram_mb, capacity.ram_mb))
        .row(
            "storage gb",
            plain(allocated.storage_gb, capacity.storage_gb),
        )
        .row("vms", plain(allocated.vm_count, capacity.vm_count));
    if capacity.gpus > 0 {
        let kind = match capacity.gpu_kind.as_str() {
            "" => String::new(),
            kind => format!(", {kind}"),
        };
        block.row("gpus", free(allocated.gpus, capacity.gpus) + &kind + ")");
    }
    for (profile, count) in &capacity.mig_profiles {
        let taken = allocated
            .mig_profiles
            .get(profile)
            .copied()
            .unwrap_or_default();
        block.row(format!("mig {profile}"), plain(taken, *count));
    }
    block.render()
}

/// Whole GPUs with their kind; nothing on a host without any.
fn gpus(host: &Host, slash: &str) -> Option<String> {
    let (allocated, capacity) = (&host.allocated, &host.capacity);
    if capacity.gpus == 0 {
        return None;
    }
    let kind = match capacity.gpu_kind.as_str() {
        "" => String::new(),
        kind => format!(" ({kind})"),
    };
    Some(format!("{}{slash}{}{kind}", allocated.gpus, capacity.gpus))
}

/// MIG pools on one row, then a row per carved instance.
fn mig(block: &mut Block, host: &Host) {
    let taken = &host.allocated.mig_profiles;
    let pools: Vec<_> = host
        .capacity
        .mig_profiles
        .iter()
        .map(|(profile, count)| {
            format!(
                "{profile} {} / {count}",
                taken.get(profile).copied().unwrap_or_default()
            )
        })
        .collect();
    if !pools.is_empty() {
        block.row("mig", pools.join(", "));
    }
    for instance in &host.capacity.mig_instances {
        let short: String = instance
            .uuid
            .trim_start_matches("MIG-")
            .chars()
            .take(8)
            .collect();
        let bound = host.allocated.mig_instance_uuids.contains(&instance.uuid);
        block.row(
            format!("mig {short}"),
            format!(
                "{} ({}) parent={} [{}]",
                instance.profile,
                or_dash(&instance.kind),
                or_dash(&instance.parent_gpu_uuid),
                if bound { "in-use" } else { "free" }
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use fuse_wire_api::MigInstance;

    use super::*;
    use crate::render::table::table;

    fn registered() -> Host {
        serde_json::from_str(
            r#"{"id":"prod-east-1","url":"http://10.0.0.5:8090","backend":"firecracker",
                "state":"active",
                "capacity":{"cpus":16,"ram_mb":65536,"storage_gb":500,"vm_count":20,"arch":"amd64"},
                "allocated":{"cpus":0,"ram_mb":0,"storage_gb":0,"vm_count":0},
                "last_seen":"2026-01-15T10:00:00Z","created_at":"2026-01-15T10:00:00Z",
                "updated_at":"2026-01-15T10:00:00Z"}"#,
        )
        .unwrap()
    }

    fn plain(text: &str) -> String {
        // Times are shown in the zone of whoever runs the tests; the layout is what counts here.
        let zone = time::stamp("2026-01-15T10:00:00Z".parse().unwrap());
        anstream::adapter::strip_str(text)
            .to_string()
            .replace(&zone, "2026-01-15 10:00")
    }

    fn now() -> Timestamp {
        "2026-01-15T10:00:20Z".parse().unwrap()
    }

    #[test]
    fn the_block_is_the_published_one() {
        assert_eq!(
            plain(&block(&registered(), now())),
            "\
id            prod-east-1
url           http://10.0.0.5:8090
region        -
backend       firecracker
state         active
cpus          0 / 16
ram mb        0 / 65536
storage gb    0 / 500
vms           0 / 20
last seen     2026-01-15 10:00 (just now)
created       2026-01-15 10:00
updated       2026-01-15 10:00
"
        );
    }

    #[test]
    fn optional_rows() {
        let mut host = registered();
        host.region = "us-east".into();
        host.backend = "qemu".into();
        host.capacity.arch = "arm64".into();
        host.labels = [
            ("tier".into(), "build".into()),
            ("disk".into(), "nvme".into()),
        ]
        .into();
        host.capacity.gpus = 2;
        host.allocated.gpus = 1;
        host.capacity.gpu_kind = "a100".into();
        host.capacity.mig_profiles = [("2g.20gb".into(), 2), ("1g.10gb".into(), 4)].into();
        host.allocated.mig_profiles = [("1g.10gb".into(), 1)].into();
        host.capacity.mig_instances = vec![MigInstance {
            uuid: "MIG-0a1b2c3d-ffff".into(),
            profile: "1g.10gb".into(),
            kind: "a100".into(),
            parent_gpu_uuid: "GPU-1".into(),
        }];
        host.allocated.mig_instance_uuids = vec!["MIG-0a1b2c3d-ffff".into()];
        insta::assert_snapshot!("host_block_full", plain(&block(&host, now())));
    }

    #[test]
    fn metrics_tell_what_is_free() {
        let mut host = registered();
        host.allocated.cpus = 4;
        host.capacity.gpus = 2;
        host.capacity.gpu_kind = "a100".into();
        host.capacity.mig_profiles = [("1g.10gb".into(), 4)].into();
        insta::assert_snapshot!("host_metrics", plain(&metrics(&host)));
    }

    #[test]
    fn the_list() {
        let mut gpu = registered();
        gpu.id = "gpu-1".into();
        gpu.state = "cordoned".into();
        gpu.region = "us-east".into();
        gpu.capacity.gpus = 1;
        gpu.capacity.gpu_kind = "a100".into();
        let mut well = registered();
        let agent = r#"{"reachable":true,"checked_at":"2026-01-15T10:00:10Z"}"#;
        well.agent = Some(serde_json::from_str(agent).unwrap());
        let mut gone = registered();
        gone.id = "gone".into();
        let agent = r#"{"reachable":false,"checked_at":"2026-01-15T10:00:10Z",
            "changed_at":"2026-01-15T08:00:00Z","error":"connection refused"}"#;
        gone.agent = Some(serde_json::from_str(agent).unwrap());
        assert!(
            plain(&block(&gone, now())).contains(
                "vms           0 / 20\nagent         unreachable (2h): connection refused\n"
            ),
            "{}",
            block(&gone, now())
        );
        let mut bad = registered();
        bad.id = "bad".into();
        let agent = r#"{"reachable":true,"checked_at":"2026-01-15T10:00:10Z",
            "failed_boots":3,"quarantined_at":"2026-01-15T09:55:00Z"}"#;
        bad.agent = Some(serde_json::from_str(agent).unwrap());
        let rows = [(&well, true), (&gpu, false), (&gone, false), (&bad, false)]
            .map(|(host, active)| row(host, active, now()))
            .into();
        insta::assert_snapshot!("host_list", plain(&table(&HEADER, rows)));
    }
}
