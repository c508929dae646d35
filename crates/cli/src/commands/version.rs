//! `version`: what runs where, and whether the parts fit together.

use std::collections::BTreeMap;

use clap::Args;
use fuse_client::{Client, Error as ClientError, Identity};
use fuse_wire_api::{Environment, Host, PageQuery};
use serde::Serialize;

use super::paging::all_environments;
use crate::VERSION;
use crate::app::App;
use crate::error::Error;
use crate::render::or_dash;

/// `version`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse version\n  fuse version --client\n\n\
    Warns when client, orchestrator, host agents and the agents in guests are of different releases.")]
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
    guests: Vec<GuestVersion>,
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

/// How many guests have an agent of one release.
#[derive(Debug, Serialize)]
struct GuestVersion {
    /// Empty where it is not known, as on hosts of an older release.
    version: String,
    count: usize,
    /// The first of them, by id.
    environments: Vec<String>,
}

/// How many guests of a release are named.
const NAMED: usize = 5;

/// Asks the orchestrator of the context, if there is one.
pub(crate) async fn run(app: &App, args: VersionArgs) -> Result<(), Error> {
    let mut versions = Versions {
        client: VERSION,
        server: None,
        hosts: Vec::new(),
        guests: Vec::new(),
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
    // Who may not see hosts or environments still learns about the rest.
    match hosts(&client).await {
        Ok(hosts) => versions.add_hosts(hosts, &version),
        Err(error) => versions.warn_hidden("hosts", &error),
    }
    match all_environments(&client, "").await {
        Ok(environments) => versions.add_guests(&environments, &version),
        Err(error) => versions.warn_hidden("guests", &error),
    }
    versions.server = Some(Server {
        url: client.base_url().to_string(),
        version,
    });
    Ok(())
}

async fn hosts(client: &Client) -> Result<Vec<Host>, ClientError> {
    let (mut hosts, mut page) = (Vec::new(), PageQuery::default());
    loop {
        let list = client.hosts(&page).await?;
        hosts.extend(list.hosts);
        page.cursor = list.next_cursor;
        if page.cursor.is_none() {
            return Ok(hosts);
        }
    }
}

impl Versions {
    fn warn_hidden(&mut self, what: &str, error: &ClientError) {
        let reason = crate::render::api::message(error);
        self.warnings
            .push(format!("{what} are not shown: {reason}"));
    }

    fn add_hosts(&mut self, hosts: Vec<Host>, server: &str) {
        for host in hosts {
            let version = host.agent.map(|agent| agent.version).unwrap_or_default();
            let warning = host_skew(&host.id, &host.backend, &version, server);
            self.warnings.extend(warning);
            self.hosts.push(HostVersion {
                id: host.id,
                version,
            });
        }
    }

    fn add_guests(&mut self, environments: &[Environment], server: &str) {
        let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for environment in environments.iter().filter(|one| one.state == "running") {
            let of_version = by_version.entry(&environment.guest_version).or_default();
            of_version.push(&environment.id);
        }
        for (version, ids) in by_version {
            let named = ids.iter().take(NAMED).map(ToString::to_string).collect();
            let guests = GuestVersion {
                version: version.to_owned(),
                count: ids.len(),
                environments: named,
            };
            self.warnings.extend(guest_skew(&guests, server));
            self.guests.push(guests);
        }
    }

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
        for guests in &self.guests {
            text.push_str(&format!(
                "guests  {}  ({})\n",
                or_dash(&guests.version),
                guests.count
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

/// The same for the agents in guests. They are of the image that their host booted them with, so a
/// guest gets another one only by booting again; one out of a live snapshot brings its own along.
fn guest_skew(guests: &GuestVersion, server: &str) -> Option<String> {
    let (theirs, ours) = (release(&guests.version)?, release(server)?);
    let more = guests.count.saturating_sub(guests.environments.len());
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (theirs != ours).then(|| {
        format!(
            "the guest agent of {}{more} is {} and the orchestrator is {server}; update the image of \
             their hosts and create them anew when they are due: \
             sudo host-agent/firecracker/fc-update.sh --to v{}   # on the host",
            guests.environments.join(", "),
            guests.version,
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
        let guests = |version: &str, count, named: &[&str]| GuestVersion {
            version: version.to_owned(),
            count,
            environments: named.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(guest_skew(&guests("1.2.9", 1, &["a"]), "1.2.0"), None);
        assert_eq!(guest_skew(&guests("", 1, &["a"]), "1.2.0"), None);
        let text = guest_skew(&guests("1.1.0", 7, &["a", "b"]), "1.2.0").unwrap();
        let begin = "the guest agent of a, b and 5 more is 1.1.0 and the orchestrator is 1.2.0";
        assert!(text.starts_with(begin), "{text}");
        let text = skew("2.0.0", "1.9.9").unwrap();
        assert!(text.contains("the orchestrator is older"), "{text}");
        assert!(
            text.contains("VERSION=v2.0.0 ops/install-orchestrator.sh"),
            "{text}"
        );
    }
}
