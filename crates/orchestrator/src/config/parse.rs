//! Gives flags and variables their meaning, and refuses what makes no sense.

use std::{path::PathBuf, time::Duration};

use fuse_control::{Policy, Settings};
use fuse_daemon::tls::{OneOfTwo, TlsFiles};
use fuse_model::Redacted;
use fuse_wire_host::{AgentRoots, AgentUrl};

use super::{Args, Config};
use crate::{http::AddressBlocks, server::Timeouts};

/// A setting that the process refuses to start with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Half of a certificate and its key.
    #[error(transparent)]
    Tls(OneOfTwo),
    /// The value is not usable.
    #[error("{name}: {reason}")]
    Bad {
        /// Flag or variable.
        name: &'static str,
        /// What is wrong and what is expected; never the value of a secret.
        reason: String,
    },
    /// Strict authentication without what it needs.
    #[error("ORCH_REQUIRE_AUTH=true but required vars unset: {0}")]
    RequiredUnset(String),
}

fn bad(name: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Bad {
        name,
        reason: reason.into(),
    }
}

/// Looks values up: the flag, else the variable unless it is empty.
struct Source<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Source<'_> {
    fn env(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, flag: Option<String>, variable: &str) -> Option<String> {
        flag.or_else(|| self.env(variable))
    }

    fn blocks(
        &self,
        flag: Option<String>,
        variable: &'static str,
    ) -> Result<AddressBlocks, ConfigError> {
        AddressBlocks::parse(&self.text(flag, variable).unwrap_or_default())
            .map_err(|reason| bad(variable, reason))
    }

    fn switch(
        &self,
        flag: Option<String>,
        variable: &'static str,
    ) -> Result<Option<bool>, ConfigError> {
        switch(variable, self.text(flag, variable))
    }

    /// A duration by flag (`30s`) or by a variable that counts seconds.
    fn duration(
        &self,
        (flag, flag_name): (Option<String>, &'static str),
        variable: Option<&'static str>,
        default: Duration,
    ) -> Result<Duration, ConfigError> {
        if let Some(text) = flag {
            return parse_duration(&text).ok_or_else(|| {
                bad(
                    flag_name,
                    format!("{text:?} is not a duration (examples: 500ms, 30s, 2h)"),
                )
            });
        }
        let Some((name, text)) = variable.and_then(|name| Some((name, self.env(name)?))) else {
            return Ok(default);
        };
        let seconds: u64 = text
            .parse()
            .map_err(|_| bad(name, format!("{text:?} is not a whole number of seconds")))?;
        Ok(Duration::from_secs(seconds))
    }
}

impl Config {
    /// Reads the configuration; `env` looks environment variables up.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn resolve(args: Args, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let source = Source { env: &env };
        let timeouts = timeouts(&source, &args)?;
        let settings = settings(&source, &args, &timeouts)?;
        let shutdown_timeout = source.duration(
            (args.shutdown_timeout, "--shutdown-timeout"),
            Some("ORCH_SHUTDOWN_TIMEOUT_SECONDS"),
            Duration::from_secs(30),
        )?;
        let config = Self {
            listen: source
                .text(args.listen, "ORCH_LISTEN")
                .unwrap_or_else(|| ":8080".to_owned()),
            settings,
            timeouts,
            shutdown_timeout,
            database_url: source
                .text(args.database_url, "DATABASE_URL")
                .map(Redacted::new),
            auth_token: source
                .text(args.auth_token, "ORCH_AUTH_TOKEN")
                .map(Redacted::new),
            encryption_key: encryption_key(&source, KEY)?,
            previous_encryption_key: encryption_key(&source, PREVIOUS_KEY)?,
            allowlist: source.blocks(args.allowed_cidrs, "ORCH_ALLOWED_CIDRS")?,
            trusted_proxies: source.blocks(args.trusted_proxies, "ORCH_TRUSTED_PROXIES")?,
            secure_cookies: source.switch(args.secure_cookies, "ORCH_SECURE_COOKIES")?,
            tls: TlsFiles::named(
                ("ORCH_TLS_CERT", source.text(args.tls_cert, "ORCH_TLS_CERT")),
                ("ORCH_TLS_KEY", source.text(args.tls_key, "ORCH_TLS_KEY")),
            )
            .map_err(ConfigError::Tls)?,
            agent_ca: source
                .text(args.agent_ca, "ORCH_AGENT_CA")
                .map(PathBuf::from),
        };
        if config.encryption_key.is_none() && config.previous_encryption_key.is_some() {
            let reason = "is set without TOKEN_ENCRYPTION_KEY, which new secrets are stored under";
            return Err(bad(PREVIOUS_KEY, reason));
        }
        if source.env("ORCH_REQUIRE_AUTH").as_deref() == Some("true") {
            config.check_strict()?;
        }
        Ok(config)
    }

    fn check_strict(&self) -> Result<(), ConfigError> {
        let unset: Vec<&str> = [
            ("ORCH_AUTH_TOKEN", self.auth_token.is_none()),
            ("TOKEN_ENCRYPTION_KEY", self.encryption_key.is_none()),
            ("DATABASE_URL", self.database_url.is_none()),
        ]
        .into_iter()
        .filter_map(|(name, unset)| unset.then_some(name))
        .collect();
        if unset.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::RequiredUnset(unset.join(", ")))
        }
    }
}

