//! `connect`: find out what is at an address, then remember it.
//!
//! Invariant: nothing is saved unless every step of the probe passed (or `--no-verify` was given),
//! and every refusal names the layer at fault: the network, the service, or the token.

use clap::Args;
use fuse_client::{ApiError, BaseUrl, BaseUrlError, Client, Identity, Token};
use fuse_wire_api::PageQuery;

use super::done;
use super::token_file::TokenFileArgs;
use crate::app::{App, options};
use crate::config::Credentials;
use crate::error::Error as CliError;

/// Why an orchestrator was not connected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The address is not one.
    #[error(transparent)]
    Url(#[from] BaseUrlError),
    /// Nothing answered.
    #[error(
        "no orchestrator at {url}: {reason}. is it running? it listens on port 8080 unless told \
         otherwise; --no-verify saves the context without asking"
    )]
    NoAnswer {
        /// The address.
        url: String,
        /// Why.
        reason: String,
    },
    /// Something else answered.
    #[error(
        "{url} is not a fuse orchestrator: {what} answered{hint}. the orchestrator listens on 8080, \
         a host agent on 8090"
    )]
    WrongService {
        /// The address.
        url: String,
        /// What answered.
        what: String,
        /// What it probably is.
        hint: &'static str,
    },
    /// The orchestrator does not take the token.
    #[error(
        "the orchestrator at {url} rejected the token. it must be its ORCH_AUTH_TOKEN (or an API key), \
         not a host agent token{hint}"
    )]
    TokenRejected {
        /// The address.
        url: String,
        /// What the token probably is.
        hint: &'static str,
        /// What the orchestrator said.
        api: Box<ApiError>,
    },
    /// The name is taken by another orchestrator.
    #[error(
        "context \"{name}\" already names {other}: choose another name with --name, \
         or pass --name {name} to replace it"
    )]
    NameTaken {
        /// The derived name.
        name: String,
        /// What it names.
        other: String,
    },
}

impl Error {
    /// The orchestrator's error behind it, if any.
    pub(crate) fn api(&self) -> Option<&ApiError> {
        match self {
            Self::TokenRejected { api, .. } => Some(api),
            _ => None,
        }
    }
}

/// `connect`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  fuse connect http://10.0.0.5:8080 --token \"$ORCH_AUTH_TOKEN\" --master"
)]
pub(crate) struct ConnectArgs {
    /// Address of the orchestrator, scheme included.
    pub(crate) url: String,
    /// The orchestrator's own token (ORCH_AUTH_TOKEN) or an API key; not a host agent's token.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TOKEN"
    )]
    pub(crate) token: String,
    #[command(flatten)]
    pub(crate) file: TokenFileArgs,
    /// Name of the context [default: the host name of the URL].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Note that the token is the master token.
    #[arg(long)]
    pub(crate) master: bool,
    /// Save without asking the orchestrator anything.
    #[arg(long)]
    pub(crate) no_verify: bool,
}

/// What the probe found out about credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// The token (or its absence) was not refused.
    Open,
    /// There is no token and the orchestrator wants one.
    TokenNeeded,
}

/// Probes and saves.
pub(crate) async fn run(app: &App, args: ConnectArgs) -> Result<(), CliError> {
    let base_url = BaseUrl::parse(&args.url).map_err(Error::Url)?;
    if base_url.stripped_prefix() {
        app.io.note(&format!(
            "using {base_url}: the /v1 prefix is part of the API, not of its address"
        ));
    }
    let name = choose_name(app, &args, &base_url)?;
    let given = args.file.read()?.unwrap_or_else(|| args.token.clone());
    let given = Some(given.trim())
        .filter(|token| !token.is_empty())
        .map(Token::new);
    let url = base_url.to_string();
    let stored = app
        .config
        .context(&name)
        .filter(|context| context.base_url == url);
    let token = given
        .clone()
        .or_else(|| stored.and_then(|context| context.token.clone()));

    let access = if args.no_verify {
        Access::Open
    } else {
        probe(&base_url, token.as_ref()).await?
    };
    let credentials = Credentials {
        base_url: url.clone(),
        token: given,
        master: args.master,
    };
    let added = app.file.update(|config| config.add(&name, credentials))?;

    if added.kept_token {
        app.io
            .note("kept the token stored for this address; --token replaces it");
    }
    if added.dropped_active_host {
        app.io
            .note("the address changed, so the active host was cleared");
    }
    match (token.is_some(), access) {
        (_, Access::TokenNeeded) => app.io.warn(
            "this orchestrator requires a token: run `fuse connect <url> --token <token>` with its \
             ORCH_AUTH_TOKEN or an API key",
        ),
        (false, Access::Open) => {
            app.io.warn(
                "no token: this works only while the orchestrator runs without authentication",
            );
        }
        (true, Access::Open) => {}
    }
    done(
        app,
        &name,
        "connect",
        &format!("connected: context \"{name}\" -> {url}"),
    )
}

