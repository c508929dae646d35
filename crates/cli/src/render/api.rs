//! API errors in words.

use fuse_client::{ApiError, Error, Reason};
use fuse_wire_api::ErrorCode;

/// What the server says of a startup script that ran out of time, and of a bound above its own.
const SCRIPT_TIMED_OUT: &str = "startup script did not complete in time";
const SCRIPT_BOUND: &str = "startup script timeout exceeds the configured maximum";

/// What only the refusal of a registration says of an agent's token.
const AT_REGISTRATION: &str = "not the orchestrator token";

/// Renders an error of the client: the API's by the first matching rule, others as they are.
pub(crate) fn message(error: &Error) -> String {
    match error.api() {
        Some(api) => api_message(api),
        None => match way_there(error) {
            Some(hint) => format!("{error}\n  {hint}"),
            None => error.to_string(),
        },
    }
}

/// What to look at when no answer came back.
fn way_there(error: &Error) -> Option<&'static str> {
    let Error::Transport { url, reason } = error else {
        return None;
    };
    match reason {
        Reason::Refused if is_loopback(url) => {
            Some("no orchestrator listens on this machine; `fuse local up` starts a local stack")
        }
        Reason::Refused => Some(
            "no orchestrator listens there: is it running, and is the port right? \
             `fuse context current` shows the URL",
        ),
        Reason::HostNotFound | Reason::NoRoute => {
            Some("check the URL of the context (`fuse context current`) and this machine's network")
        }
        Reason::TimedOut => Some("a firewall may be in the way; `fuse doctor` looks further"),
        Reason::Lost | Reason::Other(_) => None,
    }
}

fn is_loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"]
        .iter()
        .any(|prefix| host.starts_with(prefix))
}

/// Renders an error answer of the API.
pub(crate) fn api_message(error: &ApiError) -> String {
    let message = &error.message;
    let lines = details(error);
    let text = match error.code {
        Some(ErrorCode::RouteNotFound) => format!(
            "{message}\n  the URL of the context may be wrong, or another service answers there; \
             `fuse context current` shows it"
        ),
        Some(ErrorCode::Forbidden) => forbidden(message),
        _ if error.status == 403 => forbidden(message),
        // The seed of registering wants the line below there.
        _ if error.status == 502
            && error.is_unauthorized()
            && !message.contains(AT_REGISTRATION) =>
        {
            format!(
                "unauthorized: {message}\n  your own token is fine: `fuse host register <id> --url \
                 <url> --token <token>` stores the agent's"
            )
        }
        _ if error.is_unauthorized() => format!(
            "unauthorized: {message}\n  re-run `fuse connect <url> --token <token>` with a valid token"
        ),
        Some(ErrorCode::NotFound) => format!("not found: {message}"),
        Some(ErrorCode::Conflict) => format!("conflict: {message}"),
        Some(ErrorCode::InvalidArgument) => match startup_hint(message) {
            Some(hint) => format!("{message}\n  {hint}"),
            None => format!("invalid argument: {message}"),
        },
        Some(ErrorCode::Unavailable) => format!("unavailable: {message}"),
        _ => match &error.request_id {
            Some(id) => format!("{message} (request id: {id})"),
            None => message.clone(),
        },
    };
    text + &lines
}

/// What to do about a startup script whose time is too short, or too long for the server.
pub(crate) fn startup_hint(message: &str) -> Option<&'static str> {
    if message.contains(SCRIPT_TIMED_OUT) {
        Some(
            "the startup script runs inside create, so it must end: move long work to the background or \
             to `services`, raise startup_timeout a little, or bake the steps with `fuse build` and boot \
             with `fuse up --from-build <id>`",
        )
    } else if message.contains(SCRIPT_BOUND) {
        Some(
            "the ceiling is set by the operator of the orchestrator; lower startup_timeout, or bake the \
             steps with `fuse build` and boot with `fuse up --from-build <id>`",
        )
    } else {
        None
    }
}