/// A switch; `None` when it is not set.
fn switch(name: &'static str, text: Option<String>) -> Result<Option<bool>, ConfigError> {
    let Some(text) = text else {
        return Ok(None);
    };
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(Some(true)),
        "false" | "0" | "no" => Ok(Some(false)),
        _ => Err(bad(
            name,
            format!("{text:?} is none of true, 1, yes, false, 0, no"),
        )),
    }
}

fn timeouts(source: &Source<'_>, args: &Args) -> Result<Timeouts, ConfigError> {
    let default = Timeouts::default();
    let only_flag =
        |flag: &Option<String>, name, default| source.duration((flag.clone(), name), None, default);
    let max_header_bytes = match &args.max_header_bytes {
        None => default.max_header_bytes,
        Some(text) => text
            .parse()
            .ok()
            .filter(|bytes| *bytes >= Timeouts::MIN_HEADER_BYTES)
            .ok_or_else(|| {
                let min = Timeouts::MIN_HEADER_BYTES;
                bad(
                    "--max-header-bytes",
                    format!("{text:?} is not a number of at least {min}"),
                )
            })?,
    };
    Ok(Timeouts {
        read_header: only_flag(
            &args.read_header_timeout,
            "--read-header-timeout",
            default.read_header,
        )?,
        write: only_flag(&args.write_timeout, "--write-timeout", default.write)?,
        idle: only_flag(&args.idle_timeout, "--idle-timeout", default.idle)?,
        max_header_bytes,
    })
}

/// The bound of a startup script that names none, and the longest that one may name.
fn script_timeouts(
    source: &Source<'_>,
    args: &Args,
    timeouts: &Timeouts,
) -> Result<(Duration, Duration), ConfigError> {
    let default = Settings::default();
    let script_timeout = source.duration(
        (
            args.startup_script_timeout.clone(),
            "--startup-script-timeout",
        ),
        None,
        default.script_timeout,
    )?;
    let max_script_timeout = source
        .duration(
            (
                args.max_startup_script_timeout.clone(),
                "--max-startup-script-timeout",
            ),
            None,
            default.max_script_timeout,
        )?
        .max(script_timeout);
    if max_script_timeout >= timeouts.write {
        return Err(bad(
            "--max-startup-script-timeout",
            format!(
                "{max_script_timeout:?} must be below --write-timeout ({:?}), or answers would be cut off",
                timeouts.write
            ),
        ));
    }
    Ok((script_timeout, max_script_timeout))
}

