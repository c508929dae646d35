//! The Fusefile: a YAML file that becomes one create request.
//!
//! ```text
//! bytes ── parse ──▶ Document ── validate ──▶ problems
//!                        │
//!                        └── read_sources ──▶ compile ──▶ Compiled ──▶ Request, scripts, layer keys
//! ```
//!
//! [`check`] does all of that at once and gives every problem of the file in one list. The crate opens
//! nothing by itself: where contents are needed it is handed a [`fs::Tree`]. It knows nothing of the server,
//! the terminal or the command line; those are the callers' (`cli`).
//!
//! Every stage is a pure function of its arguments, takes time linear in its input, and never panics on any
//! input: the input is whatever somebody wrote into a file.

mod check;
mod compile;
mod copy_report;
mod decode;
pub mod diagnostic;
pub mod excerpt;
pub mod find;
pub mod fs;
pub mod grammar;
pub mod ignore;
pub mod inputs;
pub mod layers;
mod lint;
pub mod model;
pub mod scaffold;
pub mod schema;
mod shape;
pub mod sources;
mod task_id;
mod validate;
pub mod walk;
mod yaml;

pub use check::{Checked, check};
pub use compile::{
    Compiled, CopyEntry, DEFAULT_WORKSPACE, FileEntry, Script, Start, StepPlan, compile, request,
};
pub use decode::{Document, Parsed, parse};
pub use diagnostic::{Diagnostic, Position, Severity};
pub use lint::lint;
pub use sources::read_sources;
pub use task_id::TaskId;
pub use validate::validate;
