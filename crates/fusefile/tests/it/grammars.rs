//! The grammars, each through a whole file: what is taken, and what it becomes; what is refused, and with which words.

use fuse_fusefile::{Compiled, check};

/// A file with `text` in the place of `§`, in quotes in which every character can be written.
fn file(template: &str, text: &str) -> String {
    format!(
        "version: 1\n{}\n",
        template.replace('§', &serde_json::to_string(text).unwrap())
    )
}

#[track_caller]
fn taken(template: &str, texts: &[&str]) {
    for text in texts {
        compiled(template, text);
    }
}

#[track_caller]
fn compiled(template: &str, text: &str) -> Compiled {
    let checked = check("F", file(template, text).as_bytes(), None);
    assert_eq!(checked.problems, [], "{template} with {text:?}");
    checked.compiled.unwrap()
}

/// Each text has one problem, at `field`, which says `message`, where `§` stands for the text as it is quoted.
#[track_caller]
fn refused(template: &str, field: &str, message: &str, texts: &[&str]) {
    for text in texts {
        let problems = check("F", file(template, text).as_bytes(), None).problems;
        let said: Vec<_> = problems
            .iter()
            .map(|problem| (problem.field.as_deref(), problem.message.as_str()))
            .collect();
        let message = message.replace('§', &fuse_fusefile::diagnostic::quoted(text));
        assert_eq!(
            said,
            [(Some(field), message.as_str())],
            "{template} with {text:?}"
        );
    }
}

#[test]
fn dns_labels() {
    let (longest, longer) = ("a".repeat(63), "a".repeat(64));
    let good = ["a", "0", "a-b", "a--b", "7x-0", &longest];
    let bad = [
        "A", "-a", "a-", "a.b", "a_b", "a b", " a", "a\n", "é", "-", &longer,
    ];
    let message = "§ is not a DNS label (a-z, 0-9, inner dashes, max 63)";
    taken("name: §", &good);
    refused("name: §", "name", message, &bad);
    let template = "expose: [{ port: 80, as: § }]";
    taken(template, &good);
    refused(template, "expose[0].as", "§ is not a DNS label", &bad);
    // Empty is absent.
    assert_eq!(compiled("name: §", "").name, None);
    assert_eq!(compiled(template, "").expose[0].name, "");
}

#[test]
fn placement_labels() {
    let (longest, longer) = ("a".repeat(63), "a".repeat(64));
    let good = ["a", "Z9", "a.b_c-d", "0", &longest];
    let bad = [
        "", ".a", "a.", "-a", "a_", "a b", "a/b", "a\n", "é", &longer,
    ];
    let (key, value) = (
        "placement: { labels: { §: v } }",
        "placement: { labels: { k: § } }",
    );
    taken(key, &good);
    refused(key, "placement.labels", "bad label key §", &bad);
    taken(value, &good);
    refused(value, "placement.labels.k", "bad label value §", &bad);
}

#[test]
fn names_of_variables() {
    let template = "env: { §: { value: x } }";
    taken(template, &["A", "_", "a1_B", "_9"]);
    refused(
        template,
        "env",
        "§ is not a shell identifier",
        &["1A", "A-B", "A B", "A\n", "é", "A=", " A"],
    );
    let blank = ["", " ", "\t\n", "\u{a0}\u{2003}"];
    refused(template, "env", "variable name missing", &blank);
    let template = "services: { s: { image: i, env: { §: { value: x } } } }";
    taken(template, &["A", "1A", "a b", "é", "A-B", "\u{200b}"]);
    refused(template, "services.s.env", "variable name missing", &blank);
}

#[test]
fn names_of_services_are_free() {
    taken(
        "services: { §: { image: i } }",
        &["db", "", " ", "A/B", "x\ny", "é", "a.b"],
    );
}