/// The context's name: as given, else the host name; a host name that already stands for another
/// address is told apart by the port, so that two local orchestrators do not overwrite each other.
fn choose_name(app: &App, args: &ConnectArgs, base_url: &BaseUrl) -> Result<String, Error> {
    if let Some(name) = args.name.as_deref().filter(|name| !name.is_empty()) {
        return Ok(name.to_owned());
    }
    let url = base_url.to_string();
    let free = |name: &str| {
        app.config
            .context(name)
            .is_none_or(|known| known.base_url == url)
    };
    let host = base_url.host().trim_matches(['[', ']']).to_owned();
    if free(&host) {
        return Ok(host);
    }
    let with_port = format!("{host}-{}", base_url.port());
    if free(&with_port) {
        return Ok(with_port);
    }
    let other = app
        .config
        .context(&host)
        .map(|known| known.base_url.clone())
        .unwrap_or_default();
    Err(Error::NameTaken { name: host, other })
}

/// Three questions, each with its own answer: does anything answer, is it an orchestrator, does it
/// take the token.
async fn probe(base_url: &BaseUrl, token: Option<&Token>) -> Result<Access, CliError> {
    let mut options = options(base_url.clone(), token.cloned());
    options.retry_refused = false;
    let client = Client::new(options)?;
    let url = base_url.to_string();

    let identity = client.identity().await.map_err(|error| match error {
        fuse_client::Error::Transport { reason, .. } => Error::NoAnswer {
            url: url.clone(),
            reason: reason.to_string(),
        },
        other => Error::NoAnswer {
            url: url.clone(),
            reason: other.to_string(),
        },
    })?;
    if !identity.is_orchestrator() {
        let (what, hint) = describe(&identity);
        return Err(Error::WrongService { url, what, hint }.into());
    }
    let one = PageQuery {
        limit: Some("1".to_owned()),
        cursor: None,
    };
    match client.hosts(&one).await {
        // Anything but a refusal of the credentials says nothing against the token.
        Err(fuse_client::Error::Api(api)) if rejects_token(&api) => match token {
            Some(token) => Err(Error::TokenRejected {
                url,
                hint: token_kind(token),
                api: Box::new(api),
            }
            .into()),
            None => Ok(Access::TokenNeeded),
        },
        _ => Ok(Access::Open),
    }
}

/// A 403 is a matter of rights, not of the token, even when its code is `unauthorized`.
fn rejects_token(api: &ApiError) -> bool {
    api.is_unauthorized() && api.status != 403
}

/// What answered instead, in words.
fn describe(identity: &Identity) -> (String, &'static str) {
    let agent = |name: &str| name.starts_with("fc-agent") || name.starts_with("qemu-agent");
    if let Some(server) = identity.server.as_deref().filter(|name| !name.is_empty()) {
        let hint = if agent(server) {
            " (a host agent; it is registered with `fuse host register`)"
        } else {
            ""
        };
        return (server.to_owned(), hint);
    }
    match &identity.service {
        Some(service) => (format!("service \"{service}\""), ""),
        None => (
            format!(
                "something that says HTTP {} and does not name itself",
                identity.status
            ),
            "",
        ),
    }
}

/// Recognises the token of another layer by the environment variable that holds it.
fn token_kind(token: &Token) -> &'static str {
    let is = |name: &str| std::env::var(name).is_ok_and(|value| value == token.reveal());
    if is("FC_AGENT_TOKEN") {
        "; the token given equals this shell's FC_AGENT_TOKEN"
    } else if is("QEMU_AGENT_TOKEN") {
        "; the token given equals this shell's QEMU_AGENT_TOKEN"
    } else {
        ""
    }
}
