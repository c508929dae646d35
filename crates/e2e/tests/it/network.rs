//! What may reach what: guests not each other and not the host; the world yes; published ports from everywhere.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fuse_testkit::outside::{Outside, ask, serve_on_host};
use fuse_testkit::{Guest, Stack, boot_permit, until};
use serde_json::{Value, json};

use crate::suite::{Suite, with_stack};

/// A tiny HTTP server that stays behind when the startup script ends.
const SERVER: &str = r#"
cat > /srv/server.pl <<'PERL'
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalPort => 8000, Listen => 16, ReuseAddr => 1) or die "listen: $!";
while (my $peer = $server->accept) { print $peer "served by $ARGV[0]\n"; close $peer; }
PERL
setsid perl /srv/server.pl "$(hostname)" </dev/null >/dev/null 2>&1 &
"#;

/// Two environments, created side by side, looked at from inside, from the host and from another machine.
pub(crate) async fn isolation_egress_and_published_ports(_: Suite) -> Result<()> {
    with_stack("network", Default::default(), async |stack| {
        let turn = boot_permit(2).await?;
        let (a, b) = tokio::try_join!(serving(stack, "e2e-net-a"), serving(stack, "e2e-net-b"))?;
        drop(turn);
        let outside = Outside::create(stack.slot())?;
        published(stack, &outside, &a).await?;
        published(stack, &outside, &b).await?;
        not_each_other(stack, &a, &b).await?;
        not_the_host(stack, &outside, &a).await?;
        the_world(stack, &outside, &a).await?;
        no_spoofing(stack, &outside, &a).await?;
        let records = [stack.record(&a.id)?, stack.record(&b.id)?];
        a.destroy().await?;
        stack.expect_gone(&records[0])?;
        // The neighbour's ports are untouched by that.
        published(stack, &outside, &b).await?;
        b.destroy().await?;
        stack.expect_gone(&records[1])
    })
    .await
}

async fn serving(stack: &Stack, task: &str) -> Result<Guest> {
    let body = json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 256}, "startup_script": SERVER,
        "expose": [{"port": 8000, "as": "web"}]});
    stack.create(&body).await
}

fn endpoint(guest: &Guest) -> Result<(IpAddr, u16)> {
    let endpoint: &Value = &guest.object["endpoints"][0];
    ensure!(
        endpoint["as"] == "web" && endpoint["port"] == 8000,
        "endpoints: {}",
        guest.object["endpoints"]
    );
    let address: SocketAddr = endpoint["url"].as_str().context("endpoint url")?.parse()?;
    Ok((address.ip(), address.port()))
}

/// The published port answers on 127.0.0.1, on another address of the host, and from another machine.
async fn published(stack: &Stack, outside: &Outside, guest: &Guest) -> Result<()> {
    let (_, port) = endpoint(guest)?;
    let (low, high) = stack.slot().expose_ports();
    ensure!(
        (low..=high).contains(&port),
        "port {port} is not from {low}-{high}"
    );
    let name = guest.ok("hostname").await?;
    let expected = format!("served by {name}\n");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // The script has started the server but not waited for it to listen.
    until(
        "the guest's server listens",
        Duration::from_secs(20),
        || async { ask(loopback, "") },
    )
    .await?;
    ensure!(ask(loopback, "")? == expected, "on 127.0.0.1");
    ensure!(
        ask((outside.host_ip, port).into(), "")? == expected,
        "on {}",
        outside.host_ip
    );
    ensure!(
        outside.ask((outside.host_ip, port).into(), "")? == expected,
        "from another machine"
    );
    // The guest agent's own surface is published the same way.
    let url = guest.object["url"].as_str().context("url")?;
    let surface_port: u16 = url.rsplit(':').next().context("port")?.parse()?;
    let reach = outside
        .run(move || Ok(std::net::TcpStream::connect(("127.0.0.1", surface_port)).is_ok()))?;
    ensure!(!reach, "another machine's loopback reaches the guest");
    let host_ip = outside.host_ip;
    outside
        .run(move || Ok(std::net::TcpStream::connect((host_ip, surface_port))?))
        .context("surface from outside")?;
    Ok(())
}