#[test]
fn modes_of_files() {
    let template = "files: [{ path: a, content: x, mode: § }]";
    taken(template, &["644", "0644", "000", "0777", ""]);
    let bad = [
        "64",
        "1644",
        "06444",
        "00644",
        "648",
        "0o644",
        "644\n",
        " 644",
        "rw-r--r--",
    ];
    refused(template, "files[0].mode", "bad octal mode §", &bad);
    // As written, a leading zero too.
    assert!(
        compiled(template, "0644")
            .script
            .startup()
            .contains("\nchmod 0644 'a'\n")
    );
    assert!(
        compiled(template, "644")
            .script
            .startup()
            .contains("\nchmod 644 'a'\n")
    );
}

#[test]
fn mig_profiles() {
    let template = "resources: { gpu: 1, gpu_profile: § }";
    for (text, sent) in [
        ("1g.10gb", "1g.10gb"),
        ("7G.80Gb", "7g.80gb"),
        ("1g.10gb+ME", "1g.10gb+me"),
        ("", ""),
    ] {
        assert_eq!(compiled(template, text).spec.gpu_profile, sent);
    }
    let message = "invalid MIG profile § (expected mig-parted form like \"1g.10gb\")";
    let bad = [
        "0g.10gb",
        "8g.10gb",
        "1g.gb",
        "1g10gb",
        "1g.10gb+m",
        "1g.10g",
        "11g.10gb",
        "1g.10gb\n",
        "half",
    ];
    refused(template, "resources.gpu_profile", message, &bad);
}

#[test]
fn restart_policies() {
    let template = "services: { s: { image: i, restart: § } }";
    taken(
        template,
        &["no", "always", "on-failure", "unless-stopped", ""],
    );
    let message = "bad policy §; one of no, always, on-failure, unless-stopped";
    let bad = ["on-failure:3", "Always", "never", " no", "no\n"];
    refused(template, "services.s.restart", message, &bad);
}

#[test]
fn sizes() {
    let template = "resources: { memory: § }";
    let good = [
        ("1M", 1),
        ("512mb", 512),
        ("512 MiB", 512),
        ("1.5GB", 1536),
        ("4 GiB", 4096),
        (" 2g\t", 2048),
        ("2T", 2_097_152),
        ("0.5 tib", 524_288),
        ("0.09765625TB", 102_400),
        ("2147483647M", 2_147_483_647),
        ("0G", 0),
        ("", 0),
        ("1.000MB", 1),
    ];
    for (text, mib) in good {
        assert_eq!(compiled(template, text).spec.ram_mb, mib, "{text:?}");
    }
    let field = "resources.memory";
    let malformed = "invalid size §: expected a number and a unit such as 512MB, 2GB or 1TB";
    let bad = [
        "512", "GB", "-1GB", "+1GB", "1.GB", ".5GB", "1e3MB", "1KB", "1B", "1 G B", "1GB;",
        "1,5GB", " ",
    ];
    refused(template, field, malformed, &bad);
    refused(
        template,
        field,
        "invalid size §: not a whole number of MiB",
        &["0.25MB", "1.0001GB"],
    );
    refused(
        template,
        field,
        "invalid size §: too large",
        &["2147483648M", "2048T", "99999999999999999999T"],
    );
    // Rounded up to GiB for the disk, by either of its names, or both when they agree.
    for (text, gib) in [
        ("1MB", 1),
        ("1GB", 1),
        ("1025MB", 2),
        ("100GB", 100),
        ("", 0),
    ] {
        assert_eq!(
            compiled("resources: { disk: § }", text).spec.storage_gb,
            gib,
            "{text:?}"
        );
        assert_eq!(
            compiled("resources: { storage: § }", text).spec.storage_gb,
            gib,
            "{text:?}"
        );
    }
    assert_eq!(
        compiled("resources: { disk: 1TB, storage: § }", "1048576M")
            .spec
            .storage_gb,
        1024
    );
    // Nothing is said of a difference to a size that is none.
    refused(
        "resources: { disk: 1TB, storage: § }",
        "resources.storage",
        malformed,
        &["1"],
    );
}

const BAD_DURATIONS: [&str; 14] = [
    "5", "1d", "1w", " 5s", "5s ", "5 s", "s", ".s", "1h-5m", "1e3s", "5S", "-", "--1s", "1h30",
];

