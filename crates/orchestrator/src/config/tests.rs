//! Precedence, defaults, and every refusal with the variable it names.

use std::time::Duration;

use super::*;

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn resolve(args: Args, env: &[(&str, &str)]) -> Result<Config, String> {
    let lookup = |name: &str| {
        env.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    };
    Config::resolve(args, lookup).map_err(|e| e.to_string())
}

fn refusal(env: &[(&str, &str)]) -> String {
    resolve(Args::default(), env).unwrap_err()
}

#[test]
fn defaults() {
    let config = resolve(Args::default(), &[("ORCH_LISTEN", "")]).unwrap();
    assert_eq!(config.listen, ":8080");
    assert_eq!(config.settings.vm_prefix, "fuse-");
    assert_eq!(config.settings.script_timeout, Duration::from_secs(30));
    assert_eq!(config.settings.max_script_timeout, Duration::from_secs(55));
    assert_eq!(config.settings.reconcile_interval, Duration::from_secs(30));
    assert_eq!(config.timeouts, Timeouts::default());
    assert_eq!(config.shutdown_timeout, Duration::from_secs(30));
    assert!(config.database_url.is_none() && config.auth_token.is_none() && config.tls.is_none());
    assert!(config.settings.default_backend.is_none());
}

#[test]
fn a_flag_wins_over_its_variable() {
    let args = Args {
        listen: Some("127.0.0.1:1".into()),
        reconcile_interval: Some("5s".into()),
        ..Args::default()
    };
    let env = [
        ("ORCH_LISTEN", "x:2"),
        ("ORCH_RECONCILE_INTERVAL_SECONDS", "7"),
    ];
    let config = resolve(args, &env).unwrap();
    assert_eq!(config.listen, "127.0.0.1:1");
    assert_eq!(config.settings.reconcile_interval, Duration::from_secs(5));
    let config = resolve(Args::default(), &env).unwrap();
    assert_eq!(config.settings.reconcile_interval, Duration::from_secs(7));
}

