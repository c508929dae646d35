//! Probes and identity. No credential, no request id, no dependencies but for `/ready`.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use fuse_control::{ReconcileHealth, chain};
use fuse_wire_api::{HealthStatus, Readiness, VersionInfo};

use crate::{VERSION, http::App};

/// Bound of the question whether the store answers.
const STORE_LIMIT: Duration = Duration::from_secs(2);
/// Most of a failure's text that is shown (bytes).
const TEXT_LIMIT: usize = 200;

pub(super) async fn health() -> Json<HealthStatus> {
    Json(HealthStatus {
        status: "ok".to_owned(),
    })
}

pub(super) async fn version() -> Json<VersionInfo> {
    Json(VersionInfo {
        service: "fuse-orchestrator".to_owned(),
        version: VERSION.to_owned(),
    })
}

pub(super) async fn ready(State(app): State<App>) -> Response {
    let (fleet, reconcile) = match app.control.reconcile_health() {
        ReconcileHealth::Recovering => ("recovering".to_owned(), "ok".to_owned()),
        ReconcileHealth::Good => ("ok".to_owned(), "ok".to_owned()),
        ReconcileHealth::Stale { since } => {
            let text = format!("no cycle completed for {}s", since.as_secs());
            ("ok".to_owned(), text)
        }
    };
    let mut checks: BTreeMap<String, String> = [
        ("state_store".to_owned(), store_check(&app).await),
        ("fleet".to_owned(), fleet),
        ("reconcile".to_owned(), reconcile),
    ]
    .into();
    let mut is_ready = checks.values().all(|check| check == "ok");
    if let Some(trouble) = app.control.key_trouble() {
        // One host of a lost key is no reason to turn everybody away.
        is_ready &= !trouble.is_total;
        checks.insert("encryption_key".to_owned(), truncated(trouble.text));
    }
    let (code, status) = if is_ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not_ready")
    };
    (
        code,
        Json(Readiness {
            status: status.to_owned(),
            checks,
        }),
    )
        .into_response()
}

async fn store_check(app: &App) -> String {
    match tokio::time::timeout(STORE_LIMIT, app.control.store().ping()).await {
        Ok(Ok(())) => "ok".to_owned(),
        Ok(Err(e)) => truncated(chain(&e)),
        Err(_) => format!("no answer within {}s", STORE_LIMIT.as_secs()),
    }
}

fn truncated(mut text: String) -> String {
    if text.len() <= TEXT_LIMIT {
        return text;
    }
    let mut end = TEXT_LIMIT;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str("…(truncated)");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(truncated("short".to_owned()), "short");
        let cut = truncated("ä".repeat(300));
        assert_eq!(cut, format!("{}…(truncated)", "ä".repeat(100)));
    }
}
