//! The one map from errors to statuses and texts.
//!
//! Every error body is `text/plain`. What a caller did wrong is said as it is; what the host could
//! not do is said with its causes, because the reader is the operator of both.

use std::any::Any;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use fuse_wire_host::{Generations, text};

use crate::artifact::{PullError, ServeError};
use crate::disk::sealed::SealError;
use crate::gpu::PickError;
use crate::guest::GuestError;
use crate::registry::{
    CreateError, DeleteError, ForkError, LeaseError, LogError, NoSnapshots, RestoreError,
    SnapshotError, SurfaceError, VmError,
};
use crate::report::chain;
use crate::snapshot::StoreError;

/// Seconds after which a refused call may be tried again.
const RETRY_SECONDS: u32 = 5;

/// A refusal or failure as it goes out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text::UNAUTHORIZED)
    }

    pub(super) fn generation(theirs: Generations) -> Self {
        let behind = if theirs.is_behind(Generations::OURS) {
            "the caller, which is behind"
        } else {
            "this agent, which is behind: host-agent/firecracker/fc-update.sh"
        };
        let text = format!(
            "this agent speaks generations {} of the host contract and the caller {theirs}: update {behind}",
            Generations::OURS
        );
        Self::new(StatusCode::UPGRADE_REQUIRED, text)
    }

    pub(super) fn unknown_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, text::NOT_FOUND)
    }

    pub(super) fn not_found(text: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(super) fn unknown_method() -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "method not implemented")
    }

    pub(super) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn length_required() -> Self {
        let text = "chunked bodies are not accepted: send a Content-Length";
        Self::new(StatusCode::LENGTH_REQUIRED, text)
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let text = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    pub(super) fn busy(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    fn vm_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, text::VM_NOT_FOUND)
    }

    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, chain(error))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}

/// A panic is a defect; the caller learns that it was here and nothing else.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the layer hands the panic over"
)]
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(message, "a handler panicked");
    let text = "the agent failed inside; its log says where";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

impl From<VmError> for ApiError {
    fn from(error: VmError) -> Self {
        match error {
            VmError::NotFound => Self::vm_not_found(),
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        match &error {
            CreateError::Spec(_) | CreateError::Gpus(PickError::Contradiction(_)) => {
                Self::bad_request(error.to_string())
            }
            CreateError::Image(image) if image.is_request() => Self::bad_request(error.to_string()),
            CreateError::Seed(seed) => seed.into(),
            CreateError::Gpus(gpus) if gpus.is_hosts() => Self::internal(&error),
            CreateError::Exists { .. }
            | CreateError::Cancelled { .. }
            | CreateError::NoGpus
            | CreateError::Gpus(_) => Self::new(StatusCode::CONFLICT, error.to_string()),
            CreateError::Unsupported(none) => (*none).into(),
            CreateError::Full { .. }
            | CreateError::Space(_)
            | CreateError::HugePages(_)
            | CreateError::Busy { .. } => Self::busy(chain(&error)),
            CreateError::Image(_)
            | CreateError::Inventory(_)
            | CreateError::Step { .. }
            | CreateError::Undo { .. }
            | CreateError::Lost { .. } => Self::internal(&error),
        }
    }
}

impl From<NoSnapshots> for ApiError {
    fn from(error: NoSnapshots) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, error.to_string())
    }
}

impl From<DeleteError> for ApiError {
    fn from(error: DeleteError) -> Self {
        match error {
            DeleteError::Vm(error) => error.into(),
            DeleteError::ShuttingDown { .. } => Self::busy(error.to_string()),
            DeleteError::Undo { .. } => Self::internal(&error),
        }
    }
}

impl From<LeaseError> for ApiError {
    fn from(error: LeaseError) -> Self {
        match &error {
            LeaseError::Vm(VmError::NotFound) | LeaseError::Deleted { .. } => Self::vm_not_found(),
            LeaseError::Booting { .. } | LeaseError::Busy { .. } => Self::busy(error.to_string()),
            LeaseError::Stopped { .. } | LeaseError::Restored { .. } => {
                Self::new(StatusCode::CONFLICT, error.to_string())
            }
            LeaseError::Guest(GuestError::Refused { reason }) => Self::bad_request(reason.clone()),
            LeaseError::Guest(_) => Self::internal(&error),
        }
    }
}

impl From<LogError> for ApiError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Vm(error) => error.into(),
            LogError::Lease(error) => error.into(),
            LogError::NotYet { .. } => Self::busy(error.to_string()),
            LogError::File(_) => Self::internal(&error),
        }
    }
}

impl From<SurfaceError> for ApiError {
    fn from(error: SurfaceError) -> Self {
        match error {
            SurfaceError::Vm(error) => error.into(),
            SurfaceError::Lease(error) => error.into(),
            SurfaceError::NoPort { .. } => Self::busy(error.to_string()),
            SurfaceError::Store { .. }
            | SurfaceError::Publish { .. }
            | SurfaceError::Guest { .. }
            | SurfaceError::NotRunning { .. } => Self::internal(&error),
        }
    }
}

impl From<&StoreError> for ApiError {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::new(StatusCode::NOT_FOUND, text::SNAPSHOT_NOT_FOUND),
            StoreError::InUse { .. } => Self::new(StatusCode::CONFLICT, error.to_string()),
            StoreError::File(_) => Self::internal(error),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

impl From<ServeError> for ApiError {
    fn from(error: ServeError) -> Self {
        match &error {
            ServeError::Forbidden => Self::new(StatusCode::FORBIDDEN, text::FORBIDDEN),
            ServeError::NotFound => Self::not_found(text::ARTIFACT_NOT_FOUND),
            ServeError::Range { .. } => {
                Self::new(StatusCode::RANGE_NOT_SATISFIABLE, error.to_string())
            }
            ServeError::Busy => Self::busy(error.to_string()),
            ServeError::File(_) => Self::internal(&error),
        }
    }
}

impl From<PullError> for ApiError {
    fn from(error: PullError) -> Self {
        let status = match &error {
            PullError::Request(_) => StatusCode::BAD_REQUEST,
            PullError::Taken { .. } => StatusCode::CONFLICT,
            PullError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            PullError::Failed(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Source(error) => error.into(),
            ForkError::Create(error) => error.into(),
        }
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Exists { .. } => Self::new(StatusCode::CONFLICT, chain(&error)),
            SnapshotError::Vm(error) => error.into(),
            SnapshotError::Lease(error) => error.into(),
            SnapshotError::Space(_)
            | SnapshotError::Full { .. }
            | SnapshotError::ShuttingDown { .. }
            | SnapshotError::Copy(SealError::Full { .. }) => Self::busy(chain(&error)),
            SnapshotError::Copy(_)
            | SnapshotError::Store(_)
            | SnapshotError::Vmm(_)
            | SnapshotError::NotResumed { .. }
            | SnapshotError::Task(_) => Self::internal(&error),
        }
    }
}

impl From<RestoreError> for ApiError {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Vm(error) => error.into(),
            RestoreError::Snapshot(error) => error.into(),
            RestoreError::Lease(error) => error.into(),
            RestoreError::Foreign { .. } => Self::new(StatusCode::CONFLICT, error.to_string()),
            RestoreError::Space(_) | RestoreError::ShuttingDown { .. } => Self::busy(chain(&error)),
            RestoreError::Files(_)
            | RestoreError::Stop(_)
            | RestoreError::BringUp(_)
            | RestoreError::RolledBack { .. }
            | RestoreError::Stopped { .. } => Self::internal(&error),
        }
    }
}
