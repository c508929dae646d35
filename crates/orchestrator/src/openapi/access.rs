//! Sessions and API keys.

use fuse_wire_api::{
    ApiKeyList, CreateApiKey, CreatedApiKey, Login, MAX_BODY_LOGIN, MAX_BODY_SMALL,
};
use serde_json::json;

use super::operation::{Call, Operation};

const ACCESS: (&str, &str) = ("Access", "The key's id.");
const NO_KEYS: &str =
    "keys need a durable store and there is none (`details.reason` is `api_keys_disabled`)";

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(("POST", "/login"), "login", ACCESS, login()),
        Operation::new(
            ("POST", "/logout"),
            "logout",
            ACCESS,
            Call::new("End a browser's session")
                .about("The server keeps no sessions: this only takes the cookie away.")
                .empty(204, "The cookie is gone.")
                .header("Set-Cookie", "`fuse_session`, empty, `Max-Age=0`."),
        ),
        Operation::new(("GET", "/v1/api-keys"), "listApiKeys", ACCESS, list()),
        Operation::new(("POST", "/v1/api-keys"), "createApiKey", ACCESS, create()),
        Operation::new(
            ("DELETE", "/v1/api-keys/{id}"),
            "revokeApiKey",
            ACCESS,
            Call::new("Revoke a key")
                .about("In force at once. Revoking a key again changes nothing.")
                .empty(204, "Revoked.")
                .error(404, "not_found", "no such key")
                .error(404, "route_not_found", NO_KEYS),
        ),
    ]
}

fn login() -> Call {
    Call::new("Start a browser's session")
        .about(
            "Only the master token is taken. Where everybody is let in, the answer is 204 \
             without a cookie and the body is not read.",
        )
        .body::<Login>(MAX_BODY_LOGIN, json!({"token": "the-master-token"}))
        .empty(204, "Logged in.")
        .header(
            "Set-Cookie",
            "`fuse_session`, signed, for a week; `HttpOnly`, `SameSite=Lax`, `Secure` as configured.",
        )
        .error(401, "unauthorized", "the token is not the master token, or there is none")
        .error(429, "unauthorized", "too many failed logins from this address; see `Retry-After`")
}

fn list() -> Call {
    Call::new("List keys")
        .about("Live and revoked ones, newest first, all on one page.")
        .json::<ApiKeyList>(
            200,
            "The keys, without their raw values.",
            json!({"api_keys": [{
                "id": "ak_0123456789abcdef", "label": "ci", "scopes": ["exec"],
                "created_at": "2026-01-15T10:00:00Z", "last_used_at": "2026-01-16T08:30:00Z",
            }]}),
        )
        .error(404, "route_not_found", NO_KEYS)
}

fn create() -> Call {
    Call::new("Make a key")
        .about("`scopes` may grant `exec` and `attach`, which keys may not do otherwise.")
        .optional_body::<CreateApiKey>(MAX_BODY_SMALL, json!({"label": "ci", "scopes": ["exec"]}))
        .json::<CreatedApiKey>(
            201,
            "The key. Its raw value is shown here and nowhere else.",
            json!({
                "id": "ak_0123456789abcdef", "label": "ci", "scopes": ["exec"],
                "created_at": "2026-01-15T10:00:00Z",
                "key": "fuse_sk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            }),
        )
        .error(
            400,
            "invalid_argument",
            "the label is too long, or a scope is unknown",
        )
        .error(404, "route_not_found", NO_KEYS)
}
