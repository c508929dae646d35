//! `completion`: shell completion scripts.

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use crate::app::App;
use crate::args::Cli;
use crate::error::Error;

/// The shells there are scripts for.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Target {
    /// Bash.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish.
    Fish,
    /// PowerShell.
    Powershell,
}

/// `completion`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  fuse completion bash\n\nTo load it in every new bash:\n  \
    fuse completion bash > ~/.local/share/bash-completion/completions/fuse"
)]
pub(crate) struct CompletionArgs {
    /// Which shell.
    #[arg(value_enum)]
    pub(crate) shell: Target,
}

/// Prints the script.
pub(crate) fn run(app: &App, args: &CompletionArgs) -> Result<(), Error> {
    let shell = match args.shell {
        Target::Bash => Shell::Bash,
        Target::Zsh => Shell::Zsh,
        Target::Fish => Shell::Fish,
        Target::Powershell => Shell::PowerShell,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fuse", &mut script);
    app.io.data(&String::from_utf8_lossy(&script))?;
    Ok(())
}