fn settings(
    source: &Source<'_>,
    args: &Args,
    timeouts: &Timeouts,
) -> Result<Settings, ConfigError> {
    let default = Settings::default();
    let (script_timeout, max_script_timeout) = script_timeouts(source, args, timeouts)?;
    // Those that are off unless somebody turns them on.
    let on = |flag: &Option<String>, variable| {
        let set = source.switch(flag.clone(), variable)?;
        Ok(set.unwrap_or(false))
    };
    let (exclude_unreachable_hosts, host_check_interval, quarantine_after) =
        watch_over_hosts(source, args)?;
    let (snapshot_retention, snapshot_max_count, snapshot_max_bytes) = snapshots(source, args)?;
    let (artifact_pull_timeout, artifact_idle_ttl, artifact_max_per_tenant) =
        artifacts(source, args)?;
    Ok(Settings {
        vm_prefix: vm_prefix(source.text(args.vm_prefix.clone(), "ORCH_VM_PREFIX"))?
            .unwrap_or(default.vm_prefix),
        // Read when the process starts.
        agent_roots: AgentRoots::default(),
        default_backend: default_backend(source, args)?,
        script_timeout,
        max_script_timeout,
        agent_download_url: source.env("AGENT_DOWNLOAD_URL"),
        placement_policy: placement_policy(source, args)?,
        exclude_unreachable_hosts,
        host_check_interval,
        quarantine_after,
        reconcile_interval: positive(
            "ORCH_RECONCILE_INTERVAL_SECONDS",
            source.duration(
                (args.reconcile_interval.clone(), "--reconcile-interval"),
                Some("ORCH_RECONCILE_INTERVAL_SECONDS"),
                default.reconcile_interval,
            )?,
        )?,
        task_stuck_timeout: positive(
            "ORCH_TASK_STUCK_TIMEOUT_SECONDS",
            source.duration(
                (args.task_stuck_timeout.clone(), "--task-stuck-timeout"),
                Some("ORCH_TASK_STUCK_TIMEOUT_SECONDS"),
                default.task_stuck_timeout,
            )?,
        )?,
        default_idle_timeout: source.duration(
            (args.default_idle_timeout.clone(), "--default-idle-timeout"),
            Some("ORCH_DEFAULT_IDLE_TIMEOUT_SECONDS"),
            default.default_idle_timeout,
        )?,
        snapshot_retention,
        snapshot_max_count,
        snapshot_max_bytes,
        artifact_pull_timeout,
        artifact_idle_ttl,
        artifact_max_per_tenant,
        orphan_max_retries: whole_number(
            source.text(args.orphan_max_retries.clone(), "ORCH_ORPHAN_MAX_RETRIES"),
            "ORCH_ORPHAN_MAX_RETRIES",
            default.orphan_max_retries,
        )?,
        audit_retention: source.duration(
            (args.audit_retention.clone(), "--audit-retention"),
            Some("ORCH_AUDIT_RETENTION_SECONDS"),
            default.audit_retention,
        )?,
        max_runtime_covers_draining: on(
            &args.max_runtime_covers_draining,
            "ORCH_MAX_RUNTIME_COVERS_DRAINING",
        )?,
        account_default_size: on(&args.account_default_size, "ORCH_ACCOUNT_DEFAULT_SIZE")?,
        destroy_unknown_on_boot: on(
            &args.destroy_unknown_on_boot,
            "ORCH_DESTROY_UNKNOWN_ON_BOOT",
        )?,
        scope_keys_to_owner: on(&args.scope_keys_to_owner, "ORCH_SCOPE_KEYS_TO_OWNER")?,
    })
}

/// Retention of snapshots, snapshots and bytes of a tenant.
fn snapshots(source: &Source<'_>, args: &Args) -> Result<(Duration, u64, u64), ConfigError> {
    let default = Settings::default();
    let retention = source.duration(
        (args.snapshot_retention.clone(), "--snapshot-retention"),
        Some("ORCH_SNAPSHOT_RETENTION_SECONDS"),
        default.snapshot_retention,
    )?;
    let name = "ORCH_SNAPSHOT_MAX_COUNT";
    let count = source.text(args.snapshot_max_count.clone(), name);
    let count = whole_number(count, name, default.snapshot_max_count)?;
    let name = "ORCH_SNAPSHOT_MAX_BYTES";
    let bytes = source.text(args.snapshot_max_bytes.clone(), name);
    let bytes = whole_number(bytes, name, default.snapshot_max_bytes)?;
    Ok((retention, count, bytes))
}

/// Bound of a copy, idle time of layers, layers of a tenant.
fn artifacts(source: &Source<'_>, args: &Args) -> Result<(Duration, Duration, u64), ConfigError> {
    let default = Settings::default();
    let pull_timeout = source.duration(
        (
            args.artifact_pull_timeout.clone(),
            "--artifact-pull-timeout",
        ),
        Some("ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS"),
        default.artifact_pull_timeout,
    )?;
    let idle_ttl = source.duration(
        (args.artifact_idle_ttl.clone(), "--artifact-idle-ttl"),
        Some("ORCH_ARTIFACT_IDLE_TTL_SECONDS"),
        default.artifact_idle_ttl,
    )?;
    let name = "ORCH_ARTIFACT_MAX_PER_TENANT";
    let max = source.text(args.artifact_max_per_tenant.clone(), name);
    let max = whole_number(max, name, default.artifact_max_per_tenant)?;
    Ok((pull_timeout, idle_ttl, max))
}