#[test]
fn durations_of_resources() {
    let template = "resources: { max_runtime: § }";
    let good = [
        ("1h", 3600),
        ("90s", 90),
        ("1h0m0.9s", 3600),
        ("+1m", 60),
        (".5h", 1800),
        ("1.s", 1),
        ("1h30m1s", 5401),
        ("999ms", 0),
        ("0", 0),
        ("0s", 0),
        ("-0", 0),
        ("60000000µs", 60),
        ("60000000μs", 60),
        ("1000000us", 1),
        ("2000000000ns", 2),
        ("", 0),
        ("2562047h47m16s", 9_223_372_036),
    ];
    for (text, seconds) in good {
        assert_eq!(
            compiled(template, text).spec.max_runtime_seconds,
            seconds,
            "{text:?}"
        );
    }
    refused(
        template,
        "resources.max_runtime",
        "bad duration §",
        &BAD_DURATIONS,
    );
    refused(
        template,
        "resources.max_runtime",
        "bad duration §",
        &["2562047h47m17s", "9223372036854775808ns"],
    );
    refused(
        template,
        "resources.max_runtime",
        "negative",
        &["-1ns", "-2h"],
    );

    let template = "resources: { idle_timeout: § }";
    for (text, seconds) in [("0", 0), ("1m", 60), ("90.9s", 90), ("60s", 60), ("", 0)] {
        assert_eq!(
            compiled(template, text).spec.idle_timeout_seconds,
            seconds,
            "{text:?}"
        );
    }
    refused(
        template,
        "resources.idle_timeout",
        "bad duration §",
        &BAD_DURATIONS,
    );
    refused(template, "resources.idle_timeout", "negative", &["-1m"]);
    refused(
        template,
        "resources.idle_timeout",
        "at least 1m0s",
        &["1ns", "59.999999999s"],
    );
}

#[test]
fn durations_that_are_above_zero() {
    let template = "startup_timeout: §";
    for (text, seconds) in [("1ns", 1), ("1200ms", 2), ("2s", 2), ("54.1s", 55), ("", 0)] {
        assert_eq!(
            compiled(template, text).startup_timeout_seconds,
            seconds,
            "{text:?}"
        );
    }
    refused(
        template,
        "startup_timeout",
        "bad duration §",
        &BAD_DURATIONS,
    );
    refused(
        template,
        "startup_timeout",
        "must be positive, got 0s",
        &["0", "-0s", "0h"],
    );
    // As Go writes it.
    refused(
        template,
        "startup_timeout",
        "must be positive, got -1m30s",
        &["-90s", "-1.5m"],
    );
    refused(
        template,
        "startup_timeout",
        "must be positive, got -2m0s",
        &["-2m"],
    );

    for key in ["interval", "timeout", "start_period"] {
        let template = format!("healthcheck: {{ exec: [x], {key}: § }}");
        let field = format!("healthcheck.{key}");
        taken(&template, &["1ns", "5m", ""]);
        refused(&template, &field, "bad duration §", &BAD_DURATIONS);
        refused(&template, &field, "must be positive, got 0s", &["0"]);
    }
    for key in ["interval", "timeout"] {
        let template = format!("services: {{ s: {{ image: i, healthcheck: {{ {key}: § }} }} }}");
        let field = format!("services.s.healthcheck.{key}");
        taken(&template, &["1ns", "5m", ""]);
        refused(&template, &field, "bad duration §", &BAD_DURATIONS);
        refused(&template, &field, "must be positive, got 0s", &["0s"]);
    }
}

#[test]
fn a_probe_fits_its_interval_in_whole_seconds() {
    let template = "healthcheck: { exec: [x], interval: 1500ms, timeout: § }";
    let probe = compiled(template, "2s").healthcheck.unwrap();
    assert_eq!((probe.interval_seconds, probe.timeout_seconds), (2, 2));
    refused(
        template,
        "healthcheck.timeout",
        "2.001s exceeds interval 1.5s",
        &["2001ms"],
    );
    // Only when both are given; the guest's own defaults are not compared with.
    taken("healthcheck: { exec: [x], timeout: § }", &["1h"]);
    taken("healthcheck: { exec: [x], interval: § }", &["1s"]);
}
