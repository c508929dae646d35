//! Every setting of the program, by flag and by variable: its help, its default, and what is said
//! of a value that makes no sense.

use std::collections::BTreeMap;

use crate::program::{KEY, command};

struct Setting {
    flag: &'static str,
    /// Empty: there is only the flag.
    variable: &'static str,
    /// Empty: off, none, or said in words.
    default: &'static str,
    /// Empty: everything makes sense.
    bad: &'static str,
}

const fn setting(
    flag: &'static str,
    variable: &'static str,
    default: &'static str,
    bad: &'static str,
) -> Setting {
    Setting {
        flag,
        variable,
        default,
        bad,
    }
}

const SETTINGS: &[Setting] = &[
    setting("listen", "ORCH_LISTEN", ":8080", "nonsense"),
    setting("vm-prefix", "ORCH_VM_PREFIX", "fuse-", "-x"),
    setting("read-header-timeout", "", "5s", "5"),
    setting("write-timeout", "", "60s", "55s"),
    setting("idle-timeout", "", "120s", "long"),
    setting("max-header-bytes", "", "65536", "10"),
    setting("startup-script-timeout", "", "30s", "60s"),
    setting("max-startup-script-timeout", "", "55s", "60s"),
    setting(
        "artifact-pull-timeout",
        "ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS",
        "",
        "x",
    ),
    setting(
        "artifact-idle-ttl",
        "ORCH_ARTIFACT_IDLE_TTL_SECONDS",
        "",
        "x",
    ),
    setting(
        "artifact-max-per-tenant",
        "ORCH_ARTIFACT_MAX_PER_TENANT",
        "",
        "1.5",
    ),
    setting(
        "shutdown-timeout",
        "ORCH_SHUTDOWN_TIMEOUT_SECONDS",
        "30s",
        "x",
    ),
    setting("firecracker-url", "FIRECRACKER_BASE_URL", "", "ftp://x"),
    setting("firecracker-token", "FIRECRACKER_TOKEN", "", ""),
    setting("database-url", "DATABASE_URL", "", "mysql://x"),
    setting("tls-cert", "ORCH_TLS_CERT", "", "/nowhere.pem"),
    setting("tls-key", "ORCH_TLS_KEY", "", "/nowhere.pem"),
    setting("agent-ca", "ORCH_AGENT_CA", "", "/nowhere.pem"),
    setting("auth-token", "ORCH_AUTH_TOKEN", "", ""),
    setting("allowed-cidrs", "ORCH_ALLOWED_CIDRS", "", "10.0.0.0/33"),
    setting("trusted-proxies", "ORCH_TRUSTED_PROXIES", "", "10.0.0.1"),
    setting("secure-cookies", "ORCH_SECURE_COOKIES", "", "maybe"),
    setting(
        "reconcile-interval",
        "ORCH_RECONCILE_INTERVAL_SECONDS",
        "30s",
        "x",
    ),
    setting(
        "task-stuck-timeout",
        "ORCH_TASK_STUCK_TIMEOUT_SECONDS",
        "2h",
        "x",
    ),
    setting(
        "default-idle-timeout",
        "ORCH_DEFAULT_IDLE_TIMEOUT_SECONDS",
        "",
        "x",
    ),
    setting("orphan-max-retries", "ORCH_ORPHAN_MAX_RETRIES", "5", "many"),
    setting(
        "snapshot-retention",
        "ORCH_SNAPSHOT_RETENTION_SECONDS",
        "",
        "x",
    ),
    setting("snapshot-max-count", "ORCH_SNAPSHOT_MAX_COUNT", "", "-1"),
    setting("snapshot-max-bytes", "ORCH_SNAPSHOT_MAX_BYTES", "", "1k"),
    setting(
        "placement-policy",
        "ORCH_PLACEMENT_POLICY",
        "spread",
        "random",
    ),
    setting(
        "exclude-unreachable-hosts",
        "ORCH_EXCLUDE_UNREACHABLE_HOSTS",
        "true",
        "on",
    ),
    setting(
        "destroy-unknown-on-boot",
        "ORCH_DESTROY_UNKNOWN_ON_BOOT",
        "",
        "on",
    ),
    setting(
        "account-default-size",
        "ORCH_ACCOUNT_DEFAULT_SIZE",
        "",
        "on",
    ),
    setting(
        "max-runtime-covers-draining",
        "ORCH_MAX_RUNTIME_COVERS_DRAINING",
        "",
        "on",
    ),
    setting("scope-keys-to-owner", "ORCH_SCOPE_KEYS_TO_OWNER", "", "on"),
    setting(
        "audit-retention",
        "ORCH_AUDIT_RETENTION_SECONDS",
        "2160h",
        "x",
    ),
    setting(
        "host-check-interval",
        "ORCH_HOST_CHECK_INTERVAL_SECONDS",
        "10s",
        "x",
    ),
    setting("quarantine-after", "ORCH_QUARANTINE_AFTER", "3", "-1"),
];

