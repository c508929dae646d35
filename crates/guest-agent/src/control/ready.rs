//! Tells the host, once per boot, that the control API is served.

use std::io;
use std::time::Duration;

use fuse_wire_guest::Ready;
use tokio::io::AsyncWriteExt as _;

use super::Transports;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Sends the ready line; tries again until a host takes it.
pub(crate) async fn announce(mut transports: Transports, ready: Ready) {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = send(&mut transports, &ready).await {
        tracing::debug!(%error, "nobody listens for the ready signal yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn send(transports: &mut Transports, ready: &Ready) -> io::Result<()> {
    let mut line = serde_json::to_vec(ready)?;
    line.push(b'\n');
    let mut stream = transports.dial_ready().await?;
    stream.write_all(&line).await?;
    stream.shutdown().await
}
