//! `version`: what runs where, and whether the parts fit together.

use clap::Args;
use fuse_client::Identity;
use serde::Serialize;

use crate::VERSION;
use crate::app::App;
use crate::error::Error;

/// `version`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse version\n  fuse version --client\n\n\
    Warns when client and orchestrator are of different releases.")]
pub(crate) struct VersionArgs {
    /// Ask nobody, show this program's own.
    #[arg(long)]
    client: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Server>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Server {
    url: String,
    version: String,
}

/// Asks the orchestrator of the context, if there is one.
pub(crate) async fn run(app: &App, args: VersionArgs) -> Result<(), Error> {
    let connected = !args.client && app.context().is_ok();
    let server = if connected {
        Some(ask(app).await?)
    } else {
        None
    };
    let skew = server
        .as_ref()
        .and_then(|server| skew(VERSION, &server.version));
    let versions = Versions {
        client: VERSION,
        server,
        warnings: skew.into_iter().collect(),
    };
    if app.io.is_json() {
        return Ok(app.io.json(&versions)?);
    }
    app.io.data(&format!("client  {}\n", versions.client))?;
    if let Some(server) = &versions.server {
        app.io
            .data(&format!("server  {}  ({})\n", server.version, server.url))?;
    } else if !args.client {
        app.io
            .faint("no orchestrator is connected: fuse connect <url> --token <token>");
    }
    for warning in &versions.warnings {
        app.io.warn(warning);
    }
    Ok(())
}

async fn ask(app: &App) -> Result<Server, Error> {
    let client = app.client()?;
    let url = client.base_url().to_string();
    let version = client.version().await?.version;
    Ok(Server { url, version })
}

/// What to say about two programs that should be of one release; unstamped builds are left alone.
pub(crate) fn skew(client: &str, server: &str) -> Option<String> {
    let (ours, theirs) = (release(client)?, release(server)?);
    let older = match ours.cmp(&theirs) {
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Less => "client",
        std::cmp::Ordering::Greater => "orchestrator",
    };
    Some(format!(
        "client {client} and orchestrator {server} are of different releases, the {older} is older; {}",
        if older == "client" {
            format!(
                "update it: VERSION=v{} ops/install-fuse.sh",
                server.trim_start_matches('v')
            )
        } else {
            format!(
                "update it: sudo VERSION=v{} ops/install-orchestrator.sh",
                client.trim_start_matches('v')
            )
        }
    ))
}

/// Major and minor: patch releases change nothing that the other side sees.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether an answer came from an orchestrator, and of which release.
pub(crate) fn of(identity: &Identity) -> &str {
    identity.version.as_deref().unwrap_or("dev")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_that_differ_are_worth_a_word() {
        for (client, server) in [
            ("1.2.3", "1.2.3"),
            ("1.2.3", "v1.2.9"),
            ("dev", "1.2.3"),
            ("1.2.3", "dev"),
            ("1.2.3", ""),
            ("1.2.0-rc.1", "1.2.0"),
        ] {
            assert_eq!(skew(client, server), None, "{client} {server}");
        }
        let text = skew("1.2.3", "1.3.0").unwrap();
        assert!(text.contains("the client is older"), "{text}");
        assert!(
            text.ends_with("VERSION=v1.3.0 ops/install-fuse.sh"),
            "{text}"
        );
        let text = skew("2.0.0", "1.9.9").unwrap();
        assert!(text.contains("the orchestrator is older"), "{text}");
        assert!(
            text.contains("VERSION=v2.0.0 ops/install-orchestrator.sh"),
            "{text}"
        );
    }
}
