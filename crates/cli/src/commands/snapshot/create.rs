//! `snapshot create`.

use std::collections::BTreeMap;

use clap::Args;
use fuse_wire_api::CreateSnapshot;
use inquire::{CustomType, Select, Text};

use super::{Error, show};
use crate::app::App;
use crate::error::Error as CliError;

/// `snapshot create`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse snapshot create fuse-hello --comment \"before the upgrade\"\n  \
    fuse snapshot create fuse-hello --live --retention 86400\n\n\
    The environment must be running. A live snapshot also holds memory and processors, and only \
    a restore on its own host can use those."
)]
pub(crate) struct CreateArgs {
    /// Id of the environment.
    pub(crate) vm_id: String,
    /// What it is for.
    #[arg(long, value_name = "TEXT")]
    pub(crate) comment: Option<String>,
    /// manual or auto, or a word of your own.
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// Seconds after which it may be collected; 0 = forever, unless the fleet has a default.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) retention: Option<i64>,
    /// A copy elsewhere to be recorded with it; nothing is copied.
    #[arg(long, value_name = "URL")]
    pub(crate) export_ref: Option<String>,
    /// Anything to remember, as key=value; repeatable. `name` is what lists can look for.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<String>,
    /// With memory and processors.
    #[arg(long)]
    pub(crate) live: bool,
}

/// Takes it.
pub(crate) async fn run(app: &App, mut args: CreateArgs) -> Result<(), CliError> {
    if app.io.interactive() && nothing_given(&args) {
        form(&mut args)?;
    }
    let request = request(&args)?;
    let snapshot = app.client()?.create_snapshot(&args.vm_id, &request).await?;
    app.io.success(&format!(
        "created snapshot {} of environment {}",
        snapshot.id, snapshot.vm_id
    ));
    if args.live && snapshot.kind != "live" {
        app.io
            .warn("the host took a disk snapshot: it cannot capture memory");
    }
    show(app, &snapshot)
}

fn nothing_given(args: &CreateArgs) -> bool {
    args.comment.is_none()
        && args.mode.is_none()
        && args.retention.is_none()
        && args.export_ref.is_none()
        && args.metadata.is_empty()
        && !args.live
}

fn request(args: &CreateArgs) -> Result<CreateSnapshot, Error> {
    let retention_seconds = args.retention.unwrap_or_default();
    if retention_seconds < 0 {
        return Err(Error::Retention);
    }
    Ok(CreateSnapshot {
        comment: args.comment.clone().unwrap_or_default(),
        mode: args.mode.clone().unwrap_or_default(),
        retention_seconds,
        metadata: metadata(&args.metadata)?,
        export_ref: args.export_ref.clone().unwrap_or_default(),
        live: args.live,
        ..CreateSnapshot::default()
    })
}

fn metadata(pairs: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Error::MetadataShape {
            value: text.clone(),
        }),
    };
    pairs.iter().map(pair).collect()
}

fn form(args: &mut CreateArgs) -> Result<(), CliError> {
    args.comment = Some(Text::new("Comment").prompt()?);
    let mode = Select::new("Mode", vec!["manual", "auto"]).prompt()?;
    args.mode = Some(mode.to_owned());
    let retention = CustomType::<i64>::new("Retention (seconds)")
        .with_default(0)
        .with_help_message("0 = keep forever")
        .with_error_message("a whole number")
        .prompt()?;
    args.retention = Some(retention);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_key_and_value() {
        let read = metadata(&["a=b=c".to_owned(), "name=".to_owned()]).unwrap();
        assert_eq!((&*read["a"], &*read["name"]), ("b=c", ""));
        for bad in ["", "a", "=b"] {
            assert!(metadata(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
