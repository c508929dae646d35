//! What the vendor's tool says of the GPUs that its driver has.
//!
//! It cannot see a card that is bound to `vfio-pci`, so it is asked only where the inventory says
//! nothing of any card; whatever goes wrong with it is no devices, never a failure.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fuse_wire_host::GpuDevice;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::pci::PciAddress;

/// Fields, in the order that they are asked for.
const QUERY: &str = "--query-gpu=index,uuid,name,pci.bus_id,memory.total,driver_version,\
     compute_cap,mig.mode.current,mig.mode.pending";
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Most of its output that is read, in bytes.
const MAX_OUTPUT: u64 = 256 * 1024;

/// Asks `program`, which is looked for on `PATH`.
pub(super) async fn devices(program: &Path) -> Vec<GpuDevice> {
    match tokio::time::timeout(LIMIT, ask(program)).await {
        Ok(Ok(text)) => parse(&text).unwrap_or_else(|| {
            tracing::warn!("nvidia-smi says something that is not understood; no devices");
            Vec::new()
        }),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no nvidia-smi to ask");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!(
                seconds = LIMIT.as_secs(),
                "nvidia-smi does not answer; no devices"
            );
            Vec::new()
        }
    }
}

/// Whether the tool works here, which means that its driver does.
pub(super) async fn answers(program: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg("-L").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, command.output()).await;
    let output = output
        .map_err(|_| format!("no answer within {} s", LIMIT.as_secs()))?
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().find(|line| !line.trim().is_empty());
    Err(line.map_or_else(|| output.status.to_string(), str::to_owned))
}

async fn ask(program: &Path) -> std::io::Result<String> {
    let mut child = Command::new(program)
        .args([QUERY, "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut text = String::new();
    if let Some(out) = child.stdout.take() {
        out.take(MAX_OUTPUT).read_to_string(&mut text).await?;
    }
    let status = child.wait().await?;
    if status.success() {
        Ok(text)
    } else {
        Err(std::io::Error::other(status.to_string()))
    }
}

/// All lines, or `None` if one of them is not understood.
fn parse(text: &str) -> Option<Vec<GpuDevice>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(device).collect()
}

fn device(line: &str) -> Option<GpuDevice> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [
        index,
        uuid,
        model,
        bus_id,
        memory,
        driver,
        compute,
        mig,
        _pending,
    ] = fields[..]
    else {
        return None;
    };
    if line.chars().any(char::is_control) || uuid.is_empty() {
        return None;
    }
    let bus_id: PciAddress = bus_id.parse().ok()?;
    Some(GpuDevice {
        index: index.parse().ok()?,
        uuid: uuid.to_owned(),
        model: model.to_owned(),
        pci_bus_id: bus_id.to_string(),
        memory_mb: memory.parse().unwrap_or(0),
        driver_version: driver.to_owned(),
        compute_cap: compute.to_owned(),
        mig_capable: is_mig_capable(mig),
        mig_mode: bare(mig).to_owned(),
        ..GpuDevice::default()
    })
}

/// The tool writes what does not apply as `[N/A]`.
fn bare(value: &str) -> &str {
    value.trim_start_matches('[').trim_end_matches(']')
}

/// Whether a GPU in this partitioning mode can be partitioned.
pub(super) fn is_mig_capable(mode: &str) -> bool {
    !matches!(bare(mode), "" | "N/A")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = "0, GPU-1, NVIDIA A100-SXM4-40GB, 00000000:65:00.0, 40960, 550.54.14, 8.0, Enabled, Enabled\n\
        1, GPU-2, Tesla T4, 0000:3B:00.0, [N/A], 550.54.14, 7.5, [N/A], [N/A]\n";

    #[test]
    fn rows() {
        let found = parse(TWO).unwrap();
        assert_eq!(
            (found[0].uuid.as_str(), found[0].pci_bus_id.as_str()),
            ("GPU-1", "0000:65:00.0")
        );
        assert_eq!((found[0].memory_mb, found[0].mig_capable), (40960, true));
        assert_eq!(
            (found[1].index, found[1].memory_mb, found[1].mig_capable),
            (1, 0, false)
        );
        assert_eq!(
            (found[1].pci_bus_id.as_str(), found[1].mig_mode.as_str()),
            ("0000:3b:00.0", "N/A")
        );
    }

    #[test]
    fn one_row_that_is_not_understood_is_no_rows() {
        for bad in [
            "No devices were found",
            "0, GPU-3, x",
            "x, GPU-3, A, 65:00.0, 1, 1, 1, D, D",
        ] {
            assert_eq!(parse(&format!("{TWO}{bad}\n")), None, "{bad}");
        }
        assert_eq!(parse("\n"), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn no_output_panics(text in "\\PC*|([0-9a-zA-Z:., \\[\\]/-]{0,60}\n?){0,4}") {
            drop(parse(&text));
        }
    }

    #[tokio::test]
    async fn a_tool_that_is_missing_fails_or_lies_is_no_devices() {
        use std::os::unix::fs::PermissionsExt;
        assert!(devices(Path::new("/nowhere/nvidia-smi")).await.is_empty());
        let dir = tempfile::tempdir().unwrap();
        for (name, body, want) in [
            ("fails", format!("printf '{TWO}'; exit 9"), 0),
            ("lies", "echo NVIDIA-SMI has failed".to_owned(), 0),
            (
                "works",
                format!("case \"$1\" in --query-gpu=index,*) printf '{TWO}';; esac"),
                2,
            ),
        ] {
            let tool = dir.path().join(name);
            std::fs::write(&tool, format!("#!/bin/sh\n{body}\n")).unwrap();
            std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(devices(&tool).await.len(), want, "{name}");
        }
    }
}
