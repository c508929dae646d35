//! One question to the host agent of this machine. It is not the orchestrator's API, so it is not
//! the client's.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Bound of the whole exchange.
const PATIENCE: Duration = Duration::from_secs(5);
/// Enough of an answer for its status line.
const HEAD: u64 = 1024;

/// The status of `GET /healthz` on a loopback port.
///
/// # Errors
/// Nothing answers in time, or not in HTTP.
pub(super) async fn health(port: u16, token: &str) -> Result<u16, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        stream.take(HEAD).read_to_end(&mut head).await?;
        Ok::<_, std::io::Error>(head)
    };
    let head = tokio::time::timeout(PATIENCE, exchange)
        .await
        .map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?
        .map_err(|error| error.to_string())?;
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_whitespace();
    match (
        words.next(),
        words.next().and_then(|word| word.parse().ok()),
    ) {
        (Some(protocol), Some(status)) if protocol.starts_with("HTTP/1.") => Ok(status),
        _ => Err("the answer is not HTTP".to_owned()),
    }
}
