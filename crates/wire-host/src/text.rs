//! Error bodies that the contract fixes word for word.
//!
//! The agents answer errors as `text/plain`; clients show the text and branch on the status only.

/// Body of a 401.
pub const UNAUTHORIZED: &str = "unauthorized";
/// Body of a 404 for a VM that does not exist.
pub const VM_NOT_FOUND: &str = "vm not found";
/// Body of a 404 for an unknown route or method.
pub const NOT_FOUND: &str = "not found";
/// Body of a 404 for a snapshot that does not exist.
pub const SNAPSHOT_NOT_FOUND: &str = "snapshot not found";
/// Body of a 403: an artifact's grant was refused, for whatever reason.
pub const FORBIDDEN: &str = "forbidden";
/// Body of a 404 for an artifact that is not there.
pub const ARTIFACT_NOT_FOUND: &str = "artifact not found";
/// Body of a 404 for a pull that this agent does not know, or not any more.
pub const PULL_NOT_FOUND: &str = "pull not found";
