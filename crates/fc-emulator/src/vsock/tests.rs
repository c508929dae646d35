//! The bridge between real Unix sockets and a guest's end of the multiplexer.

use std::path::Path;

use fuse_wire_guest::mux::{Mux, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::{Bridge, Listener};

struct Device {
    dir: tempfile::TempDir,
    bridge: Bridge,
    /// QEMU's end of the serial port.
    port: std::os::unix::net::UnixStream,
}

impl Device {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let listener = Listener::bind(&dir.path().join("v.sock")).unwrap();
        Self {
            dir,
            bridge: Bridge::start(listener, near),
            port: far.into_std().unwrap(),
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// A guest that joins a session on the port, as one that was just booted.
    fn guest(&self) -> Mux {
        let port = UnixStream::from_std(self.port.try_clone().unwrap()).unwrap();
        Mux::new(port, Role::Guest)
    }

    async fn connect(&self, line: &str) -> UnixStream {
        connect(&self.path("v.sock"), line).await
    }
}

async fn connect(path: &Path, line: &str) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(line.as_bytes()).await.unwrap();
    stream
}

async fn read_line(stream: &mut UnixStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(line).unwrap()
}

async fn rest(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn the_host_reaches_a_port_of_the_guest() {
    let device = Device::new();
    let mut guest = device.guest();
    // What follows the line at once belongs to the stream.
    let mut host = device.connect("CONNECT 1024\nhello").await;
    let incoming = guest.accept().await.unwrap();
    assert_eq!(incoming.port(), 1024);
    let mut stream = incoming.accept().await.unwrap();
    assert_eq!(read_line(&mut host).await, "OK 1073741824\n");
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
    host.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut hello).await.unwrap(), 0);
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut host).await, b"bye");

    let mut second = device.connect("CONNECT 7\n").await;
    guest.accept().await.unwrap().accept().await.unwrap();
    assert_eq!(read_line(&mut second).await, "OK 1073741825\n");
}

#[tokio::test]
async fn a_refused_connection_closes_without_a_word() {
    let device = Device::new();
    let mut guest = device.guest();
    let mut host = device.connect("CONNECT 5\n").await;
    drop(guest.accept().await.unwrap());
    assert_eq!(rest(&mut host).await, b"");
}

#[tokio::test]
async fn lines_that_name_no_port_close_the_connection() {
    let device = Device::new();
    let long = "CONNECT 1".to_owned() + &"1".repeat(100);
    for line in [
        "GET / HTTP/1.1\r\n",
        "CONNECT\n",
        "CONNECT 99999999999\n",
        &long,
    ] {
        let mut host = device.connect(line).await;
        // What was not read of a long line may turn the close into a reset.
        let mut bytes = Vec::new();
        host.read_to_end(&mut bytes).await.ok();
        assert_eq!(bytes, b"", "{line}");
    }
    let mut host = device.connect("CONNECT 10").await;
    host.shutdown().await.unwrap();
    assert_eq!(rest(&mut host).await, b"", "the line is not finished");
}

#[tokio::test]
async fn the_guest_reaches_a_listener_of_the_host() {
    let device = Device::new();
    let guest = device.guest();
    assert!(guest.open(1025).await.is_err(), "nobody listens yet");
    let listener = UnixListener::bind(device.path("v.sock_1025")).unwrap();
    let mut stream = guest.open(1025).await.unwrap();
    let (mut host, _) = listener.accept().await.unwrap();
    stream.write_all(b"ready\n").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut host).await, b"ready\n");
}

#[tokio::test]
async fn a_guest_that_starts_over_is_served_again() {
    let device = Device::new();
    for _ in 0..3 {
        let mut guest = device.guest();
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move {
            while let Some(incoming) = guest.accept().await {
                incoming.accept().await.ok();
            }
        });
        // A connection that meets the end of the old session is closed; the next one is not.
        loop {
            let mut host = device.connect("CONNECT 1\n").await;
            if host.read_u8().await.is_ok() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn who_connects_before_the_guest_runs_waits() {
    let device = Device::new();
    let mut host = device.connect("CONNECT 3\n").await;
    let mut guest = device.guest();
    guest.accept().await.unwrap().accept().await.unwrap();
    assert!(read_line(&mut host).await.starts_with("OK "));
}

#[tokio::test]
async fn the_socket_goes_away_with_the_device() {
    let device = Device::new();
    let path = device.path("v.sock");
    assert!(Listener::bind(&path).is_err(), "the path is taken");
    drop(device.bridge);
    tokio::task::yield_now().await;
    assert!(!path.exists());
}
