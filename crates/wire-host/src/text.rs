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