fn whole_number<T: std::str::FromStr>(
    text: Option<String>,
    name: &'static str,
    default: T,
) -> Result<T, ConfigError> {
    let Some(text) = text else {
        return Ok(default);
    };
    text.parse()
        .map_err(|_| bad(name, format!("{text:?} is not a whole number")))
}

fn placement_policy(source: &Source<'_>, args: &Args) -> Result<Policy, ConfigError> {
    let text = source.text(args.placement_policy.clone(), "ORCH_PLACEMENT_POLICY");
    text.unwrap_or_default().parse().map_err(|e| {
        bad(
            "ORCH_PLACEMENT_POLICY",
            format!("{e} (expected spread or binpack)"),
        )
    })
}

/// Whether hosts that do not answer are left out, how often they are asked, and how many
/// boots may fail on one.
fn watch_over_hosts(
    source: &Source<'_>,
    args: &Args,
) -> Result<(bool, Duration, u32), ConfigError> {
    let default = Settings::default();
    let exclude = source.switch(
        args.exclude_unreachable_hosts.clone(),
        "ORCH_EXCLUDE_UNREACHABLE_HOSTS",
    )?;
    let interval = source.duration(
        (args.host_check_interval.clone(), "--host-check-interval"),
        Some("ORCH_HOST_CHECK_INTERVAL_SECONDS"),
        default.host_check_interval,
    )?;
    let quarantine_after = source.text(args.quarantine_after.clone(), "ORCH_QUARANTINE_AFTER");
    Ok((
        exclude.unwrap_or(default.exclude_unreachable_hosts),
        positive("ORCH_HOST_CHECK_INTERVAL_SECONDS", interval)?,
        whole_number(
            quarantine_after,
            "ORCH_QUARANTINE_AFTER",
            default.quarantine_after,
        )?,
    ))
}

fn positive(name: &'static str, duration: Duration) -> Result<Duration, ConfigError> {
    if duration.is_zero() {
        Err(bad(name, "must be above 0"))
    } else {
        Ok(duration)
    }
}

fn default_backend(
    source: &Source<'_>,
    args: &Args,
) -> Result<Option<(AgentUrl, Redacted<String>)>, ConfigError> {
    let Some(url) = source.text(args.firecracker_url.clone(), "FIRECRACKER_BASE_URL") else {
        return Ok(None);
    };
    let url = AgentUrl::parse(&url)
        .map_err(|e| bad("FIRECRACKER_BASE_URL", fuse_daemon::log::chain(&e)))?;
    let token = source.text(args.firecracker_token.clone(), "FIRECRACKER_TOKEN");
    Ok(Some((url, Redacted::new(token.unwrap_or_default()))))
}

fn vm_prefix(given: Option<String>) -> Result<Option<String>, ConfigError> {
    let Some(prefix) = given else { return Ok(None) };
    let mut bytes = prefix.bytes();
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let valid = bytes.next().is_some_and(plain) && bytes.all(|b| plain(b) || b == b'-');
    // Ids end at 100 characters, and a slug needs room.
    if !valid || prefix.len() > 40 {
        let reason = format!(
            "{prefix:?} must start with a lowercase letter or digit, go on with those and dashes, and have at most 40 characters"
        );
        return Err(bad("ORCH_VM_PREFIX", reason));
    }
    Ok(Some(prefix))
}

const KEY: &str = "TOKEN_ENCRYPTION_KEY";
const PREVIOUS_KEY: &str = "TOKEN_ENCRYPTION_KEY_PREVIOUS";

fn encryption_key(
    source: &Source<'_>,
    name: &'static str,
) -> Result<Option<Redacted<[u8; 32]>>, ConfigError> {
    let Some(text) = source.env(name) else {
        return Ok(None);
    };
    let hint = "make one with `openssl rand -hex 32`";
    let bytes = hex::decode(text.trim())
        .map_err(|_| bad(name, format!("must be 64 hex digits; {hint}")))?;
    let length = bytes.len();
    let key: [u8; 32] = bytes.try_into().map_err(|_| {
        bad(
            name,
            format!("must be 32 bytes (64 hex digits), not {length}; {hint}"),
        )
    })?;
    Ok(Some(Redacted::new(key)))
}

/// `500ms`, `30s`, `5m`, `2h`, and sums like `1m30s`; a bare `0` is zero.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let amount: u32 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let unit_len = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let unit = match &tail[..unit_len] {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return None,
        };
        total = total.checked_add(unit.checked_mul(amount)?)?;
        rest = &tail[unit_len..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("0", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for bad in ["", "5", "s", "5d", "-5s", "5 s", "99999999999s", "1.5s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
