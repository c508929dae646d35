//! Bounds that both ends of the host contract agree on.
//!
//! Each operation has a limit of its own inside the agent; the client waits that long plus
//! [`CALL_GRACE`], so that the agent's own error arrives before the client gives up.

use std::time::Duration;

/// Largest body of an ordinary request, in bytes (`*_MAX_BODY_BYTES`).
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Largest body of an upload, in bytes of JSON (`*_MAX_UPLOAD_BYTES`), about 48 MiB of file.
pub const MAX_UPLOAD_BYTES: usize = 64 * 1024 * 1024;
/// Longest request line and longest single header line, in bytes.
pub const MAX_HEADER_LINE: usize = 64 * 1024;
/// Most headers of one request.
pub const MAX_HEADERS: usize = 100;
/// How long a connection may stay silent while the agent reads a request.
pub const REQUEST_IDLE: Duration = Duration::from_secs(60);
/// Most bytes of an error body that a client reads.
pub const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Most bytes of a success body that a client reads: two exec streams of 8 MiB in base64 and room.
pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Most bytes kept of each output stream of an exec.
pub const MAX_EXEC_STREAM_BYTES: usize = 8 * 1024 * 1024;

/// Longest and default running time of an exec.
pub const EXEC_MAX: Duration = Duration::from_secs(600);
/// Bound of one upload into a guest.
pub const UPLOAD_LIMIT: Duration = Duration::from_secs(60);
/// Bound of one start of the guest agent's public surface.
pub const START_AGENT_LIMIT: Duration = Duration::from_secs(60);
/// How long a guest may take from power-on to answering, unless the agent is configured otherwise.
pub const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a create may wait for its turn to boot before it is refused with 503.
pub const BOOT_QUEUE_LIMIT: Duration = Duration::from_secs(60);
/// Bound of a whole create: waiting for a turn, booting, and the host's own work.
pub const CREATE_LIMIT: Duration = Duration::from_secs(200);
/// Bound of a delete.
pub const DELETE_LIMIT: Duration = Duration::from_secs(30);
/// Bound of taking a snapshot.
pub const SNAPSHOT_LIMIT: Duration = Duration::from_secs(600);
/// Bound of a restore: a copy of the disk, then a boot or loading the memory.
pub const RESTORE_LIMIT: Duration = Duration::from_secs(600);
/// Bound of a fork: a copy of the disk on top of a create.
pub const FORK_LIMIT: Duration = Duration::from_secs(600);
/// Bound of the handshake of an attach.
pub const ATTACH_LIMIT: Duration = Duration::from_secs(15);
/// Bound of a call that only reads the agent's state.
pub const READ_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of an artifact that are sent at a time.
pub const ARTIFACT_CHUNK: usize = 1024 * 1024;
/// Largest artifact (`FC_AGENT_MAX_ARTIFACT_BYTES`).
pub const MAX_ARTIFACT_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// How long the other end of a transfer may stay silent (`FC_AGENT_ARTIFACT_IO_TIMEOUT`).
pub const ARTIFACT_IO: Duration = Duration::from_secs(60);
/// Bound of a whole transfer, on either end (`FC_AGENT_ARTIFACT_TRANSFER_TIMEOUT`).
pub const ARTIFACT_TRANSFER: Duration = Duration::from_secs(1800);

/// What a client waits beyond the operation's own limit.
pub const CALL_GRACE: Duration = Duration::from_secs(30);
/// Bound of establishing a connection to an agent.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long an idle connection to an agent is kept.
pub const POOL_IDLE: Duration = Duration::from_secs(90);
/// Idle connections kept per agent.
pub const POOL_IDLE_PER_HOST: usize = 4;

/// Uploads of one VM that a caller runs at a time.
pub const UPLOADS_PER_VM: usize = 8;
