//! The orchestrator of the stack: a file store, authentication on, loopback only.

use std::ffi::OsString;
use std::time::Duration;

use super::daemon::Daemon;
use super::tokens::Tokens;
use super::{Error, Layout, Ports};

/// Name of the program.
pub(super) const PROGRAM: &str = "orchestrator";
/// How long it may take to end; its own drain takes up to 30 s.
const GRACE: Duration = Duration::from_secs(40);

/// Settings of another orchestrator in the caller's shell must not bend this one.
const NOT_OURS: [&str; 8] = [
    "FIRECRACKER_BASE_URL",
    "FIRECRACKER_TOKEN",
    "ORCH_TLS_CERT",
    "ORCH_TLS_KEY",
    "ORCH_ALLOWED_CIDRS",
    "ORCH_TRUSTED_PROXIES",
    "ORCH_SECURE_COOKIES",
    "ORCH_VM_PREFIX",
];

/// The daemon.
pub(super) fn daemon(layout: &Layout) -> Daemon {
    Daemon::new(layout, PROGRAM)
}

/// Starts it.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(layout: &Layout, ports: Ports, tokens: &Tokens) -> Result<(), Error> {
    let mut database = OsString::from("sqlite://");
    database.push(layout.file("fuse.db"));
    let settings = [
        (
            "ORCH_LISTEN",
            format!("127.0.0.1:{}", ports.orchestrator).into(),
        ),
        ("ORCH_AUTH_TOKEN", tokens.orchestrator.reveal().into()),
        (
            "TOKEN_ENCRYPTION_KEY",
            tokens.encryption_key.reveal().into(),
        ),
        ("DATABASE_URL", database),
        ("ORCH_REQUIRE_AUTH", "true".into()),
    ];
    daemon(layout).start(&layout.program(PROGRAM), &layout.root, &settings, &NOT_OURS)?;
    Ok(())
}

/// Stops it.
///
/// # Errors
/// When it cannot be stopped.
pub(super) fn stop(layout: &Layout) -> Result<bool, Error> {
    daemon(layout).stop(GRACE)
}
