//! The command tree, and how an argument that does not fit it is answered.
//!
//! Each group keeps its own flags in its own file under `commands`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand};

use crate::commands::api_key::ApiKeyCommand;
use crate::commands::build::BuildArgs;
use crate::commands::compile::CompileArgs;
use crate::commands::completion::CompletionArgs;
use crate::commands::connect::ConnectArgs;
use crate::commands::context::ContextCommand;
use crate::commands::dead_letters::DeadLettersArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::environment::EnvironmentCommand;
use crate::commands::host::{HostArgs, HostsArgs};
use crate::commands::init::InitArgs;
use crate::commands::local::LocalCommand;
use crate::commands::man::ManArgs;
use crate::commands::snapshot::SnapshotCommand;
use crate::commands::status::StatusArgs;
use crate::commands::task::TaskCommand;
use crate::commands::up::UpArgs;
use crate::commands::validate::ValidateArgs;
use crate::commands::version::VersionArgs;
use crate::error::Report;
use crate::io::{Format, Io};
use crate::{VERSION, format_of_raw_args};

const AFTER: &str = "\
Start here:
  fuse local up                               a complete stack on this machine
  fuse up -f examples/hello/Fusefile          an environment from a Fusefile
  fuse connect http://10.0.0.5:8080 --token \"$ORCH_AUTH_TOKEN\" --master";

/// Run disposable microVMs on your own machines.
#[derive(Debug, Parser)]
#[command(
    name = "fuse",
    // The version line is `fuse version <v>`.
    display_name = "fuse version",
    version = VERSION,
    disable_version_flag = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = AFTER,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Output format: table or json.
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        hide_possible_values = true,
        default_value_t = Format::Table,
        value_name = "FORMAT"
    )]
    pub(crate) output: Format,
    /// Use this context, for this call only.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Use this configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the version.
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Remember an orchestrator, after checking that it is one and takes the token.
    Connect(ConnectArgs),
    /// The orchestrators this machine knows.
    #[command(
        visible_aliases = ["contexts", "ctx"],
        arg_required_else_help = true,
        after_help = "Example:\n  fuse context use prod"
    )]
    Context {
        /// What to do.
        #[command(subcommand)]
        command: ContextCommand,
    },
    /// List the hosts of the fleet, or act on one.
    #[command(visible_alias = "host-list")]
    Hosts(HostsArgs),
    /// Select or show the active host, or act on one.
    Host(HostArgs),
    /// MicroVMs: create, look at, run commands in, destroy.
    #[command(
        visible_aliases = ["environments", "env", "envs"],
        arg_required_else_help = true,
        after_help = "Example:\n  fuse environment exec fuse-hello -- uname -a"
    )]
    Environment {
        /// What to do.
        #[command(subcommand)]
        command: EnvironmentCommand,
    },
    /// Snapshots of environments: take, look at, restore, delete.
    #[command(
        visible_aliases = ["snapshots", "snap"],
        arg_required_else_help = true,
        after_help = "Example:\n  fuse snapshot create fuse-hello --comment before-upgrade"
    )]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// What became of a task, readable after its environment is gone.
    #[command(
        visible_alias = "tasks",
        arg_required_else_help = true,
        after_help = "Example:\n  fuse task logs hello"
    )]
    Task {
        /// What to do.
        #[command(subcommand)]
        command: TaskCommand,
    },
    /// Create an environment from a Fusefile and wait until it runs.
    Up(Box<UpArgs>),
    /// Run the build steps once and keep the result as a snapshot to boot from.
    Build(Box<BuildArgs>),
    /// Write a Fusefile to start from.
    Init(InitArgs),
    /// Check a Fusefile and say everything that is wrong with it.
    Validate(ValidateArgs),
    /// Print what a Fusefile compiles to.
    Compile(CompileArgs),
    /// Show the context, the active host and what runs.
    Status(StatusArgs),
    /// What was given up on and needs a person (master token).
    DeadLetters(DeadLettersArgs),
    /// Keys that let applications in (master token).
    #[command(
        name = "apikeys",
        visible_aliases = ["apikey", "keys"],
        arg_required_else_help = true,
        after_help = "Example:\n  fuse apikeys create --label ci"
    )]
    ApiKeys {
        /// What to do.
        #[command(subcommand)]
        command: ApiKeyCommand,
    },
    /// A complete stack on this machine: orchestrator, host agent, one host.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  fuse local up && fuse up -f examples/hello/Fusefile"
    )]
    Local {
        /// What to do.
        #[command(subcommand)]
        command: LocalCommand,
    },
    /// Look for what is wrong with the fleet and this machine, and say how to mend it.
    Doctor(DoctorArgs),
    /// Show what runs where, and whether the releases fit together.
    Version(VersionArgs),
    /// Print the completion script of a shell.
    Completion(CompletionArgs),
    /// Write the manual pages of all commands.
    Man(ManArgs),
}

/// Answers arguments that do not parse: help and version go to stdout, anything else is an error.
pub(crate) fn refuse(refused: &clap::Error) -> ExitCode {
    let io = Io::new(format_of_raw_args());
    let rendered = refused.render().ansi().to_string();
    match refused.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            if io.data(&rendered).is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        _ => {
            let plain = refused.render().to_string();
            let text = plain.strip_prefix("error: ").unwrap_or(&plain).trim_end();
            Report {
                code: "usage",
                message: text.to_owned(),
                request_id: None,
            }
            .print(io);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Every command that does something shows how in its help.
    #[test]
    fn every_command_has_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            if command.get_name() != "help" && !command.is_hide_set() {
                let after = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(after.contains("fuse "), "{path} has no example");
            }
            for sub in command.get_subcommands() {
                walk(sub, &path);
            }
        }
        walk(&Cli::command(), "");
    }

    /// A line as a shell splits it, as far as examples need that: quotes of both kinds.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in line.chars() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '"' | '\'') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (None, ' ') => words.extend(word.take()),
                _ => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }

    /// What the help shows as a command line must be one.
    #[test]
    fn every_example_parses() {
        fn walk(command: &clap::Command, seen: &mut Vec<String>) {
            let after = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            seen.extend(
                after
                    .lines()
                    .map(str::trim)
                    // A redirection is the shell's.
                    .filter(|line| line.starts_with("fuse ") && !line.contains(" > "))
                    .map(str::to_owned),
            );
            for sub in command.get_subcommands() {
                walk(sub, seen);
            }
        }
        let mut examples = Vec::new();
        walk(&Cli::command(), &mut examples);
        assert!(examples.len() > 15, "{examples:?}");
        for example in examples {
            for part in example.split(" && ") {
                let line = part.split("  ").next().unwrap_or(part).trim();
                let outcome = Cli::try_parse_from(words(line));
                assert!(outcome.is_ok(), "{line}: {}", outcome.unwrap_err());
            }
        }
    }
}
