//! `environment exec`: the guest's streams become ours, and so does its exit status.

mod streams;

use clap::Args;
use fuse_client::Client;
use fuse_wire_api::ExecRequest;

use self::streams::Ended;
use super::{Error, of_environment};
use crate::app::App;
use crate::commands::flags::duration;
use crate::error::Error as CliError;

/// The server's longest limit (milliseconds); longer ones are cut there.
const LONGEST_MS: i64 = 600_000;

/// `environment exec`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse environment exec fuse-hello -- uname -a\n  \
    fuse environment exec fuse-hello --shell \"ls\" --timeout 10m\n  \
    tar -c . | fuse environment exec -i fuse-hello -- tar -x -C /srv\n\n\
    Output is shown as it is produced; with -o json it is one object at the end.\n\
    Needs the master token: API keys have no right to run commands."
)]
pub(crate) struct ExecArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Keep the command's input open and pass ours on, until it ends.
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// One line, run by `sh -lc` in the guest.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "LINE"
    )]
    pub(crate) shell: String,
    /// Limit of the command, such as 90s or 10m [default: 60s, at most 10m].
    #[arg(
        long,
        default_value = "0",
        hide_default_value = true,
        value_name = "DURATION"
    )]
    pub(crate) timeout: String,
    /// The command and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(app: &App, args: ExecArgs) -> Result<(), CliError> {
    let request = request(&args)?;
    if args.interactive && app.io.is_json() {
        return Err(Error::InputWithJson.into());
    }
    if request.timeout_ms > LONGEST_MS {
        app.io
            .warn("the orchestrator allows 10m at most; the command is stopped then");
    }
    let client = app.client()?;
    let exit_code = if app.io.is_json() {
        let result = of_environment(app, &client, &args.id, async |id| {
            client.exec(id, &request).await
        });
        let result = result.await?;
        app.io.json(&result)?;
        result.exit_code
    } else {
        let ended = streamed(app, &client, &args, &request).await?;
        if ended.timed_out {
            app.io
                .warn("the command ran into its time limit and was killed");
        }
        ended.exit_code
    };
    match status(exit_code) {
        0 => Ok(()),
        code => Err(CliError::Status(code)),
    }
}

async fn streamed(
    app: &App,
    client: &Client,
    args: &ExecArgs,
    request: &ExecRequest,
) -> Result<Ended, CliError> {
    if args.interactive {
        let session = of_environment(app, client, &args.id, async |id| {
            client.exec_session(id, request).await
        });
        return streams::relay(session.await?).await;
    }
    let stream = of_environment(app, client, &args.id, async |id| {
        client.exec_stream(id, request).await
    });
    streams::show(stream.await?).await
}

fn request(args: &ExecArgs) -> Result<ExecRequest, Error> {
    match (args.command.is_empty(), args.shell.is_empty()) {
        (true, true) => return Err(Error::CommandMissing),
        (false, false) => return Err(Error::CommandAndShell),
        _ => {}
    }
    Ok(ExecRequest {
        cmd: args.command.clone(),
        shell: args.shell.clone(),
        timeout_ms: timeout_ms(&args.timeout)?,
    })
}

/// `0` leaves the limit to the server; otherwise a duration with units.
fn timeout_ms(text: &str) -> Result<i64, Error> {
    let bad = || Error::Timeout {
        value: text.to_owned(),
    };
    if text == "0" {
        return Ok(0);
    }
    let duration = duration(text).ok_or_else(bad)?;
    // A limit below a millisecond must not turn into "no limit given".
    let milliseconds = i64::try_from(duration.as_millis()).map_err(|_| bad())?;
    Ok(if duration.is_zero() {
        0
    } else {
        milliseconds.max(1)
    })
}

/// The guest's status as ours. Statuses are 0 to 255; anything else is a failure all the same.
fn status(exit_code: i32) -> u8 {
    u8::try_from(exit_code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        assert_eq!(timeout_ms("0").unwrap(), 0);
        assert_eq!(timeout_ms("90s").unwrap(), 90_000);
        assert_eq!(timeout_ms("10m").unwrap(), 600_000);
        assert_eq!(timeout_ms("1m30s").unwrap(), 90_000);
        assert_eq!(timeout_ms("500ms").unwrap(), 500);
        assert_eq!(timeout_ms("10us").unwrap(), 1);
        for bad in ["", "10", "-5s", "x", "10 parsecs"] {
            assert!(timeout_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_of_two_forms() {
        let args = |shell: &str, command: &[&str]| ExecArgs {
            id: "a".into(),
            shell: shell.into(),
            timeout: "0".into(),
            interactive: false,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
        };
        assert!(matches!(
            request(&args("", &[])),
            Err(Error::CommandMissing)
        ));
        assert!(matches!(
            request(&args("a", &["b"])),
            Err(Error::CommandAndShell)
        ));
        assert_eq!(request(&args("", &["ls", ""])).unwrap().cmd, ["ls", ""]);
        assert_eq!(request(&args("ls | wc", &[])).unwrap().shell, "ls | wc");
    }

    #[test]
    fn statuses() {
        assert_eq!((status(0), status(3), status(137)), (0, 3, 137));
        assert_eq!((status(-1), status(256)), (1, 1));
    }
}
