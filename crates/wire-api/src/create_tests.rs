//! Checks of create requests: the order of the contract, one broken rule at a time.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::*;

/// Every rule at once; each entry breaks one, in the order in which they must surface.
/// Clearing a fault must uncover the next one.
#[test]
fn the_first_broken_rule_wins() {
    type Repair = fn(&mut CreateEnvironment);
    let steps: [(&str, Repair); 13] = [
        ("task_id is required", |r| r.task_id = "t".into()),
        ("spec.gpus must not be negative", |r| r.spec.gpus = 0),
        ("spec.cpus must not be negative", |r| r.spec.cpus = 0),
        ("spec.labels: invalid label key \"!\"", |r| {
            r.spec.labels.clear();
        }),
        ("spec.max_runtime_seconds must not be negative", |r| {
            r.spec.max_runtime_seconds = 0;
        }),
        (
            "healthcheck: exactly one of http or exec is required",
            |r| r.healthcheck = None,
        ),
        ("desktop.width must be between 320 and 3840", |r| {
            r.desktop = None;
        }),
        ("expose[0].port must be between 1 and 65535", |r| {
            r.expose.clear();
        }),
        ("egress.mode must be direct or proxy", |r| r.egress = None),
        ("startup_script_timeout_seconds must not be negative", |r| {
            r.startup_script_timeout_seconds = 0;
        }),
        ("files: path \"x\" must be absolute", |r| r.files.clear()),
        ("manifest_inline is not valid base64", |r| {
            r.manifest_inline =
                BASE64_STANDARD.encode(r#"{"machine":{"env":{"A":{"secret":"K"}}}}"#);
        }),
        (
            "secrets validation failed: secret \"K\" is required by the manifest",
            |r| {
                r.secrets.insert("K".into(), String::new());
            },
        ),
    ];
    let mut request = CreateEnvironment {
        spec: Spec {
            gpus: -1,
            cpus: -1,
            labels: [("!".into(), "x".into())].into(),
            max_runtime_seconds: -1,
            image: "img".into(),
            ..Spec::default()
        },
        healthcheck: Some(Healthcheck::default()),
        desktop: Some(Desktop::default()),
        expose: vec![Expose::default()],
        egress: Some(Egress {
            mode: "x".into(),
            ..Egress::default()
        }),
        startup_script_timeout_seconds: -1,
        files: [("x".to_owned(), FileBody::Content(String::new()))].into(),
        manifest_inline: "?".into(),
        seed_snapshot_id: "s".into(),
        ..CreateEnvironment::default()
    };
    for (message, repair) in steps {
        assert_eq!(check(&request).unwrap_err().to_string(), message);
        repair(&mut request);
    }
    assert_eq!(
        check(&request).unwrap_err().to_string(),
        "seed_snapshot_id and spec.image are mutually exclusive"
    );
    request.seed_snapshot_id.clear();
    assert!(check(&request).is_ok());
}

fn check(request: &CreateEnvironment) -> Result<CheckedCreate, Violation> {
    let mut request = request.clone();
    request.check_head()?;
    request.check_tail()
}

fn with_task() -> CreateEnvironment {
    CreateEnvironment {
        task_id: "t".into(),
        ..CreateEnvironment::default()
    }
}

#[test]
fn a_task_id_alone_is_enough() {
    let checked = check(&with_task()).unwrap();
    assert_eq!(checked.manifest_bytes, Manifest::BUILT_IN.as_bytes());
    assert_eq!(checked.egress, Egress::default());
    assert_eq!(checked.startup_script_timeout_seconds, 0);
}

#[test]
fn secret_issues_are_collected_and_sorted() {
    let manifest = r#"{"machine":{"env":{"A":{"secret":"ZED"},"B":{"secret":"ALPHA"}}}}"#;
    let request = CreateEnvironment {
        manifest_inline: BASE64_STANDARD.encode(manifest),
        secrets: [("BIG".to_owned(), "x".repeat(65_537))].into(),
        ..with_task()
    };
    assert_eq!(
        check(&request).unwrap_err().to_string(),
        "secrets validation failed: secret \"ALPHA\" is required by the manifest; \
         secret \"BIG\" exceeds 65536 bytes; secret \"ZED\" is required by the manifest"
    );
}

#[test]
fn a_manifest_that_is_not_json_is_a_secrets_issue() {
    let request = CreateEnvironment {
        manifest_inline: BASE64_STANDARD.encode("version: 1"),
        ..with_task()
    };
    let message = check(&request).unwrap_err().to_string();
    assert!(
        message.starts_with("secrets validation failed: manifest is not usable JSON"),
        "{message}"
    );
}

#[test]
fn secret_limits() {
    let many: BTreeMap<String, String> =
        (0..257).map(|i| (format!("k{i}"), String::new())).collect();
    let long_name: BTreeMap<String, String> = [("k".repeat(257), String::new())].into();
    let too_much: BTreeMap<String, String> = (0..17)
        .map(|i| (format!("k{i}"), "v".repeat(65_000)))
        .collect();
    for secrets in [many, long_name, too_much] {
        assert!(
            check(&CreateEnvironment {
                secrets,
                ..with_task()
            })
            .is_err()
        );
    }
}

#[test]
fn scripts_are_bounded() {
    let script = |n| CreateEnvironment {
        startup_script: "x".repeat(n),
        ..with_task()
    };
    assert!(check(&script(131_071)).is_ok());
    assert!(check(&script(131_072)).is_err());
    let nul = CreateEnvironment {
        startup_script: "a\0b".into(),
        ..with_task()
    };
    assert!(check(&nul).is_err());
}

#[test]
fn nothing_secret_is_in_debug_output() {
    let request = CreateEnvironment {
        secrets: [("NAME".to_owned(), "hunter2".to_owned())].into(),
        gateway_token: "hunter2".into(),
        startup_script: "hunter2".into(),
        files: [("/x".to_owned(), FileBody::Content("aHVudGVyMg==".into()))].into(),
        ..with_task()
    };
    let text = format!("{request:?} {:?}", check(&request).unwrap());
    assert!(text.contains("NAME"));
    assert!(
        !text.contains("hunter2") && !text.contains("aHVudGVyMg"),
        "{text}"
    );
}

#[test]
fn wrong_types_are_refused_and_unknown_fields_pass() {
    for bad in [
        r#"{"task_id":5}"#,
        r#"{"task_id":"a","spec":[]}"#,
        r#"{"task_id":"a","spec":{"cpus":"2"}}"#,
        r#"{"task_id":"a","spec":{"cpus":3000000000}}"#,
        r#"{"task_id":"a","spec":{"cpus":1.5}}"#,
        r#"{"task_id":"a","secrets":["x"]}"#,
        r#"{"task_id":"a","expose":[[80]]}"#,
        r#"{"task_id":"a","files":{"/a":5}}"#,
    ] {
        assert!(
            crate::decode::<CreateEnvironment>(bad.as_bytes()).is_err(),
            "{bad}"
        );
    }
    let ok = r#"{"task_id":"a","future":{"x":1},"spec":{"future":2},"expose":null,"secrets":null}"#;
    assert!(crate::decode::<CreateEnvironment>(ok.as_bytes()).is_ok());
}

#[test]
fn a_request_is_written_without_unset_fields() {
    let text = serde_json::to_string(&with_task()).unwrap();
    assert_eq!(text, r#"{"task_id":"t","spec":{}}"#);
}

#[test]
fn steps_begin_at_lines_of_the_script() {
    let with = |first, total, offsets: &[u32]| {
        let request = CreateEnvironment {
            task_id: "t".to_owned(),
            startup_script: "set -eu\nmake\ntest\ntrap - EXIT\n".to_owned(),
            startup_steps: Some(StartupSteps {
                first,
                total,
                offsets: offsets.to_vec(),
            }),
            ..CreateEnvironment::default()
        };
        request.check_tail().map(|checked| checked.startup_steps)
    };
    assert!(with(1, 2, &[8, 13, 18]).unwrap().is_some());
    assert!(with(3, 4, &[8, 13, 18]).is_ok());
    for (first, total, offsets) in [
        (0, 2, &[8, 13, 18][..]),
        (1, 1, &[8, 13, 18]),
        (u32::MAX, u32::MAX, &[8, 13, 18]),
        (1, 2, &[]),
        (1, 2, &[8]),
        (1, 2, &[8, 14, 18]),
        (1, 2, &[8, 8, 13]),
        (1, 2, &[13, 8, 18]),
        (1, 2, &[8, 13, 30]),
        (1, 2, &[8, 13, u32::MAX]),
    ] {
        let error = with(first, total, offsets).unwrap_err().to_string();
        assert!(error.starts_with("startup_steps: "), "{offsets:?}: {error}");
    }
}
