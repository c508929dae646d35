//! Starting a session on a link that may still carry the remains of another.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

use super::Role;
use super::link::{BREAK, Link, PADDING_BYTES};

const HELLO: &[u8; 8] = b"FUSEmux>";
const ACK: &[u8; 8] = b"FUSEmux<";
const SESSION_BYTES: usize = 16;

/// Brings both ends into a fresh session. The guest waits here for its host,
/// without a limit; the host for its guest to boot.
pub(super) async fn handshake<T>(link: &mut Link<T>, role: Role) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    link.discard_unwritten();
    link.queue(&[BREAK; PADDING_BYTES]);
    match role {
        Role::Host => {
            let session: [u8; SESSION_BYTES] = rand::random();
            link.queue(HELLO);
            link.queue(&session);
            // The session id tells this guest's answer from whatever is in front of it.
            skip_past(link, &[ACK.as_slice(), &session].concat()).await?;
        }
        Role::Guest => {
            // The padding tells a host that believes in a session that there is none.
            skip_past(link, HELLO).await?;
            let mut session = [0; SESSION_BYTES];
            for byte in &mut session {
                *byte = link.read_byte().await?;
            }
            link.queue(ACK);
            link.queue(&session);
        }
    }
    // What is still queued goes out with the session's first flush.
    link.start_session();
    Ok(())
}

async fn skip_past<T>(link: &mut Link<T>, mark: &[u8]) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut window = Vec::with_capacity(mark.len() + 1);
    while window != mark {
        window.push(link.read_byte().await?);
        if window.len() > mark.len() {
            window.remove(0);
        }
    }
    Ok(())
}