/// What the help says of each flag, on one line.
fn help() -> BTreeMap<String, String> {
    let output = command().arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let (options, environment) = text.split_once("Environment only:").unwrap();
    for variable in [
        "TOKEN_ENCRYPTION_KEY",
        "TOKEN_ENCRYPTION_KEY_PREVIOUS",
        "ORCH_REQUIRE_AUTH",
        "AGENT_DOWNLOAD_URL",
    ] {
        assert!(
            environment.contains(&format!("  {variable} "))
                || environment.contains(&format!("  {variable}\n")),
            "{variable}"
        );
    }
    let sections = options.split("\n      --").skip(1);
    let section = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let flag = words[0].split('[').next().unwrap().to_owned();
        (flag, words.join(" "))
    };
    sections.map(section).collect()
}

#[test]
fn the_help_names_every_setting_with_its_default() {
    let help = help();
    for Setting {
        flag,
        variable,
        default,
        ..
    } in SETTINGS
    {
        let said = help
            .get(*flag)
            .unwrap_or_else(|| panic!("--{flag}: {help:?}"));
        if !variable.is_empty() {
            assert!(said.contains(&format!("[env: {variable}]")), "{said}");
        }
        if !default.is_empty() {
            assert!(said.contains(&format!("[default: {default}]")), "{said}");
        }
    }
    // And there is no other.
    let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.flag).collect();
    for flag in help.keys() {
        let is_setting = !["mint-api-key", "dry-run"].contains(&flag.as_str());
        assert!(!is_setting || known.contains(&flag.as_str()), "--{flag}");
    }
    let version = command().arg("--version").output().unwrap();
    assert_eq!(version.stdout, b"orchestrator dev\n");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_starts() {
    let refused = |flags: &[&str], env: &[(&str, &str)], names: &[&str]| {
        let mut command = command();
        command.args(flags).envs(env.iter().copied());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{flags:?} {env:?}: {text}");
        let is_named = names.iter().any(|name| text.contains(name));
        assert!(is_named, "{flags:?} {env:?}: {text}");
        assert!(!text.contains(" listening "), "{text}");
        text
    };
    for Setting {
        flag,
        variable,
        bad,
        ..
    } in SETTINGS
    {
        if bad.is_empty() {
            continue;
        }
        let name = format!("--{flag}");
        let names = [name.as_str(), *variable];
        let named = &names[..if variable.is_empty() { 1 } else { 2 }];
        // The bound of scripts is told by the one that it must stay below.
        let named = match *flag {
            "write-timeout" | "startup-script-timeout" => &["--max-startup-script-timeout"],
            _ => named,
        };
        refused(&[&format!("{name}={bad}")], &[], named);
        if !variable.is_empty() {
            refused(&[], &[(variable, bad)], &[variable]);
        }
    }
    for (key, why) in [
        ("zz", "TOKEN_ENCRYPTION_KEY: "),
        (&KEY[..62], "TOKEN_ENCRYPTION_KEY: must be 32 bytes"),
    ] {
        let text = refused(&[], &[("TOKEN_ENCRYPTION_KEY", key)], &[why]);
        assert!(!text.contains(key), "{text}");
    }
    let strict = ("ORCH_REQUIRE_AUTH", "true");
    for (set, unset) in [
        (
            &[][..],
            "ORCH_AUTH_TOKEN, TOKEN_ENCRYPTION_KEY, DATABASE_URL",
        ),
        (
            &[("ORCH_AUTH_TOKEN", "t")],
            "TOKEN_ENCRYPTION_KEY, DATABASE_URL",
        ),
        (
            &[("ORCH_AUTH_TOKEN", ""), ("DATABASE_URL", "sqlite://x")],
            "ORCH_AUTH_TOKEN, TOKEN_ENCRYPTION_KEY",
        ),
    ] {
        let text = format!("ORCH_REQUIRE_AUTH=true but required vars unset: {unset}\n");
        refused(&[], &[set, &[strict]].concat(), &[&text]);
    }
}
