//! `local`: the stack on this machine.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{confirm, done};
use crate::app::App;
use crate::config::Credentials;
use crate::error::Error;
use crate::local::status::{Program, Status};
use crate::local::{self, Layout, NAME, Ports, Step};
use crate::render::block::Block;
use crate::render::or_dash;

/// `local …`.
#[derive(Debug, Subcommand)]
pub(crate) enum LocalCommand {
    /// Start the stack, register this machine as host "local", select the context "local".
    #[command(
        after_help = "Example:\n  fuse local up\n\nRepeatable, and how to come back after `fuse local down` or a \
            reboot. Needs root for the host agent's side and asks sudo for it."
    )]
    Up(UpArgs),
    /// Stop the stack and its VMs; environments come back with the next `up`.
    #[command(after_help = "Example:\n  fuse local down")]
    Down(DownArgs),
    /// Show what runs; exits with status 1 unless everything does.
    #[command(after_help = "Example:\n  fuse local status -o json")]
    Status,
    /// One step as root, for this program itself.
    #[command(hide = true)]
    Root {
        /// The step.
        #[arg(value_enum)]
        step: Step,
    },
    /// Become a background program, for this program itself.
    #[command(hide = true)]
    Exec {
        /// The program.
        program: PathBuf,
    },
}

/// `local up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Port of the orchestrator.
    #[arg(
        long,
        env = "FUSE_LOCAL_ORCH_PORT",
        hide_env_values = true,
        default_value_t = 8080,
        value_name = "PORT"
    )]
    orchestrator_port: u16,
    /// Port of the host agent.
    #[arg(
        long,
        env = "FUSE_LOCAL_AGENT_PORT",
        hide_env_values = true,
        default_value_t = 8090,
        value_name = "PORT"
    )]
    agent_port: u16,
}

/// `local down`.
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Delete the state, environments and their disks included, and forget the context.
    #[arg(long)]
    purge: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: LocalCommand) -> Result<(), Error> {
    let layout = Layout::from_environment()?;
    match command {
        LocalCommand::Up(args) => up(app, &layout, &args).await,
        LocalCommand::Down(args) => down(app, &layout, &args).await,
        LocalCommand::Status => status(app, &layout).await,
        LocalCommand::Root { step } => Ok(app.io.data(&local::run_step(&layout, step)?)?),
        LocalCommand::Exec { program } => Err(local::become_daemon(&program).into()),
    }
}

async fn up(app: &App, layout: &Layout, args: &UpArgs) -> Result<(), Error> {
    #[derive(Serialize)]
    struct Up<'a> {
        id: &'a str,
        action: &'a str,
        orchestrator_url: &'a str,
        agent_url: &'a str,
        vmm: &'a str,
        reason: &'a str,
    }
    let ports = Ports {
        orchestrator: args.orchestrator_port,
        agent: args.agent_port,
    };
    // Dropping the work half-way stops what it started.
    let stack = tokio::select! {
        stack = local::up::up(layout, ports, app.io) => stack?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            return Err(Error::Status(130));
        }
    };
    let credentials = Credentials {
        base_url: stack.url.clone(),
        token: Some(stack.token.clone()),
        master: true,
    };
    app.file.update(|config| config.add(NAME, credentials))?;
    let choice = &stack.choice;
    let state = if stack.was_up {
        "was up already"
    } else {
        "is up"
    };
    app.io.success(&format!(
        "the local stack {state}: orchestrator {}, host agent {}",
        stack.url, stack.agent_url
    ));
    if choice.emulated {
        app.io.note(&format!(
            "VMM: fc-emulator ({}). guests are real Linux VMs, emulated by QEMU and therefore slow; \
             the host carries the label fuse.emulated=true",
            choice.reason
        ));
    } else {
        app.io.note(&format!(
            "VMM: firecracker {} ({})",
            choice.program.display(),
            choice.reason
        ));
    }
    app.io.note(&format!(
        "context \"{NAME}\" is selected; next: fuse up -f examples/hello/Fusefile"
    ));
    if app.io.is_json() {
        app.io.json(&Up {
            id: NAME,
            action: "up",
            orchestrator_url: &stack.url,
            agent_url: &stack.agent_url,
            vmm: choice.name(),
            reason: &choice.reason,
        })?;
    }
    Ok(())
}

async fn down(app: &App, layout: &Layout, args: &DownArgs) -> Result<(), Error> {
    if !args.purge {
        let stopped = local::down::stop(layout, app.io)?;
        let line = if stopped.any {
            "the local stack is down; its environments come back with `fuse local up`"
        } else {
            "the local stack was not running"
        };
        return done(app, NAME, "down", line);
    }
    confirm(
        app,
        args.yes,
        &format!(
            "Delete the local stack in {}, its environments included?",
            layout.root.display()
        ),
    )?;
    let urls = local::down::urls(layout);
    local::down::purge(layout, app.io).await?;
    app.file.update(|config| {
        let ours = config
            .context(NAME)
            .is_some_and(|context| urls.contains(&context.base_url));
        if ours {
            config.remove(NAME);
        }
    })?;
    done(
        app,
        NAME,
        "purge",
        "the local stack is gone, and so is its context",
    )
}

async fn status(app: &App, layout: &Layout) -> Result<(), Error> {
    let status = local::status::look(layout).await;
    if app.io.is_json() {
        app.io.json(&status)?;
    } else {
        app.io.data(&block(&status))?;
    }
    if status.is_up() {
        Ok(())
    } else {
        Err(Error::Status(1))
    }
}

fn block(status: &Status) -> String {
    let process = |program: &Program| match program.pid {
        Some(pid) => format!("running (process {pid})"),
        None => "not running".to_owned(),
    };
    let health = if status.orchestrator.healthy == Some(true) {
        "healthy"
    } else {
        "unreachable"
    };
    let url = status.orchestrator.url.as_deref().unwrap_or_default();
    let mut block = Block::new();
    block
        .row("orchestrator", process(&status.orchestrator))
        .row("host agent", process(&status.agent))
        .row("api", format!("{health}  {}", or_dash(url)));
    if let (Some(vmm), Some(reason)) = (&status.vmm, &status.reason) {
        block.row("vmm", format!("{vmm} ({reason})"));
    }
    block.render()
}