fn forbidden(message: &str) -> String {
    format!(
        "forbidden: {message}\n  this call may need the master token (ORCH_AUTH_TOKEN) rather than \
         an API key, or this address is outside the orchestrator's CIDR allowlist"
    )
}

/// Why no host fitted, gate by gate, when the server says so.
fn details(error: &ApiError) -> String {
    if error.code != Some(ErrorCode::Unavailable) {
        return String::new();
    }
    error
        .details
        .iter()
        .map(|(name, value)| format!("\n  {name}: {value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn shown(status: u16, code: Option<ErrorCode>, message: &str) -> String {
        api_message(&ApiError {
            status,
            code,
            code_text: String::new(),
            message: message.to_owned(),
            details: BTreeMap::new(),
            request_id: Some("req_1".to_owned()),
        })
    }

    #[test]
    fn first_matching_rule_wins() {
        use ErrorCode as C;
        assert!(shown(404, Some(C::RouteNotFound), "no such route: GET /x").contains("URL"));
        assert!(
            shown(403, Some(C::Unauthorized), "exec requires the master token")
                .starts_with("forbidden: exec requires the master token\n")
        );
        assert_eq!(
            shown(401, Some(C::Unauthorized), "invalid token"),
            "unauthorized: invalid token\n  re-run `fuse connect <url> --token <token>` with a valid token"
        );
        let agent = "exec: host agent at http://h:8090 rejected the token";
        assert!(shown(502, Some(C::Unauthorized), agent).ends_with("stores the agent's"));
        // A proxy's 401 has no envelope.
        assert!(shown(401, None, "http 401: unauthorized").starts_with("unauthorized: "));
        assert_eq!(
            shown(404, Some(C::NotFound), "vm a not found"),
            "not found: vm a not found"
        );
        assert_eq!(shown(409, Some(C::Conflict), "x"), "conflict: x");
        assert_eq!(
            shown(400, Some(C::InvalidArgument), "x"),
            "invalid argument: x"
        );
        assert_eq!(shown(503, Some(C::Unavailable), "x"), "unavailable: x");
        assert_eq!(shown(500, Some(C::Internal), "x"), "x (request id: req_1)");
        assert_eq!(
            shown(502, None, "http 502: bad gateway"),
            "http 502: bad gateway (request id: req_1)"
        );
    }

    #[test]
    fn silence_is_explained() {
        let shown = |url: &str, reason| {
            message(&Error::Transport {
                url: url.to_owned(),
                reason,
            })
        };
        assert_eq!(
            shown("http://127.0.0.1:8080/health", Reason::Refused),
            "could not reach http://127.0.0.1:8080/health: connection refused\n  no orchestrator \
             listens on this machine; `fuse local up` starts a local stack"
        );
        for reason in [Reason::Refused, Reason::HostNotFound, Reason::NoRoute] {
            let text = shown("http://orch.invalid:8080/health", reason);
            assert!(text.contains("fuse context current"), "{text}");
        }
        assert!(shown("http://a/", Reason::TimedOut).contains("fuse doctor"));
        assert_eq!(
            shown("http://a/", Reason::Lost),
            "could not reach http://a/: the connection was lost"
        );
    }

    #[test]
    fn startup_failures_say_what_to_change() {
        for message in [
            "startup script did not complete in time after 30s: x",
            "startup script timeout exceeds the configured maximum: 56s is above 55s",
        ] {
            let text = shown(400, Some(ErrorCode::InvalidArgument), message);
            assert!(text.starts_with(&format!("{message}\n  the ")), "{text}");
            for word in ["startup_timeout", "`fuse build`", "--from-build"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }

    #[test]
    fn placement_failures_list_what_the_server_counted() {
        let text = api_message(&ApiError {
            status: 503,
            code: Some(ErrorCode::Unavailable),
            code_text: "unavailable".to_owned(),
            message: "no host has sufficient capacity".to_owned(),
            details: [("region".to_owned(), "2 hosts".to_owned())].into(),
            request_id: None,
        });
        assert_eq!(
            text,
            "unavailable: no host has sufficient capacity\n  region: 2 hosts"
        );
    }
}
