//! Typed client of a host agent.
//!
//! One [`HostTransport`] holds the connections of a whole process; a [`HostClient`] is one agent's
//! address and token on top of it and is cheap to make and clone. Redirects are refused, every call
//! has its own bound (see [`crate::limits`]), and error bodies are read up to a cap.

mod artifacts;
mod attach;
mod calls;
mod error;
mod logs;
mod roots;
mod snapshots;
mod transport;

pub use artifacts::{ArtifactStream, FetchError};
pub use attach::AttachStream;
pub use calls::HostClient;
pub use error::{Call, HostError};
pub use logs::LogStream;
pub use roots::{AgentRoots, RootsError};
pub use transport::{HostTransport, TransportError};