async fn not_each_other(stack: &Stack, a: &Guest, b: &Guest) -> Result<()> {
    let (ip_a, ip_b) = (stack.record(&a.id)?.guest_ip, stack.record(&b.id)?.guest_ip);
    for (from, to_ip, to) in [(a, &ip_b, b), (b, &ip_a, a)] {
        // The check itself works: a guest reaches its own server.
        ensure!(
            connects(from, "127.0.0.1", 8000).await?,
            "{} does not reach itself",
            from.id
        );
        ensure!(
            !connects(from, to_ip, 8000).await?,
            "{} reaches {}",
            from.id,
            to.id
        );
        let (_, port) = endpoint(to)?;
        let gateway = gateway(stack, from)?;
        ensure!(
            !connects(from, &gateway, port).await?,
            "{} reaches {} by its published port",
            from.id,
            to.id
        );
        let ping = from
            .sh(&format!(
                "command -v ping >/dev/null || exit 99; ping -c 1 -W 2 {to_ip}"
            ))
            .await?;
        ensure!(ping.exit_code != 0, "{} can ping {}", from.id, to.id);
    }
    Ok(())
}

/// Services of the host (any address of it) refuse guests; the control channel needs no network.
async fn not_the_host(stack: &Stack, outside: &Outside, guest: &Guest) -> Result<()> {
    let port = stack.slot().spare_port(0);
    let peers = serve_on_host(port)?;
    let gateway = gateway(stack, guest)?;
    let host_ip = outside.host_ip.to_string();
    for address in [&gateway, &host_ip] {
        for port in [
            port,
            stack.slot().agent_port(),
            stack.slot().orchestrator_port(),
        ] {
            ensure!(
                !connects(guest, address, port).await?,
                "the guest reaches {address}:{port} of the host"
            );
        }
    }
    ensure!(
        peers.try_recv().is_err(),
        "a connection from the guest arrived at the host"
    );
    Ok(())
}

/// Egress works and carries the host's address.
async fn the_world(stack: &Stack, outside: &Outside, guest: &Guest) -> Result<()> {
    let port = stack.slot().spare_port(1);
    let peers = outside.serve(port)?;
    ensure!(
        connects(guest, &outside.ip.to_string(), port).await?,
        "the guest does not reach the outside"
    );
    let peer = peers
        .recv_timeout(Duration::from_secs(5))
        .context("no connection arrived outside")?;
    ensure!(
        peer == outside.host_ip,
        "egress is not masqueraded: it came from {peer}"
    );
    // Another machine that routes to the host does not reach into the guest's network.
    let address: SocketAddr = format!("{}:8000", stack.record(&guest.id)?.guest_ip).parse()?;
    ensure!(
        outside.ask(address, "").is_err(),
        "another machine reaches {address} directly"
    );
    Ok(())
}

/// A guest cannot speak in another address's name.
async fn no_spoofing(stack: &Stack, outside: &Outside, guest: &Guest) -> Result<()> {
    let port = stack.slot().spare_port(2);
    let peers = outside.serve(port)?;
    let gateway = gateway(stack, guest)?;
    let (outside_ip, stolen) = (outside.ip, stack.slot().guest_ip(200));
    guest
        .ok("command -v ip >/dev/null")
        .await
        .context("the base image has no `ip`")?;
    guest
        .ok(&format!("ip addr add {stolen}/32 dev eth0; ip route add {outside_ip}/32 via {gateway} src {stolen}"))
        .await?;
    let reached = connects(guest, &outside_ip.to_string(), port).await?;
    guest
        .ok(&format!(
            "ip route del {outside_ip}/32; ip addr del {stolen}/32 dev eth0"
        ))
        .await?;
    if reached || peers.try_recv().is_ok() {
        bail!("a packet with the stolen address {stolen} left the host");
    }
    Ok(())
}

/// The host's end of the guest's link.
fn gateway(stack: &Stack, guest: &Guest) -> Result<String> {
    let ip = stack.record(&guest.id)?.guest_ip;
    Ok(format!(
        "{}.1",
        ip.rsplit_once('.').context("guest address")?.0
    ))
}

/// Whether the guest can open a TCP connection and gets an answer within 3 s.
async fn connects(guest: &Guest, address: &str, port: u16) -> Result<bool> {
    let script = "use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], \
                  Timeout => 3) or exit 1; alarm 3; defined(<$s>) or exit 2;";
    let port = port.to_string();
    let result = guest
        .exec(&["perl", "-e", script, address, &port], 20_000)
        .await?;
    Ok(result.exit_code == 0)
}
