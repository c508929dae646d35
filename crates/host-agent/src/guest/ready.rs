//! Waiting for a guest to say that it serves.

use std::time::Duration;

use fuse_wire_guest::control::MAX_READY_BYTES;
use fuse_wire_guest::{GENERATION, Ready};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::transport::{ChannelError, GuestListener, GuestStream};

/// How long one dialled stream may take to bring its line.
const LINE_LIMIT: Duration = Duration::from_secs(10);

/// A guest that did not get ready.
#[derive(Debug, Error)]
pub enum ReadyError {
    /// The channel broke.
    #[error("the channel broke while the guest booted")]
    Channel(#[source] ChannelError),
    /// The guest answers but cannot be used.
    #[error("the guest cannot be used: {reason}")]
    Unusable {
        /// Its own reason.
        reason: String,
    },
    /// The guest agent is from a future that this host cannot speak to.
    #[error(
        "the guest agent speaks generation {guest} of the contract and this host agent {GENERATION}; \
         build the image with `image build` of this version"
    )]
    Generation {
        /// What the guest speaks.
        guest: u32,
    },
}

/// Waits for the line of `vm_id`. Lines that do not parse or name another VM are passed over:
/// anybody in the guest can dial. The caller sets the bound.
///
/// # Errors
/// The channel breaks, or the guest says that it is unusable.
pub async fn wait(listener: &mut dyn GuestListener, vm_id: &str) -> Result<Ready, ReadyError> {
    loop {
        let stream = listener.accept().await.map_err(ReadyError::Channel)?;
        let line = tokio::time::timeout(LINE_LIMIT, read(stream)).await;
        let Some(ready) = line.ok().flatten().filter(|ready| ready.vm_id == vm_id) else {
            tracing::warn!(vm_id, "a guest dialled the ready port with something else");
            continue;
        };
        if let Some(reason) = ready.error {
            return Err(ReadyError::Unusable { reason });
        }
        if ready.generation < 1 || ready.generation > GENERATION {
            return Err(ReadyError::Generation {
                guest: ready.generation,
            });
        }
        return Ok(ready);
    }
}

async fn read(stream: GuestStream) -> Option<Ready> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_READY_BYTES as u64))
        .read_until(b'\n', &mut line)
        .await
        .ok()?;
    serde_json::from_slice(&line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::collections::VecDeque;

    struct Lines(VecDeque<Vec<u8>>);

    #[async_trait]
    impl GuestListener for Lines {
        async fn accept(&mut self) -> Result<GuestStream, ChannelError> {
            let line = self.0.pop_front().ok_or(ChannelError::Closed)?;
            Ok(Box::new(tokio::io::join(
                std::io::Cursor::new(line),
                tokio::io::sink(),
            )))
        }
    }

    fn ready(vm_id: &str, generation: u32, error: Option<&str>) -> Vec<u8> {
        let line = Ready {
            generation,
            fused_version: "0.1".into(),
            vm_id: vm_id.into(),
            boot_id: "b".into(),
            error: error.map(Into::into),
        };
        serde_json::to_vec(&line).unwrap()
    }

    #[tokio::test]
    async fn noise_is_passed_over() {
        let noise = vec![b'{'; MAX_READY_BYTES * 2];
        let lines = [
            b"hello\n".to_vec(),
            noise,
            ready("other", 1, None),
            ready("vm-1", 1, None),
        ];
        let mut listener = Lines(lines.into());
        assert_eq!(wait(&mut listener, "vm-1").await.unwrap().vm_id, "vm-1");
        let end = wait(&mut listener, "vm-1").await.unwrap_err();
        assert!(matches!(end, ReadyError::Channel(ChannelError::Closed)));
    }

    #[tokio::test]
    async fn an_unusable_guest_says_why() {
        let lines = [
            ready("vm-1", 1, Some("the image has no /bin/sh")),
            ready("vm-1", 9, None),
        ];
        let mut listener = Lines(lines.into());
        let error = wait(&mut listener, "vm-1").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the guest cannot be used: the image has no /bin/sh"
        );
        let error = wait(&mut listener, "vm-1").await.unwrap_err();
        assert!(matches!(error, ReadyError::Generation { guest: 9 }));
    }
}
