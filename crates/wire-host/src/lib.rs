//! The contract between the control plane and the host agents.
//!
//! Both ends use this crate: the agents serve these types, the control plane calls them through
//! [`HostClient`]. Everything is plain data and validation; there is no server here.
//!
//! * [`vm`], [`exec`], [`files`], [`logs`], [`start_agent`], [`snapshot`], [`capacity`]: one file per resource, holding the
//!   request and the answer of its routes;
//! * [`artifact`], [`grant`]: disks on their way between hosts, and what opens them;
//! * [`generation`]: which releases of the two ends understand each other;
//! * [`limits`]: every bound both ends agree on;
//! * [`text`]: error bodies that the contract fixes word for word;
//! * [`url_policy`]: which agent URLs may be dialled;
//! * [`name`]: how a VM's name becomes its id;
//! * [`client`]: the typed client and its classified errors.
//!
//! An attached command speaks `fuse-attach/1` after an upgrade: [`attach`].
//!
//! Unknown JSON fields are ignored in both directions, so that either side may be newer.

pub mod artifact;
pub mod capacity;
pub mod client;
pub mod encoding;
pub mod exec;
pub mod files;
pub mod generation;
pub mod grant;
pub mod limits;
pub mod logs;
pub mod name;
pub mod snapshot;
pub mod start_agent;
pub mod text;
pub mod token;
pub mod url_policy;
pub mod vm;

pub use artifact::{Artifact, Pull, PullAnswer, PullRequest, PullState};
pub use capacity::{Capacity, GpuDevice, Health, MigInstance};
pub use client::{
    AgentRoots, ArtifactStream, AttachStream, FetchError, HostClient, HostError, HostTransport,
    LogStream, RootsError,
};
pub use exec::{ExecRequest, ExecResponse};
pub use files::{FileUpload, UploadRequest};
pub use fuse_wire_attach as attach;
pub use generation::Generations;
pub use grant::Grant;
pub use logs::{FailedCreate, LogSource, MAX_LOG_BYTES};
pub use snapshot::{
    ForkRequest, RestoreRequest, RestoreResponse, Snapshot, SnapshotKind, SnapshotList,
    SnapshotRequest,
};
pub use start_agent::{Endpoint, Expose, StartAgentRequest, StartAgentResponse};
pub use token::AgentToken;
pub use url_policy::{AgentUrl, AgentUrlError};
pub use vm::{CreateTimings, CreateVmRequest, VmList, VmState, VmView};
