//! Who is behind a reverse proxy. Forwarded headers are the peer's own words, so they count from peers
//! in `ORCH_TRUSTED_PROXIES` only, and no further back than those go.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    middleware::Next,
    response::Response,
};

use super::{AddressBlocks, App};
use crate::server::Peer;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// Middleware around everything that asks where a request comes from.
pub(super) async fn look_behind(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    if let Some(peer) = peer.filter(|peer| app.proxies.hold(peer.address))
        && let Some(address) = client(&app.proxies, request.headers())
    {
        let port = None;
        request.extensions_mut().insert(Peer { address, port });
        tracing::trace!(%address, proxy = %peer, "forwarded");
    }
    next.run(request).await
}

/// The nearest address that is not a proxy's own. Each proxy adds at the end whom it was called by, so
/// what stands before the first stranger is the stranger's claim. `None`: the proxy itself.
fn client(proxies: &AddressBlocks, headers: &HeaderMap) -> Option<IpAddr> {
    let lines = headers.get_all(FORWARDED_FOR).iter().rev();
    let hops = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let mut nearest = None;
    for hop in hops {
        let Some(address) = parse(hop) else {
            break;
        };
        nearest = Some(address);
        if !proxies.hold(address) {
            break;
        }
    }
    nearest
}

/// An address; some proxies add the port.
fn parse(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(lines: &[&'static str]) -> String {
        let proxies = AddressBlocks::parse("10.0.0.0/8,fd00::/8").unwrap();
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        client(&proxies, &headers).map_or_else(|| "the proxy".to_owned(), |it| it.to_string())
    }

    #[test]
    fn the_nearest_stranger_is_the_client() {
        for (lines, client) in [
            (&["203.0.113.9"][..], "203.0.113.9"),
            // Before it may stand whatever the client likes.
            (&["192.0.2.1, 203.0.113.9"], "203.0.113.9"),
            (&["192.0.2.1", "203.0.113.9"], "203.0.113.9"),
            (&["nonsense,203.0.113.9"], "203.0.113.9"),
            // Proxies in a row.
            (
                &["192.0.2.1, 203.0.113.9, 10.1.1.1 ,fd00::7"],
                "203.0.113.9",
            ),
            (&["203.0.113.9", "10.1.1.1"], "203.0.113.9"),
            // With ports, and in the mapped form.
            (&["203.0.113.9:4711"], "203.0.113.9"),
            (&["[2001:db8::1]:4711"], "2001:db8::1"),
            (&["::ffff:203.0.113.9"], "203.0.113.9"),
            // Callers inside of the proxies' network.
            (&["10.2.2.2, 10.1.1.1"], "10.2.2.2"),
            // As far as it can be followed.
            (&["203.0.113.9, unknown, 10.1.1.1"], "10.1.1.1"),
            (&["203.0.113.9, "], "the proxy"),
            (&["unknown"], "the proxy"),
            (&[], "the proxy"),
        ] {
            assert_eq!(behind(lines), client, "{lines:?}");
        }
    }
}
