//! `doctor`: looks at a fleet and at this machine, changes nothing, and ends each finding with the
//! command that mends it.

mod certificate;
mod fleet;
mod machine;
mod socket;
mod system;

use std::path::PathBuf;

use clap::Args;
use owo_colors::OwoColorize as _;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::error::Error;

/// `doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse doctor\n  fuse doctor --machine -o json\n\n\
    Looks at the fleet of the context in use and, on a machine with a host agent, at the machine; as root \
    it boots a guest there. Exits with status 1 when something is broken; warnings do not count."
)]
pub(crate) struct DoctorArgs {
    /// Look at this machine only, host agent or not.
    #[arg(long, conflicts_with = "fleet")]
    machine: bool,
    /// Look at the fleet only.
    #[arg(long)]
    fleet: bool,
    /// Do not boot a guest.
    #[arg(long)]
    no_boot: bool,
    /// Directory of the host agent, on hosts that run Firecracker.
    #[arg(
        long,
        env = "FC_DIR",
        hide_env_values = true,
        default_value = "/var/lib/fuse",
        value_name = "DIR"
    )]
    fc_dir: PathBuf,
    /// Directory of the host agent, on hosts that give GPUs to guests.
    #[arg(
        long,
        env = "QEMU_DIR",
        hide_env_values = true,
        default_value = "/var/lib/fuse-gpu",
        value_name = "DIR"
    )]
    qemu_dir: PathBuf,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// As it should be.
    Ok,
    /// Works, but not for ever or not well.
    Warning,
    /// Does not work.
    Failed,
    /// Could not be looked at.
    Skipped,
}

/// One thing that was looked at. Agents print theirs in the same form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Finding {
    /// Stable name.
    check: String,
    /// How it is.
    status: Status,
    /// What was seen.
    detail: String,
    /// The command that mends it; absent when nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn ok(check: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(check, Status::Ok, detail, None)
    }

    fn warning(
        check: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::new(check, Status::Warning, detail, Some(fix.into()))
    }

    fn failed(check: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, Status::Failed, detail, Some(fix.into()))
    }

    fn skipped(
        check: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::new(check, Status::Skipped, detail, Some(fix.into()))
    }

    fn new(
        check: impl Into<String>,
        status: Status,
        detail: impl Into<String>,
        fix: Option<String>,
    ) -> Self {
        Self {
            check: check.into(),
            status,
            detail: detail.into(),
            fix,
        }
    }

    fn render(&self) -> String {
        let word = match self.status {
            Status::Ok => "ok     ".green().to_string(),
            Status::Warning => "warning".yellow().to_string(),
            Status::Failed => "failed ".red().to_string(),
            Status::Skipped => "skipped".dimmed().to_string(),
        };
        // What a peer said may have lines; a finding is one.
        let detail = self.detail.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut text = format!("{word}  {}: {detail}\n", self.check);
        if let Some(fix) = &self.fix {
            text.push_str(&format!("         fix: {}\n", fix.bold()));
        }
        text
    }
}

/// Looks and reports.
pub(crate) async fn run(app: &App, args: DoctorArgs) -> Result<(), Error> {
    let mut findings = Vec::new();
    if !args.machine {
        findings.extend(fleet::look(app).await);
    }
    let hosts = hosts(&args);
    if !hosts.is_empty() {
        findings.extend(system::look().await);
    }
    for host in hosts {
        findings.extend(machine::look(&host, !args.no_boot).await);
    }
    report(app, &findings)
}

/// What this machine is a host of, or was going to be; one was asked for if `--machine` was.
fn hosts(args: &DoctorArgs) -> Vec<machine::Host> {
    if args.fleet {
        return Vec::new();
    }
    let (gpus, plain) = (
        machine::Host::at(&machine::QEMU, &args.qemu_dir),
        machine::Host::at(&machine::FIRECRACKER, &args.fc_dir),
    );
    match (plain.is_set_up(), gpus.is_set_up()) {
        (true, true) => vec![plain, gpus],
        (false, true) => vec![gpus],
        (false, false) if !args.machine && !plain.has_program() => Vec::new(),
        _ => vec![plain],
    }
}

fn report(app: &App, findings: &[Finding]) -> Result<(), Error> {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        findings: &'a [Finding],
    }
    let failed = count(findings, Status::Failed);
    if app.io.is_json() {
        app.io.json(&Report {
            ok: failed == 0,
            findings,
        })?;
    } else {
        let text: String = findings.iter().map(Finding::render).collect();
        app.io.data(&text)?;
        let warnings = count(findings, Status::Warning);
        match (failed, warnings) {
            (0, 0) => app.io.success("nothing is wrong"),
            (0, _) => app
                .io
                .note(&format!("nothing is broken; warnings: {warnings}")),
            _ => app
                .io
                .note(&format!("broken: {failed}, warnings: {warnings}")),
        }
    }
    if failed == 0 {
        Ok(())
    } else {
        Err(Error::Status(1))
    }
}

fn count(findings: &[Finding], status: Status) -> usize {
    findings.iter().filter(|f| f.status == status).count()
}
