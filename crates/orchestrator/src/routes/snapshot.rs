//! `/v1/snapshots`, and `/v1/environments/{id}/snapshots`.

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use fuse_control::AnsweredOnce;
use fuse_model::{self as model, EnvironmentId, SnapshotId, SnapshotState};
use fuse_store::{IdempotentKey, Page, SnapshotFilter};
use fuse_wire_api::{
    CreateSnapshot, ResolvedSnapshot, Snapshot, SnapshotCursor, SnapshotList, normalize_arch,
    page_limit,
};

use crate::{
    http::{ApiError, App, Limit, Principal, Query, read_optional},
    views,
};

use super::{
    environment::{PREFERENCE_APPLIED, RESPOND_ASYNC, prefers_async},
    once,
};

type Id = Result<Path<String>, PathRejection>;

pub(super) async fn create(
    State(app): State<App>,
    principal: Principal,
    headers: HeaderMap,
    id: Id,
    body: Body,
) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    let request: CreateSnapshot = read_optional(body, Limit::Small).await?;
    let tenant = principal.tenant();
    let key = once::key_of_action(&headers, "snapshot", &id, &request)?;
    if prefers_async(&headers) {
        return begin(&app, id, request, tenant, key).await;
    }
    let Some(key) = key else {
        let snapshot = app.control.snapshot_create(&id, request, tenant).await?;
        return Ok((StatusCode::CREATED, Json(views::snapshot(snapshot))).into_response());
    };
    let wording = |snapshot| once::answer(StatusCode::CREATED, &views::snapshot(snapshot));
    let created = app
        .control
        .snapshot_create_once(&id, request, tenant, key, wording);
    Ok(answer_once(created.await?))
}

fn answer_once(answered: AnsweredOnce) -> Response {
    match answered {
        AnsweredOnce::New(answer) => once::respond(answer),
        AnsweredOnce::Repeat(answer) => once::replay(answer),
    }
}

/// Answers before the snapshot is taken.
async fn begin(
    app: &App,
    id: EnvironmentId,
    request: CreateSnapshot,
    tenant: String,
    key: Option<IdempotentKey>,
) -> Result<Response, ApiError> {
    let mut response = match key {
        None => {
            let snapshot = app.control.snapshot_begin(&id, request, tenant).await?;
            (StatusCode::ACCEPTED, Json(views::snapshot(snapshot))).into_response()
        }
        Some(key) => {
            let wording = |snapshot| once::answer(StatusCode::ACCEPTED, &views::snapshot(snapshot));
            let begun = app
                .control
                .snapshot_begin_once(&id, request, tenant, key, wording);
            answer_once(begun.await?)
        }
    };
    response
        .headers_mut()
        .insert(PREFERENCE_APPLIED, HeaderValue::from_static(RESPOND_ASYNC));
    Ok(response)
}

pub(super) async fn get(
    State(app): State<App>,
    principal: Principal,
    id: Id,
) -> Result<Json<Snapshot>, ApiError> {
    let id = SnapshotId::new(super::path_id(id, "snapshot")?);
    let snapshot = app.control.snapshot_get(&id).await?;
    Ok(Json(shown(snapshot, &principal)))
}

/// A snapshot as a caller sees it. All are the fleet's; but what was written down along
/// with one, names of a build's inputs for instance, is for its maker and the master.
fn shown(snapshot: model::Snapshot, caller: &Principal) -> Snapshot {
    let is_for_caller = match caller {
        Principal::Master => true,
        Principal::Key { id, .. } => snapshot.owner == id.as_str(),
    };
    let mut view = views::snapshot(snapshot);
    if !is_for_caller {
        view.metadata.clear();
    }
    view
}

pub(super) async fn list(
    State(app): State<App>,
    principal: Principal,
    query: Query,
) -> Result<Json<SnapshotList>, ApiError> {
    let after = SnapshotCursor::decode(query.get("cursor"))?;
    let page = Page {
        after: after.map(|cursor| (cursor.created_at, SnapshotId::new(cursor.id))),
        limit: page_limit(query.get("limit")),
    };
    // A value that nothing can have matches nothing.
    let Some(mut filter) = filter(&query) else {
        return Ok(Json(SnapshotList::default()));
    };
    filter.owner = app.kept_to(&principal);
    let listing = app.control.snapshot_list(&filter, &page).await?;
    Ok(Json(SnapshotList {
        snapshots: listing
            .items
            .into_iter()
            .map(|snapshot| shown(snapshot, &principal))
            .collect(),
        next_cursor: listing.next.map(|(created_at, id)| {
            SnapshotCursor {
                created_at,
                id: id.into_string(),
            }
            .encode()
        }),
    }))
}

fn filter(query: &Query) -> Option<SnapshotFilter> {
    let text = |key| match query.get(key) {
        Some(value) if value.contains('\0') => None,
        value => Some(value.map(str::to_owned)),
    };
    let state = match query.get("state") {
        None => None,
        Some(name) => Some(name.parse::<SnapshotState>().ok()?),
    };
    let arch = match query.get("arch") {
        None => None,
        Some(arch) => Some(normalize_arch(arch)?.to_owned()),
    };
    Some(SnapshotFilter {
        environment_id: text("vm_id")?,
        task_id: text("task_id")?,
        owner: None,
        tenant: text("tenant_id")?,
        state,
        mode: text("mode")?,
        name: text("name")?,
        layer_key: text("layer_key")?,
        arch,
        host_id: text("host_id")?,
    })
}

pub(super) async fn resolve(
    State(app): State<App>,
    principal: Principal,
    query: Query,
) -> Result<Json<ResolvedSnapshot>, ApiError> {
    let required = |key: &str| {
        let value = query.get(key).filter(|value| !value.contains('\0'));
        value.ok_or_else(|| ApiError::invalid(format!("{key} is required")))
    };
    let layer_key = required("layer_key")?;
    let arch = required("arch")?;
    // An architecture that nothing has is a miss.
    let Some(arch) = normalize_arch(arch) else {
        return Ok(Json(ResolvedSnapshot::default()));
    };
    let tenant = principal.tenant();
    let found = app.control.snapshot_resolve(&tenant, layer_key, arch);
    let snapshot = found.await?.map(|snapshot| shown(snapshot, &principal));
    let miss_detail = match &snapshot {
        Some(_) => Vec::new(),
        None => app.control.snapshot_miss(&tenant, layer_key, arch).await?,
    };
    Ok(Json(ResolvedSnapshot {
        found: snapshot.is_some(),
        snapshot,
        miss_detail,
        tenant_id: tenant,
    }))
}

pub(super) async fn act(
    State(app): State<App>,
    id: Id,
    query: Query,
) -> Result<StatusCode, ApiError> {
    let id = SnapshotId::new(super::path_id(id, "snapshot")?);
    match query.get("action") {
        Some("restore") => {
            app.control.snapshot_restore(&id).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        _ => Err(ApiError::unknown_action()),
    }
}

pub(super) async fn delete(State(app): State<App>, id: Id) -> Result<StatusCode, ApiError> {
    let id = SnapshotId::new(super::path_id(id, "snapshot")?);
    app.control.snapshot_delete(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
