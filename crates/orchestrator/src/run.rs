//! The life of the process: open the store, serve, drain, close.

use std::{io::Write as _, time::Duration};

use anyhow::Context as _;
use fuse_control::{Control, Settings};
use fuse_daemon::{log, signals::EndSignals, systemd, tls::TlsFiles};
use fuse_store::{Store, Vault};
use fuse_wire_api::CreateApiKey;
use fuse_wire_host::AgentRoots;
use tokio_util::sync::CancellationToken;

use crate::{
    VERSION,
    config::Config,
    http::{App, HttpMetrics, router},
    server::Listening,
};

/// Bound of closing the store, on top of the shutdown timeout.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Serves until SIGINT or SIGTERM, then drains.
///
/// # Errors
/// The database, the listener or the TLS files are not usable; the text says why.
pub async fn run(config: Config) -> anyhow::Result<()> {
    log::init();
    // An error means that a provider is installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let tls = config.tls.as_ref().map(TlsFiles::load).transpose()?;
    let settings = settings(&config)?;
    let store = open(&config).await?;
    let control = Control::new(store.clone(), settings)?;
    control
        .check_recovery()
        .await
        .context("recovery failed: what DATABASE_URL names cannot be read in full")?;
    let mut signals = EndSignals::catch().context("cannot catch signals")?;
    let listening = Listening::bind(&config.listen, tls, config.timeouts).await?;
    announce(&config, &store, &listening);

    control.run();
    systemd::ready();
    let app = App::new(control.clone(), config.auth())
        .restricted_to(config.allowlist.clone())
        .behind(config.trusted_proxies.clone())
        .with_secure_cookies(config.has_secure_cookies())
        .counted_by(HttpMetrics::register(&control)?);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let draining = control.clone();
    let served = listening.serve(router(app), stop.clone());
    let until_signal = async move {
        signals.received().await;
        tracing::info!("shutting down");
        systemd::stopping();
        draining.begin_shutdown();
        stopping.cancel();
    };
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(config.shutdown_timeout).await;
    };
    let orderly = async {
        tokio::join!(served, until_signal);
        control.finished().await;
    };
    tokio::select! {
        () = orderly => {}
        () = overdue => tracing::warn!(
            "some requests or operations did not end within the shutdown timeout; \
             what they left unfinished is picked up at the next start"
        ),
        () = systemd::keep_alive() => {}
    }
    close(&store).await;
    Ok(())
}

/// What the use cases are told, with the certificates that they trust.
fn settings(config: &Config) -> anyhow::Result<Settings> {
    let mut settings = config.settings.clone();
    if let Some(file) = &config.agent_ca {
        settings.agent_roots = AgentRoots::read(file).context("ORCH_AGENT_CA")?;
    }
    Ok(settings)
}

async fn open(config: &Config) -> anyhow::Result<Store> {
    let vault = match &config.encryption_key {
        Some(key) => Vault::new(key, config.previous_encryption_key.as_ref()),
        None => Vault::none(),
    };
    let url = config.database_url.as_ref();
    Store::open(url.map(|url| url.expose().as_str()), vault)
        .await
        .context("cannot open the store (DATABASE_URL)")
}

/// Makes an API key and prints it: the way to the first key of a fleet whose
/// orchestrator has no master token.
///
/// # Errors
/// There is no durable store, it cannot be opened, or it fails.
pub async fn mint_api_key(config: Config, label: String) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.database_url.is_some(),
        "--mint-api-key needs a store that keeps the key: set DATABASE_URL to postgres://… or sqlite://…"
    );
    let request = CreateApiKey {
        label,
        scopes: Vec::new(),
    };
    let (label, scopes) = request.check()?;
    let store = open(&config).await?;
    let minted = fuse_control::mint_api_key(&store, label, &scopes).await;
    store.close().await;
    writeln!(std::io::stdout(), "{}", minted?.raw.expose()).context("cannot print the key")
}

/// Prints what a reconcile cycle would do. May run beside replicas.
///
/// # Errors
/// There is no durable store, it cannot be opened, or it fails.
pub async fn preview_reconcile(config: Config) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.database_url.is_some(),
        "reconcile needs the store of a fleet: set DATABASE_URL to postgres://… or sqlite://…"
    );
    // An error means that a provider is installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let settings = settings(&config)?;
    let store = open(&config).await?;
    let preview = async {
        let control = Control::new(store.clone(), settings)?;
        anyhow::Ok(control.reconcile_preview().await?)
    };
    let preview = preview.await;
    store.close().await;
    write!(std::io::stdout(), "{}", preview?).context("cannot print the plan")
}

