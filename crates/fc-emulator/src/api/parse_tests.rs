//! Requests as they come over the wire, and what is made of them.

use http::Method;

use super::parse::{ParseError, Parsed, parse};
use crate::action::{Action, Query};

fn request(method: &str, path: &str, body: &str) -> Result<Parsed, ParseError> {
    parse(&method.parse::<Method>().unwrap(), path, body.as_bytes())
}

/// Method, path, body, and the fault message.
const COMPLAINTS: &[(&str, &str, &str, &str)] = &[
    (
        "GET",
        "/nothing",
        "",
        "Invalid request method and/or path: GET nothing.",
    ),
    (
        "GET",
        "/vm",
        "",
        "Invalid request method and/or path: GET vm.",
    ),
    (
        "GET",
        "/machine-config",
        "{}",
        "GET request cannot have a body.",
    ),
    (
        "PUT",
        "/vm",
        "{}",
        "Invalid request method and/or path: PUT vm.",
    ),
    ("PUT", "/actions", "", "Empty PUT request."),
    ("PATCH", "/vm", "", "Empty PATCH request."),
    ("PATCH", "/machine-config", "{}", "Empty PATCH request."),
    (
        "PATCH",
        "/actions",
        "{}",
        "Invalid request method and/or path: PATCH actions.",
    ),
    (
        "POST",
        "/actions",
        "{}",
        "Invalid request method and/or path: POST actions.",
    ),
    (
        "DELETE",
        "/drives/a",
        "",
        "Invalid request method and/or path: DELETE drives.",
    ),
    ("PUT", "/drives", "{}", "The ID cannot be empty."),
    ("PUT", "/drives//", "{}", "The ID cannot be empty."),
    (
        "PUT",
        "/drives/a-b",
        "{}",
        "API Resource IDs can only contain alphanumeric characters and underscores.",
    ),
    (
        "PUT",
        "/drives/a",
        r#"{"drive_id":"b","is_root_device":false}"#,
        "The id from the path does not match the id from the body!",
    ),
    (
        "PUT",
        "/network-interfaces/a",
        r#"{"iface_id":"b","host_dev_name":"t"}"#,
        "The id from the path [a] does not match the id from the body [b]!",
    ),
    ("PUT", "/snapshot", "{}", "Missing snapshot operation type."),
    (
        "PUT",
        "/snapshot/take",
        "{}",
        "Invalid request method and/or path: PUT /snapshot/take.",
    ),
    (
        "PUT",
        "/machine-config",
        r#"{"vcpu_count":1,"mem_size_mib":128,"color":"red"}"#,
        "An error occurred when deserializing the json body of a request: unknown field `color`, \
             expected one of `vcpu_count`, `mem_size_mib`, `smt`, `cpu_template`, `track_dirty_pages`, \
             `huge_pages` at line 1 column 42.",
    ),
    (
        "PUT",
        "/machine-config",
        r#"{"vcpu_count":1}"#,
        "An error occurred when deserializing the json body of a request: missing field \
             `mem_size_mib` at line 1 column 16.",
    ),
    (
        "PUT",
        "/actions",
        r#"{"action_type":"Halt"}"#,
        "An error occurred when deserializing the json body of a request: unknown variant `Halt`, \
             expected one of `FlushMetrics`, `InstanceStart`, `SendCtrlAltDel` at line 1 column 21.",
    ),
    (
        "PUT",
        "/snapshot/load",
        r#"{"snapshot_path":"s"}"#,
        "An error occurred when deserializing the json body of a request: missing field: either \
             `mem_backend` or `mem_file_path` is required.",
    ),
    (
        "PUT",
        "/snapshot/load",
        r#"{"snapshot_path":"s","mem_file_path":"m","mem_backend":{"backend_path":"m","backend_type":"File"}}"#,
        "An error occurred when deserializing the json body of a request: too many fields: either \
             `mem_backend` or `mem_file_path` exclusively is required.",
    ),
    (
        "PUT",
        "/balloon",
        r#"{"amount_mib":1,"deflate_on_oom":true}"#,
        "The requested operation is not supported: fc-emulator has no balloon device.",
    ),
    (
        "GET",
        "/mmds",
        "",
        "The requested operation is not supported: fc-emulator has no metadata service (MMDS).",
    ),
];

#[test]
fn complaints_are_those_of_the_api() {
    for (method, path, body, expected) in COMPLAINTS {
        let error = request(method, path, body).expect_err(path);
        assert_eq!(error.to_string(), *expected, "{method} {path} {body}");
    }
}

#[test]
fn bodies_that_are_no_json_are_refused_everywhere() {
    for (method, path) in [
        ("PUT", "/actions"),
        ("PUT", "/boot-source"),
        ("PUT", "/drives/a"),
        ("PUT", "/entropy"),
        ("PUT", "/logger"),
        ("PUT", "/machine-config"),
        ("PUT", "/network-interfaces/a"),
        ("PUT", "/serial"),
        ("PUT", "/snapshot/create"),
        ("PUT", "/snapshot/load"),
        ("PUT", "/vsock"),
        ("PATCH", "/drives/a"),
        ("PATCH", "/machine-config"),
        ("PATCH", "/network-interfaces/a"),
        ("PATCH", "/vm"),
    ] {
        for body in ["no json", "[", r#"{"what_is_this":1}"#] {
            let error = request(method, path, body).expect_err(path);
            assert!(
                matches!(error, ParseError::Json(_)),
                "{method} {path} {body}: {error}"
            );
        }
    }
}

#[test]
fn questions_are_understood() {
    for (path, query) in [
        ("/", Query::InstanceInfo),
        ("", Query::InstanceInfo),
        ("/version", Query::Version),
        ("/machine-config", Query::MachineConfig),
        ("/vm/config", Query::FullConfig),
    ] {
        assert_eq!(
            request("GET", path, "").unwrap().action,
            Action::Query(query),
            "{path}"
        );
    }
}

#[test]
fn actions_are_understood() {
    let actions = [
        (
            "PUT",
            "/actions",
            r#"{"action_type":"InstanceStart"}"#,
            Action::Start,
        ),
        (
            "PUT",
            "/actions",
            r#"{"action_type":"SendCtrlAltDel"}"#,
            Action::SendCtrlAltDel,
        ),
        (
            "PUT",
            "/actions",
            r#"{"action_type":"FlushMetrics"}"#,
            Action::FlushMetrics,
        ),
        ("PATCH", "/vm", r#"{"state":"Paused"}"#, Action::Pause),
        ("PATCH", "/vm", r#"{"state":"Resumed"}"#, Action::Resume),
    ];
    for (method, path, body, action) in actions {
        assert_eq!(
            request(method, path, body).unwrap(),
            action.into(),
            "{body}"
        );
    }
}

#[test]
fn deprecated_fields_work_and_are_reported() {
    let old = r#"{"snapshot_path":"s","mem_file_path":"m","enable_diff_snapshots":true}"#;
    let new = r#"{"snapshot_path":"s","track_dirty_pages":true,
                  "mem_backend":{"backend_path":"m","backend_type":"File"}}"#;
    let old = request("PUT", "/snapshot/load", old).unwrap();
    let new = request("PUT", "/snapshot/load", new).unwrap();
    assert_eq!(old.action, new.action);
    assert!(old.deprecated && !new.deprecated);
    let vsock = r#"{"vsock_id":"1","guest_cid":3,"uds_path":"u"}"#;
    assert!(request("PUT", "/vsock", vsock).unwrap().deprecated);
}
