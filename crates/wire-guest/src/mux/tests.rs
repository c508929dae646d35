//! Both ends over an in-memory pipe.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::task::JoinSet;

use super::*;

fn pair(buffer: usize) -> (Mux, Mux) {
    let (host, guest) = duplex(buffer);
    (Mux::new(host, Role::Host), Mux::new(guest, Role::Guest))
}

/// Serves every accepted stream by sending back what comes in.
async fn echo(mut mux: Mux) {
    let mut streams = JoinSet::new();
    while let Some(incoming) = mux.accept().await {
        streams.spawn(async move {
            let stream = incoming.accept().await.unwrap();
            let (mut read, mut write) = split(stream);
            tokio::io::copy(&mut read, &mut write).await.ok();
            write.shutdown().await.ok();
        });
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i * 31 + seed * 7 + i / 251) % 256).unwrap())
        .collect()
}

async fn round_trip(opener: MuxOpener, seed: usize, len: usize) {
    let stream = opener.open(CONTROL).await.unwrap();
    let sent = pattern(seed, len);
    let expected = sent.clone();
    let (mut read, mut write) = split(stream);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    assert!(received == expected, "stream {seed} came back changed");
    tasks.join_all().await;
}

const CONTROL: u32 = crate::CONTROL_PORT;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_carry_megabytes_both_ways_at_once() {
    let (host, guest) = pair(4096);
    let (to_guest, to_host) = (host.opener(), guest.opener());
    let mut servers = JoinSet::new();
    servers.spawn(echo(host));
    servers.spawn(echo(guest));
    let mut clients = JoinSet::new();
    for seed in 0..40 {
        clients.spawn(round_trip(to_guest.clone(), seed, 300_000 + seed * 1000));
        clients.spawn(round_trip(to_host.clone(), seed + 100, 200_000 + seed));
    }
    clients.spawn(round_trip(to_guest.clone(), 7, 6_000_000));
    clients.join_all().await;
}

/// Opens a stream from one side and accepts it on the other.
async fn connect(from: &MuxOpener, to: &mut Mux, port: u32) -> (MuxStream, MuxStream) {
    let accepted = async { to.accept().await.unwrap().accept().await.unwrap() };
    let (opened, accepted) = tokio::join!(from.open(port), accepted);
    (opened.unwrap(), accepted)
}

#[tokio::test]
async fn the_port_reaches_the_other_side_whichever_opens() {
    let (mut host, mut guest) = pair(1024);
    let (near, far) = connect(&host.opener(), &mut guest, 1024).await;
    assert_eq!((near.port(), far.port()), (1024, 1024));
    let (near, far) = connect(&guest.opener(), &mut host, 1025).await;
    assert_eq!((near.port(), far.port()), (1025, 1025));
}

#[tokio::test]
async fn a_refused_stream_says_so() {
    let (host, mut guest) = pair(1024);
    let refuse = async { drop(guest.accept().await) };
    let (opened, ()) = tokio::join!(host.open(77), refuse);
    assert!(
        matches!(opened, Err(MuxError::Refused { port: 77 })),
        "{opened:?}"
    );
}

#[tokio::test]
async fn a_stream_may_be_half_closed() {
    let (host, mut guest) = pair(1024);
    let (mut near, mut far) = connect(&host.opener(), &mut guest, 9).await;
    near.write_all(b"question").await.unwrap();
    near.shutdown().await.unwrap();
    let mut text = String::new();
    far.read_to_string(&mut text).await.unwrap();
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    assert_eq!((text.as_str(), answer.as_str()), ("question", "answer"));
}

#[tokio::test]
async fn streams_end_and_opening_fails_when_the_peer_is_gone() {
    let (host, mut guest) = pair(1024);
    let (mut stream, _far) = connect(&host.opener(), &mut guest, 9).await;
    drop(guest);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.ok();
    host.opener().closed().await;
    assert!(matches!(host.open(9).await, Err(MuxError::Closed)));
}

#[tokio::test]
async fn more_streams_than_the_limit_wait_for_a_free_one() {
    let (host, mut guest) = pair(64 * 1024);
    let mut open = Vec::new();
    for port in 0..MAX_STREAMS {
        open.push(connect(&host.opener(), &mut guest, u32::try_from(port).unwrap()).await);
    }
    let opener = host.opener();
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { opener.open(9999).await.unwrap().port() });
    assert!(waiting.try_join_next().is_none());
    drop(open.pop());
    let accepted = guest.accept().await.unwrap();
    assert_eq!(accepted.port(), 9999);
    let _far = accepted.accept().await.unwrap();
    assert_eq!(waiting.join_next().await.unwrap().unwrap(), 9999);
}

/// The host side of a serial port is replaced without the guest noticing.
#[tokio::test]
async fn a_guest_joins_the_next_session_in_the_middle_of_any_frame() {
    for cut in [0, 1, 5, 11, 12, 13, 500, 16_000] {
        let (port, guest_io) = duplex(256 * 1024);
        let (mut from_guest, mut to_guest) = split(port);
        let guest = Mux::new(guest_io, Role::Guest);
        let mut server = JoinSet::new();
        server.spawn(echo(guest));

        // A first session, cut off `cut` bytes into a long frame.
        let (near, far) = duplex(256 * 1024);
        let first = Mux::new(near, Role::Host);
        relay_until_open(&first, far, (&mut from_guest, &mut to_guest)).await;
        drop(first);
        let mut frame = vec![0, 0, 0, 1, 0, 0, 0, 99, 0, 0, 0x40, 0];
        frame.extend(vec![5; 16_384]);
        to_guest.write_all(&frame[..cut]).await.unwrap();

        let second = Mux::new(from_guest.unsplit(to_guest), Role::Host);
        round_trip(second.opener(), cut, 100_000).await;
    }
}

type Halves<'a> = (
    &'a mut tokio::io::ReadHalf<DuplexStream>,
    &'a mut tokio::io::WriteHalf<DuplexStream>,
);

/// Carries bytes between `far` and the guest until a stream of `mux` was echoed.
async fn relay_until_open(mux: &Mux, far: DuplexStream, (from_guest, to_guest): Halves<'_>) {
    let (mut from_host, mut to_host) = split(far);
    let use_it = async {
        let mut stream = mux.open(1).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        let mut echoed = [0];
        stream.read_exact(&mut echoed).await.unwrap();
    };
    tokio::select! {
        () = use_it => {}
        _ = tokio::io::copy(&mut from_host, to_guest) => panic!("host side closed"),
        _ = tokio::io::copy(from_guest, &mut to_host) => panic!("guest side closed"),
    }
}
