//! `version`: what runs where, and whether the parts fit together.

use clap::Args;
use fuse_client::Identity;
use fuse_wire_api::PageQuery;
use serde::Serialize;

use crate::VERSION;
use crate::app::App;
use crate::error::Error;
use crate::render::or_dash;

/// `version`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse version\n  fuse version --client\n\n\
    Warns when client, orchestrator and host agents are of different releases.")]
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
    hosts: Vec<HostVersion>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Server {
    url: String,
    version: String,
}

/// A host, and what its agent said last.
#[derive(Debug, Serialize)]
struct HostVersion {
    id: String,
    /// Empty before the agent was heard.
    version: String,
}

/// Asks the orchestrator of the context, if there is one.
pub(crate) async fn run(app: &App, args: VersionArgs) -> Result<(), Error> {
    let mut versions = Versions {
        client: VERSION,
        server: None,
        hosts: Vec::new(),
        warnings: Vec::new(),
    };
    if !args.client && app.context().is_ok() {
        ask(app, &mut versions).await?;
    }
    if app.io.is_json() {
        return Ok(app.io.json(&versions)?);
    }
    app.io.data(&versions.render())?;
    if versions.server.is_none() && !args.client {
        app.io
            .faint("no orchestrator is connected: fuse connect <url> --token <token>");
    }
    for warning in &versions.warnings {
        app.io.warn(warning);
    }
    Ok(())
}

async fn ask(app: &App, versions: &mut Versions) -> Result<(), Error> {
    let client = app.client()?;
    let version = client.version().await?.version;
    versions.warnings.extend(skew(VERSION, &version));
    let mut page = PageQuery::default();
    loop {
        // Who may not see the hosts still learns about the rest.
        let list = match client.hosts(&page).await {
            Ok(list) => list,
            Err(error) => {
                let reason = crate::render::api::message(&error);
                versions
                    .warnings
                    .push(format!("hosts are not shown: {reason}"));
                break;
            }
        };
        for host in list.hosts {
            let agent = host.agent.as_ref().map(|agent| agent.version.clone());
            let agent = agent.unwrap_or_default();
            versions
                .warnings
                .extend(host_skew(&host.id, &host.backend, &agent, &version));
            versions.hosts.push(HostVersion {
                id: host.id,
                version: agent,
            });
        }
        page.cursor = list.next_cursor;
        if page.cursor.is_none() {
            break;
        }
    }
    versions.server = Some(Server {
        url: client.base_url().to_string(),
        version,
    });
    Ok(())
}

impl Versions {
    fn render(&self) -> String {
        let mut text = format!("client  {}\n", self.client);
        if let Some(server) = &self.server {
            text.push_str(&format!("server  {}  ({})\n", server.version, server.url));
        }
        for host in &self.hosts {
            text.push_str(&format!(
                "host    {}  ({})\n",
                or_dash(&host.version),
                host.id
            ));
        }
        text
    }
}

/// The same for a host's agent and the orchestrator, which has to speak to it.
pub(crate) fn host_skew(id: &str, backend: &str, agent: &str, server: &str) -> Option<String> {
    let (theirs, ours) = (release(agent)?, release(server)?);
    let updater = match backend {
        "qemu" => "qemu/qemu-update.sh",
        _ => "firecracker/fc-update.sh",
    };
    (theirs != ours).then(|| {
        format!(
            "host {id} runs agent {agent} and the orchestrator is {server}; update it: \
             sudo host-agent/{updater} --to v{}   # on that host",
            server.trim_start_matches('v')
        )
    })
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
        assert_eq!(host_skew("a", "", "", "1.2.0"), None);
        assert_eq!(host_skew("a", "", "1.2.9", "1.2.0"), None);
        for (backend, updater) in [("firecracker", "fc-update.sh"), ("qemu", "qemu-update.sh")] {
            let text = host_skew("a", backend, "1.1.0", "v1.2.0").unwrap();
            let command = format!("{updater} --to v1.2.0");
            assert!(text.contains(&command), "{text}");
        }
        let text = skew("2.0.0", "1.9.9").unwrap();
        assert!(text.contains("the orchestrator is older"), "{text}");
        assert!(
            text.contains("VERSION=v2.0.0 ops/install-orchestrator.sh"),
            "{text}"
        );
    }
}
