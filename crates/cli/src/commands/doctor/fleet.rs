//! The fleet, as seen from here: the way to the orchestrator, its parts, its hosts.

use std::time::Duration;

use fuse_client::{BaseUrl, Client, Error as ClientError, Identity};
use fuse_wire_api::{Host, PageQuery};
use jiff::Timestamp;

use super::{Finding, certificate};
use crate::VERSION;
use crate::app::{App, options};
use crate::commands::version;

/// Bound of one question.
const PATIENCE: Duration = Duration::from_secs(15);
/// Hosts per page, and how many pages are looked at.
const PAGE: &str = "200";
const PAGES: usize = 50;
const RENEW: &str =
    "sudo systemctl restart orchestrator   # after renewing ORCH_TLS_CERT and ORCH_TLS_KEY";
/// A difference that signatures and leases do not mind, in seconds.
const CLOCK_TOLERANCE: i64 = 5;

/// Everything about the fleet of the context in use.
pub(super) async fn look(app: &App) -> Vec<Finding> {
    let context = match app.context() {
        Ok(context) => context,
        Err(error) => {
            return vec![Finding::skipped(
                "context",
                error.to_string(),
                "fuse connect http://<orchestrator>:8080 --token \"$ORCH_AUTH_TOKEN\" --master",
            )];
        }
    };
    let reconnect = format!(
        "fuse connect {} --token \"$ORCH_AUTH_TOKEN\" --master",
        context.base_url
    );
    let client = BaseUrl::parse(&context.base_url)
        .map_err(|error| error.to_string())
        .and_then(|url| {
            let mut options = options(url, context.token.clone());
            options.request_timeout = PATIENCE;
            options.retry_refused = false;
            Client::new(options).map_err(|error| error.to_string())
        });
    let client = match client {
        Ok(client) => client,
        Err(error) => return vec![Finding::failed("context", error, reconnect)],
    };
    let identity = match client.identity().await {
        Ok(identity) => identity,
        Err(error) => return vec![unreachable(&context.base_url, &error)],
    };
    if !identity.is_orchestrator() {
        let server = identity.server.as_deref().unwrap_or("something else");
        return vec![Finding::failed(
            "orchestrator",
            format!(
                "{} is not an orchestrator, {server} answers there",
                context.base_url
            ),
            "fuse connect http://<orchestrator>:8080 --token \"$ORCH_AUTH_TOKEN\" --master",
        )];
    }
    let mut findings = vec![Finding::ok(
        "orchestrator",
        format!("{} answers", context.base_url),
    )];
    findings.extend(identity.certificate.as_deref().and_then(|der| {
        let named = ("certificate", "the orchestrator's");
        certificate::lasts(named, der, Timestamp::now(), RENEW)
    }));
    findings.extend(clock(&identity, Timestamp::now()));
    findings.push(versions(&identity));
    findings.extend(parts(&client).await);
    findings.extend(hosts(&client, &reconnect, version::of(&identity)).await);
    findings
}

/// Nothing answers: where that is this machine's own stack, one command starts it.
fn unreachable(url: &str, error: &ClientError) -> Finding {
    let local = url.contains("://127.0.0.1") || url.contains("://localhost");
    let fix = if local {
        "fuse local up"
    } else {
        "sudo systemctl restart orchestrator   # on that host; fuse-orchestrator where it is alone"
    };
    Finding::failed("orchestrator", error.to_string(), fix)
}

fn clock(identity: &Identity, now: Timestamp) -> Option<Finding> {
    let date = identity.date.as_deref()?;
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp();
    let skew = theirs.as_second() - now.as_second();
    Some(if skew.abs() > CLOCK_TOLERANCE {
        Finding::warning(
            "clock",
            format!(
                "the orchestrator's clock is {} s {}",
                skew.abs(),
                if skew > 0 { "ahead" } else { "behind" }
            ),
            "sudo timedatectl set-ntp true   # on both machines",
        )
    } else {
        Finding::ok("clock", "client and orchestrator agree")
    })
}

fn versions(identity: &Identity) -> Finding {
    let server = version::of(identity);
    match version::skew(VERSION, server) {
        None => Finding::ok(
            "versions",
            format!("client {VERSION}, orchestrator {server}"),
        ),
        Some(text) => match text.split_once("; update it: ") {
            Some((what, fix)) => Finding::warning("versions", what, fix),
            None => Finding::warning("versions", text, "fuse version"),
        },
    }
}