#[test]
fn refusals_name_the_variable() {
    for (env, start) in [
        ([("TOKEN_ENCRYPTION_KEY", "zz")], "TOKEN_ENCRYPTION_KEY: "),
        (
            [("TOKEN_ENCRYPTION_KEY", "aabb")],
            "TOKEN_ENCRYPTION_KEY: must be 32 bytes",
        ),
        ([("ORCH_TLS_CERT", "a.pem")], "ORCH_TLS_KEY: "),
        ([("ORCH_TLS_KEY", "a.pem")], "ORCH_TLS_CERT: "),
        ([("ORCH_VM_PREFIX", "-x")], "ORCH_VM_PREFIX: "),
        ([("ORCH_VM_PREFIX", "Fuse-")], "ORCH_VM_PREFIX: "),
        (
            [("ORCH_SHUTDOWN_TIMEOUT_SECONDS", "30s")],
            "ORCH_SHUTDOWN_TIMEOUT_SECONDS: ",
        ),
        (
            [("ORCH_RECONCILE_INTERVAL_SECONDS", "0")],
            "ORCH_RECONCILE_INTERVAL_SECONDS: ",
        ),
        (
            [("ORCH_TASK_STUCK_TIMEOUT_SECONDS", "-1")],
            "ORCH_TASK_STUCK_TIMEOUT_SECONDS: ",
        ),
        (
            [("ORCH_DEFAULT_IDLE_TIMEOUT_SECONDS", "x")],
            "ORCH_DEFAULT_IDLE_TIMEOUT_SECONDS: ",
        ),
        (
            [("ORCH_ORPHAN_MAX_RETRIES", "many")],
            "ORCH_ORPHAN_MAX_RETRIES: ",
        ),
        (
            [("ORCH_PLACEMENT_POLICY", "random")],
            "ORCH_PLACEMENT_POLICY: ",
        ),
        ([("ORCH_ALLOWED_CIDRS", "10.0.0.0")], "ORCH_ALLOWED_CIDRS: "),
        ([("ORCH_TRUSTED_PROXIES", "::1")], "ORCH_TRUSTED_PROXIES: "),
        ([("ORCH_SECURE_COOKIES", "maybe")], "ORCH_SECURE_COOKIES: "),
        (
            [("ORCH_SCOPE_KEYS_TO_OWNER", "on")],
            "ORCH_SCOPE_KEYS_TO_OWNER: ",
        ),
        (
            [("ORCH_MAX_RUNTIME_COVERS_DRAINING", "2")],
            "ORCH_MAX_RUNTIME_COVERS_DRAINING: ",
        ),
        (
            [("FIRECRACKER_BASE_URL", "ftp://x")],
            "FIRECRACKER_BASE_URL: ",
        ),
    ] {
        let text = refusal(&env);
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn switches_take_any_case_and_stand_alone_as_flags() {
    use clap::Parser as _;
    for (text, want) in [
        ("TRUE", true),
        ("1", true),
        ("Yes", true),
        ("False", false),
        ("0", false),
        ("no", false),
    ] {
        let env = [
            ("ORCH_SECURE_COOKIES", text),
            ("ORCH_SCOPE_KEYS_TO_OWNER", text),
            ("ORCH_ACCOUNT_DEFAULT_SIZE", text),
            ("ORCH_DESTROY_UNKNOWN_ON_BOOT", text),
        ];
        let config = resolve(Args::default(), &env).unwrap();
        assert_eq!(config.secure_cookies, Some(want), "{text}");
        assert_eq!(config.settings.scope_keys_to_owner, want, "{text}");
        assert_eq!(config.settings.account_default_size, want, "{text}");
        assert_eq!(config.settings.destroy_unknown_on_boot, want, "{text}");
    }
    let resolved = |flags: &[&str]| {
        let args = Args::try_parse_from([&["orchestrator"], flags].concat()).unwrap();
        resolve(args, &[("ORCH_MAX_RUNTIME_COVERS_DRAINING", "true")])
            .unwrap()
            .settings
    };
    let settings = resolved(&["--scope-keys-to-owner"]);
    assert!(settings.scope_keys_to_owner && settings.max_runtime_covers_draining);
    // A flag wins over its variable.
    let settings = resolved(&["--max-runtime-covers-draining", "false"]);
    assert!(!settings.scope_keys_to_owner && !settings.max_runtime_covers_draining);
}

/// Every flag is in the help with its variable; a variable that is not there has no effect.
#[test]
fn help_names_every_variable() {
    use clap::CommandFactory as _;
    let help = Args::command().render_long_help().to_string();
    let sources = [include_str!("parse.rs"), include_str!("args.rs")].concat();
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    for name in sources
        .split(|c| !is_name(c))
        .filter(|name| name.starts_with("ORCH_") || name.starts_with("FIRECRACKER_"))
    {
        assert!(help.contains(name), "{name}");
    }
}

#[test]
fn a_refused_key_is_not_repeated() {
    let secret = "hunter2hunter2";
    assert!(!refusal(&[("TOKEN_ENCRYPTION_KEY", secret)]).contains(secret));
}

#[test]
fn strict_authentication_names_all_that_is_missing_in_order() {
    assert_eq!(
        refusal(&[("ORCH_REQUIRE_AUTH", "true"), ("TOKEN_ENCRYPTION_KEY", KEY)]),
        "ORCH_REQUIRE_AUTH=true but required vars unset: ORCH_AUTH_TOKEN, DATABASE_URL"
    );
    let full = [
        ("ORCH_REQUIRE_AUTH", "true"),
        ("TOKEN_ENCRYPTION_KEY", KEY),
        ("ORCH_AUTH_TOKEN", "t"),
        ("DATABASE_URL", "sqlite://x"),
    ];
    assert!(resolve(Args::default(), &full).is_ok());
    assert!(resolve(Args::default(), &[("ORCH_REQUIRE_AUTH", "TRUE")]).is_ok());
}

#[test]
fn the_script_ceiling_stays_below_the_write_timeout() {
    let args = |max: &str, write: &str| Args {
        max_startup_script_timeout: Some(max.into()),
        write_timeout: Some(write.into()),
        ..Args::default()
    };
    assert!(resolve(args("59s", "60s"), &[]).is_ok());
    let text = resolve(args("60s", "60s"), &[]).unwrap_err();
    assert!(text.starts_with("--max-startup-script-timeout: "), "{text}");
    let low = resolve(args("10s", "60s"), &[]).unwrap();
    assert_eq!(low.settings.max_script_timeout, Duration::from_secs(30));
}

#[test]
fn passwords_are_masked() {
    let masked = |url: &str| {
        resolve(Args::default(), &[("DATABASE_URL", url)])
            .unwrap()
            .masked_database_url()
    };
    assert_eq!(masked("postgres://u:p@h:1/db"), "postgres://u:***@h:1/db");
    assert_eq!(
        masked("postgres://u:p@w/x@h/db?password=z"),
        "postgres://u:***@h/db"
    );
    assert_eq!(masked("postgres://h/db"), "postgres://h/db");
    assert_eq!(
        masked("sqlite:///var/lib/a@b.db"),
        "sqlite:///var/lib/a@b.db"
    );
    assert_eq!(
        resolve(Args::default(), &[]).unwrap().masked_database_url(),
        "memory"
    );
}

#[test]
fn secrets_are_not_in_debug_output() {
    let env = [
        ("ORCH_AUTH_TOKEN", "hunter2"),
        ("TOKEN_ENCRYPTION_KEY", KEY),
        ("FIRECRACKER_BASE_URL", "http://h:1"),
        ("FIRECRACKER_TOKEN", "hunter2"),
        ("DATABASE_URL", "postgres://u:hunter2@h/db"),
    ];
    let text = format!("{:?}", resolve(Args::default(), &env).unwrap());
    assert!(
        !text.contains("hunter2") && !text.contains("17, 34"),
        "{text}"
    );
}

#[test]
fn the_watch_over_hosts_is_on_unless_told_otherwise() {
    let settings = resolve(Args::default(), &[]).unwrap().settings;
    assert!(settings.exclude_unreachable_hosts);
    assert_eq!(settings.host_check_interval, Duration::from_secs(10));
    assert_eq!(settings.quarantine_after, 3);
    let env = [
        ("ORCH_EXCLUDE_UNREACHABLE_HOSTS", "no"),
        ("ORCH_HOST_CHECK_INTERVAL_SECONDS", "2"),
        ("ORCH_QUARANTINE_AFTER", "0"),
    ];
    let settings = resolve(Args::default(), &env).unwrap().settings;
    assert!(!settings.exclude_unreachable_hosts);
    assert_eq!(settings.host_check_interval, Duration::from_secs(2));
    assert_eq!(settings.quarantine_after, 0);
    for (name, value) in [
        ("ORCH_EXCLUDE_UNREACHABLE_HOSTS", "perhaps"),
        ("ORCH_HOST_CHECK_INTERVAL_SECONDS", "0"),
        ("ORCH_QUARANTINE_AFTER", "-1"),
    ] {
        let error = resolve(Args::default(), &[(name, value)]).unwrap_err();
        assert!(error.starts_with(name), "{error}");
    }
}
