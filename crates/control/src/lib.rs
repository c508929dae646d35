//! The control plane: use cases over the store, the planner and the providers.
//!
//! Invariants:
//! - The store is the truth. Every transition is committed before anybody is told.
//! - Intent is stored before a host is called, and calls are idempotent by VM name, so
//!   an interrupted operation can be finished or undone by whoever finds it.
//! - A use case that changes something runs to its end although its caller goes away.
//! - The planner makes the choices; the code here carries them out.
//! - No secret value is in a log, an error, an event or an audit entry.
//!
//! Called by the orchestrator's HTTP layer through [`Control`].

mod activity;
mod api_key;
mod attach;
mod audit;
mod computer;
mod control;
mod create;
mod destroy;
mod drain;
mod environments;
mod error;
mod events;
mod exec;
mod fail_point;
mod guest;
mod health;
mod hosts;
mod inflight;
mod keys;
mod ledger;
mod logs;
mod metrics;
mod operation;
mod provider;
mod reconcile;
mod records;
mod rotate;
mod settings;
mod snapshot;

pub use api_key::{MintedKey, mint_api_key};
pub use attach::Attached;
pub use control::Control;
pub use create::{CreateFailure, CreatedOnce, Creation, Once, Phase, Repeat, Wording};
pub use environments::TaskDetails;
pub use error::{Error, Missing, PlacementRefusal, chain, of_the_store};
pub use events::{EventStream, FleetEvents, SharedEvent};
pub use exec::{Command, ExecOutput, ExecStream};
pub use hosts::{
    ExplainedHost, Explanation, HostVerdict, RegisterError, Registration, check_agent_url,
};
pub use keys::KeyTrouble;
pub use logs::{LogSource, Logs};
pub use metrics::{BUCKETS, Metrics};
pub use provider::{LookupError, ProviderError};
pub use reconcile::{Health as ReconcileHealth, Preview, PreviewStep};
pub use settings::Settings;
pub use snapshot::AnsweredOnce;

pub use fuse_planner::{Policy, Verdict};