/// Seals every stored secret under the current key, and says what was done. May run
/// beside replicas, and again after it was interrupted.
///
/// # Errors
/// There is no key or no durable store, the store fails, or some secrets open with
/// neither key.
pub async fn rekey(config: Config) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.database_url.is_some(),
        "rekey needs a store that keeps secrets: set DATABASE_URL to postgres://… or sqlite://…"
    );
    anyhow::ensure!(
        config.encryption_key.is_some(),
        "rekey seals secrets under TOKEN_ENCRYPTION_KEY: set it to the new key, and \
         TOKEN_ENCRYPTION_KEY_PREVIOUS to the old one"
    );
    let store = open(&config).await?;
    let done = store.rekey().await;
    store.close().await;
    let done = done.context("cannot rewrite the secrets; run it again, it goes on where it was")?;
    let report = done.report;
    writeln!(
        std::io::stdout(),
        "{} rewritten, {} under the current key now",
        done.rewritten,
        report.current
    )?;
    anyhow::ensure!(
        report.outdated == 0,
        "{} are still under the previous key, because replicas without the new one write: \
         restart those with both keys, then run this again",
        report.outdated
    );
    anyhow::ensure!(
        report.unreadable.is_empty(),
        "some open neither with TOKEN_ENCRYPTION_KEY nor with TOKEN_ENCRYPTION_KEY_PREVIOUS: {}. \
         set the latter to their key and run this again, or register these hosts and create \
         these environments anew",
        report.unreadable.into_iter().collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Reads what a fleet cannot do without from a copy of the store, and says what that is.
///
/// # Errors
/// There is no durable store, it cannot be read in full, it is empty, or some secrets do not open.
pub async fn check_backup(config: Config) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.database_url.is_some(),
        "backup-check reads a copy of the store: set DATABASE_URL to postgres://… or sqlite://…"
    );
    let store = open(&config).await?;
    let found = store.inventory().await;
    store.close().await;
    let has_key = config.encryption_key.is_some();
    let found = found.context("the copy cannot be read in full")?;
    let secrets = &found.secrets;
    writeln!(
        std::io::stdout(),
        "{} hosts, {} environments, {} snapshots, {} API keys; {} secrets open",
        found.hosts,
        found.environments,
        found.snapshots,
        found.api_keys,
        secrets.current + secrets.outdated
    )?;
    anyhow::ensure!(
        secrets.unreadable.is_empty() || has_key,
        "TOKEN_ENCRYPTION_KEY is not set, and this copy has secrets: set it to the key that the fleet had then"
    );
    anyhow::ensure!(
        secrets.unreadable.is_empty(),
        "TOKEN_ENCRYPTION_KEY does not open the secrets of {}. a backup is whole with the key that the fleet had then: \
         keep that beside it, or set TOKEN_ENCRYPTION_KEY_PREVIOUS to it",
        secrets
            .unreadable
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    );
    anyhow::ensure!(
        found.hosts + found.environments + found.snapshots + found.api_keys > 0,
        "there is nothing in it: is DATABASE_URL the copy?"
    );
    Ok(())
}

/// Finishes the writes under way and gives the leases back.
async fn close(store: &Store) {
    match tokio::time::timeout(CLOSE_LIMIT, store.close()).await {
        Ok(()) => tracing::info!("stopped"),
        Err(_) => tracing::warn!("the store did not close in time"),
    }
}

fn announce(config: &Config, store: &Store, listening: &Listening) {
    let backend = match config.settings.default_backend {
        Some(_) => "firecracker",
        None => "firecracker-stub",
    };
    tracing::info!(
        version = VERSION,
        address = %listening.address(),
        scheme = listening.scheme(),
        backend,
        prefix = config.settings.vm_prefix,
        auth = config.auth_token.is_some(),
        allowed_blocks = config.allowlist.len(),
        trusted_proxies = config.trusted_proxies.len(),
        store = ?store.engine(),
        database = config.masked_database_url(),
        "listening"
    );
    if config.auth_token.is_some() {
        if config.tls.is_none() && !config.has_secure_cookies() {
            tracing::warn!(
                "session cookies travel in the clear: serve TLS (ORCH_TLS_CERT, ORCH_TLS_KEY), or \
                 set ORCH_SECURE_COOKIES=true behind a proxy that does"
            );
        }
        return;
    }
    if store.engine().is_durable() {
        tracing::warn!(
            "ORCH_AUTH_TOKEN is not set and the store keeps API keys: every request without a \
             key is refused; set ORCH_AUTH_TOKEN to have a master token"
        );
    } else {
        tracing::warn!("ORCH_AUTH_TOKEN is not set: everybody who reaches this port is trusted");
    }
}