/// The orchestrator's own checks: its store and its reconcile loop.
async fn parts(client: &Client) -> Vec<Finding> {
    let readiness = match client.readiness().await {
        Ok(readiness) => readiness,
        Err(error) => {
            return vec![Finding::failed(
                "ready",
                error.to_string(),
                "journalctl -u orchestrator -u fuse-orchestrator -n 50   # on its host",
            )];
        }
    };
    let part = |(name, outcome): (String, String)| {
        let (check, fix) = match name.as_str() {
            "state_store" => (
                "database",
                "sudo systemctl restart postgresql   # on the database's host",
            ),
            "reconcile" => (
                "reconcile",
                "sudo systemctl restart orchestrator   # on its host",
            ),
            "encryption_key" => (
                "encryption key",
                "sudoedit /etc/default/orchestrator   # put the key back as TOKEN_ENCRYPTION_KEY_PREVIOUS, restart",
            ),
            other => (
                other,
                "journalctl -u orchestrator -u fuse-orchestrator -n 50   # on its host",
            ),
        };
        if outcome == "ok" {
            Finding::ok(check, "ok")
        } else {
            Finding::failed(check, outcome, fix)
        }
    };
    readiness.checks.into_iter().map(part).collect()
}

async fn hosts(client: &Client, reconnect: &str, server: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut seen, mut slots, mut free) = (0_usize, 0_i64, 0_i64);
    let mut page = PageQuery {
        limit: Some(PAGE.to_owned()),
        cursor: None,
    };
    for number in 0..PAGES {
        let list = match client.hosts(&page).await {
            Ok(list) => list,
            Err(ClientError::Api(api)) if api.is_unauthorized() && api.status != 403 => {
                findings.push(Finding::failed(
                    "token",
                    "the orchestrator refuses this context's token: it must be its ORCH_AUTH_TOKEN or an API key, not a host agent's token",
                    reconnect,
                ));
                return findings;
            }
            Err(error) => {
                findings.push(Finding::failed("hosts", error.to_string(), "fuse hosts"));
                return findings;
            }
        };
        if number == 0 {
            findings.push(Finding::ok(
                "token",
                "the orchestrator takes this context's token",
            ));
        }
        for host in &list.hosts {
            seen += 1;
            if host.state == "active" {
                slots += i64::from(host.capacity.vm_count);
                free += i64::from(host.capacity.vm_count - host.allocated.vm_count);
            }
            findings.push(one(host, server));
        }
        page.cursor = list.next_cursor;
        if page.cursor.is_none() {
            break;
        }
    }
    let register =
        "fuse host register <id> --url http://<host>:8090 --token \"$FC_AGENT_TOKEN\" --max-vms 20";
    findings.push(if seen == 0 {
        Finding::warning("capacity", "no host is registered", register)
    } else if free * 10 < slots || slots == 0 {
        Finding::warning(
            "capacity",
            format!("{free} of {slots} VM slots are free"),
            register,
        )
    } else {
        Finding::ok("capacity", format!("{free} of {slots} VM slots are free"))
    });
    findings
}

fn one(host: &Host, server: &str) -> Finding {
    let check = format!("host {}", host.id);
    let (agent_name, token, flag) = match host.backend.as_str() {
        "qemu" => ("qemu-agent", "QEMU_AGENT_TOKEN", " --backend qemu"),
        _ => ("fc-agent", "FC_AGENT_TOKEN", ""),
    };
    match &host.agent {
        Some(agent) if !agent.reachable => {
            let refused = agent.error.contains("401")
                || agent.error.contains("unauthorized")
                || agent.error.contains("rejected");
            if refused {
                return Finding::failed(
                    check,
                    format!(
                        "its agent refuses the token that it was registered with: {}",
                        agent.error
                    ),
                    format!(
                        "fuse host register {} --url {}{flag} --token \"${token}\" --max-vms {}",
                        host.id, host.url, host.capacity.vm_count
                    ),
                );
            }
            Finding::failed(
                check,
                format!("its agent at {} does not answer: {}", host.url, agent.error),
                format!("sudo systemctl restart {agent_name}   # on that host"),
            )
        }
        _ if host.state != "active" => Finding::warning(
            check,
            format!("{}: nothing new is placed there", host.state),
            format!("fuse host uncordon {}", host.id),
        ),
        Some(agent) => match version::host_skew(&host.id, &host.backend, &agent.version, server) {
            Some(text) => {
                let (what, fix) = text
                    .split_once("; update it: ")
                    .unwrap_or((&text, "fuse version"));
                Finding::warning(check, what, fix)
            }
            None => Finding::ok(check, "its agent answers"),
        },
        None => Finding::ok(check, "registered; its agent was not asked yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;

    fn identity() -> Identity {
        Identity {
            status: 200,
            server: None,
            service: Some("fuse-orchestrator".to_owned()),
            version: Some("dev".to_owned()),
            date: Some("Mon, 30 Nov 2026 12:00:00 GMT".to_owned()),
            certificate: None,
        }
    }

    #[test]
    fn clocks_may_differ_a_little() {
        let at = |text: &str| clock(&identity(), text.parse().unwrap()).unwrap();
        assert_eq!(at("2026-11-30T12:00:04Z").status, Status::Ok);
        let late = at("2026-11-30T12:01:00Z");
        assert_eq!(late.status, Status::Warning);
        assert!(late.detail.contains("60 s behind"), "{late:?}");
        assert!(at("2026-11-30T11:59:00Z").detail.contains("60 s ahead"));
    }
}
