//! Tests that cannot run where they are: said in one uniform line, never passed over in silence.

use std::fmt;
use std::io::Write;
use std::path::Path;

/// Why a test cannot run on this machine. Returned as an error, so that `?` ends the test.
#[derive(Debug, Clone)]
pub struct SkipReason(pub String);

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SkipReason {}

/// Prints `SKIP <test>: <reason>` on stderr, past the test harness's capture. `make test` counts these lines.
pub fn report_skip(test: &str, reason: &str) {
    // Nothing sensible can be done when stderr is gone.
    drop(writeln!(std::io::stderr().lock(), "SKIP {test}: {reason}"));
}

/// Reports the current test as skipped and returns from it: `skip!("store::postgres", "no PostgreSQL installed")`.
#[macro_export]
macro_rules! skip {
    ($test:expr, $($reason:tt)+) => {{
        $crate::report_skip($test, &format!($($reason)+));
        return;
    }};
}

/// What this machine lacks to run real guests, or `None`.
#[must_use]
pub fn missing_for_guests() -> Option<String> {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        return Some("needs root (taps, nftables, network namespaces)".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("no /dev/net/tun".into());
    }
    ["qemu-system-x86_64", "nft", "ip", "mkfs.ext4"]
        .into_iter()
        .find(|tool| !on_path(tool))
        .map(|tool| format!("{tool} is not installed (ops/dev/deps.sh test installs it)"))
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|dir| Path::new(dir).join(tool).is_file())
}
