//! The OpenAPI document: served, and checked in together with the page made from it.

use std::{fs, path::PathBuf};

use fuse_orchestrator::openapi::document;
use reqwest::Method;
use serde_json::Value;

use crate::{api_page, support::Orchestrator};

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api")).join(name)
}

#[track_caller]
fn is_checked_in(name: &str, want: &str) {
    let path = file(name);
    if std::env::var_os("UPDATE_API_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, want).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let line = found
        .lines()
        .zip(want.lines())
        .position(|(found, want)| found != want);
    assert!(
        found == want,
        "docs/api/{name} is not what the types say (first difference in line {}). Regenerate it:\n\
         UPDATE_API_DOCS=1 cargo test -p fuse-orchestrator --test it openapi",
        line.map_or_else(
            || found.lines().count().min(want.lines().count()) + 1,
            |n| n + 1
        )
    );
}

#[test]
fn the_document_is_checked_in() {
    let text = serde_json::to_string_pretty(&document()).unwrap();
    is_checked_in("openapi.json", &format!("{text}\n"));
}

#[test]
fn the_page_is_checked_in() {
    is_checked_in("README.md", &api_page::render(&document()));
}

#[tokio::test]
async fn it_is_served_to_everybody_in_front_of_the_layers() {
    let fuse = Orchestrator::start().await;
    let request = reqwest::Client::new().get(format!("{}/openapi.json", fuse.base));
    let answer = Orchestrator::send(request).await;
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(
        (answer.header("server"), answer.header("x-request-id")),
        ("", "")
    );
    assert_eq!(answer.is(200), document());
    let answer = Orchestrator::send(fuse.request(Method::POST, "/openapi.json")).await;
    assert_eq!((answer.status, answer.header("allow")), (405, "GET,HEAD"));
    fuse.stop().await;
}

#[test]
fn the_page_says_what_the_document_says() {
    let document: Value = serde_json::from_str(
        r##"{
            "info": {"title": "T", "description": "About."},
            "tags": [{"name": "Things", "description": "All about things."}],
            "paths": {"/things/{id}": {
                "get": {
                    "tags": ["Things"], "summary": "Read", "description": "More.", "x-access": "any",
                    "parameters": [{"name": "id", "in": "path", "required": true, "description": "Which."}],
                    "responses": {
                        "200": {"description": "It.", "content": {"application/json": {
                            "schema": {"$ref": "#/components/schemas/Thing"}, "example": {"n": 1}}}},
                        "404": {"description": "`not_found`: none"}
                    }
                },
                "post": {
                    "tags": ["Things"], "summary": "Verbs",
                    "parameters": [
                        {"name": "id", "in": "path", "required": true, "description": "Which."},
                        {"name": "action", "in": "query", "required": true, "description": "What."}],
                    "responses": {},
                    "x-actions": [{
                        "action": "turn", "summary": "Turn", "x-access": "master",
                        "requestBody": {"required": true, "description": "At most 9 bytes.", "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Thing"}, "example": {"n": 2}}}},
                        "responses": {"204": {"description": "Turned."}}
                    }]
                }
            }},
            "components": {"schemas": {"Thing": {
                "type": "object", "description": "A thing.", "required": ["n"],
                "properties": {
                    "n": {"type": "integer", "format": "int32", "minimum": 0, "description": "Count\nof | it."},
                    "more": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}, "description": "Others."}
                }
            }}}
        }"##,
    )
    .unwrap();
    let page = api_page::render(&document);
    for part in [
        "# T\n",
        "About.\n",
        "## Things\n\nAll about things.\n",
        "### `GET /things/{id}`\n\nRead. Access: `any`.\n\nMore.\n",
        "| `id` | path, required | Which. |\n",
        "| 200 | [`Thing`](#thing) It. |\n| 404 | `not_found`: none |\n",
        "```json\n{\n  \"n\": 1\n}\n```\n",
        "### `POST /things/{id}?action=turn`\n\nTurn. Access: `master`.\n",
        "Body: [`Thing`](#thing), required. At most 9 bytes.\n",
        "curl -X POST \"$FUSE_URL/things/ID?action=turn\" -H \"Authorization: Bearer $FUSE_TOKEN\" \\\n  -d '{\"n\":2}'\n",
        "### Thing\n\nA thing.\n",
        "| `n` | int32, >= 0 | always | Count of \\| it. |\n",
        "| `more` | array of [`Thing`](#thing) | | Others. |\n",
    ] {
        assert!(page.contains(part), "{part}\n--- not in ---\n{page}");
    }
    // The verb is a part of the heading, not a parameter.
    assert!(!page.contains("| `action`"), "{page}");
}
