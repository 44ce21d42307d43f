//! Clients that break the mux protocol harm nobody.

use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::stock::Stock;
use crate::home::server;

const HELLO: &[u8] = &[0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 4];
const NEW_SESSION: u32 = 0x1000_0002;
const FAILURE: u32 = 0x8000_0003;

pub(crate) fn packet(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(4 + body.len()).unwrap();
    [&len.to_be_bytes()[..], &kind.to_be_bytes(), body].concat()
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [
        &u32::try_from(text.len()).unwrap().to_be_bytes()[..],
        text.as_bytes(),
    ]
    .concat()
}

/// `MUX_C_NEW_SESSION` for `cat` without a terminal.
fn session() -> Vec<u8> {
    let flags = [0; 16];
    let body = [
        &7_u32.to_be_bytes()[..],
        &string(""),
        &flags,
        &[0xff; 4],
        &string("vt100"),
        &string("cat"),
    ];
    packet(NEW_SESSION, &body.concat())
}

pub(crate) fn greet(stock: &Stock) -> UnixStream {
    let mut stream = UnixStream::connect(&stock.socket).unwrap();
    stream.set_read_timeout(Some(crate::home::PATIENCE)).unwrap();
    stream.write_all(HELLO).unwrap();
    assert_eq!(reply(&mut stream), hello());
    stream
}

/// The server's hello, as OpenSSH 10.3's master says it.
fn hello() -> (u32, Vec<u8>) {
    let body = [&4_u32.to_be_bytes()[..], &string("info"), &string("0")];
    (1, body.concat())
}

pub(crate) fn reply(stream: &mut UnixStream) -> (u32, Vec<u8>) {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut packet = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut packet).unwrap();
    (
        u32::from_be_bytes(packet[..4].try_into().unwrap()),
        packet[4..].to_vec(),
    )
}

fn send_fds(stream: &UnixStream, fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

pub(crate) fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => rest.is_empty(),
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn nonsense_ends_its_own_client_only() {
    let stock = Stock::new(server());
    stock.warm();
    let before = stock.home.descriptors();
    let mut bystander = stock.ssh();
    bystander
        .args([stock.server.alias(), "cat"])
        .stdin(std::process::Stdio::piped());
    let mut bystander = bystander.spawn().unwrap();
    let nonsense: [&[u8]; 6] = [
        b"GET / HTTP/1.0\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 0],
        &[0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 3],
        &[0, 0, 0, 8, 0x10, 0, 0, 4, 0, 0, 0, 0],
        &[0, 4, 0, 1, 0, 0, 0, 1],
    ];
    for bytes in nonsense {
        let mut stream = UnixStream::connect(&stock.socket).unwrap();
        stream.set_read_timeout(Some(crate::home::PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut stream), "{bytes:?}");
    }
    for bytes in nonsense {
        let mut stream = greet(&stock);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    // Half a message, and half a hello.
    for len in 1..HELLO.len() {
        UnixStream::connect(&stock.socket)
            .unwrap()
            .write_all(&HELLO[..len])
            .unwrap();
        greet(&stock).write_all(&session()[..len]).unwrap();
    }
    drop(bystander.stdin.take());
    assert!(bystander.wait().unwrap().success());
    stock.home.wait_for_descriptors(&before);
    stock.assert_logins(1);
}

#[test]
fn what_is_not_known_is_refused_by_name_and_the_talk_goes_on() {
    let stock = Stock::new(server());
    let mut stream = greet(&stock);
    stream
        .write_all(&packet(0x1000_7777, &9_u32.to_be_bytes()))
        .unwrap();
    let (kind, body) = reply(&mut stream);
    assert_eq!((kind, &body[..4]), (FAILURE, &9_u32.to_be_bytes()[..]));
    stream
        .write_all(&packet(0x1000_0004, &10_u32.to_be_bytes()))
        .unwrap();
    assert_eq!(reply(&mut stream).0, 0x8000_0005, "alive");
}

#[test]
fn a_client_of_openssh_10_3_is_told_of_connections_and_channels() {
    let stock = Stock::new(server());
    let mut stream = UnixStream::connect(&stock.socket).unwrap();
    let extensions = [string("info"), string("0"), string("else"), string("1")].concat();
    let body = [&4_u32.to_be_bytes()[..], &extensions].concat();
    stream.write_all(&packet(1, &body)).unwrap();
    assert_eq!(reply(&mut stream), hello());
    let mut ask = |about: &str| {
        let body = [&3_u32.to_be_bytes()[..], &string(about)].concat();
        stream.write_all(&packet(0x2000_0001, &body)).unwrap();
        let (kind, body) = reply(&mut stream);
        assert_eq!((kind, &body[..4]), (0x9000_0001, &3_u32.to_be_bytes()[..]));
        (body[7], String::from_utf8(body[12..].to_vec()).unwrap())
    };
    let (known, connection) = ask("connection");
    assert_eq!(known, 1);
    for part in [
        "1: SSH-2.0-OpenSSH",
        "kexalgorithm ",
        "hostkeyalgorithm ",
        "cipher ",
        "bytes in",
    ] {
        assert!(connection.contains(part), "{connection}");
    }
    let (known, channels) = ask("channels");
    assert_eq!(known, 1);
    assert!(channels.contains("1: 0 sessions, 0 tunnels"), "{channels}");
    assert!(channels.ends_with("none is forwarded\r\n"), "{channels}");
    assert_eq!(ask("weather"), (0, "info request type not supported".into()));
}

#[test]
fn sessions_without_or_with_too_many_descriptors_are_refused_and_leak_nothing() {
    let stock = Stock::new(server());
    stock.warm();
    let before = stock.home.descriptors();
    let null = std::fs::File::open("/dev/null").unwrap();
    for fds in [0, 1, 30] {
        let mut stream = greet(&stock);
        stream.write_all(&session()).unwrap();
        for byte in 0..3 {
            let own = if byte == 0 {
                vec![null.as_fd(); fds]
            } else {
                Vec::new()
            };
            send_fds(&stream, &own);
        }
        if fds < 3 {
            assert_eq!(reply(&mut stream).0, FAILURE);
        }
    }
    stock.home.wait_for_descriptors(&before);
    stock.warm();
}

#[test]
fn a_client_that_stops_reading_holds_up_nobody() {
    let stock = Stock::new(server());
    let mut rude = stock.ssh();
    rude.args([stock.server.alias(), "cat /dev/zero"])
        .stdout(std::process::Stdio::piped());
    let mut rude = rude.spawn().unwrap();
    let mut first = [0];
    rude.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let flood = greet(&stock);
    flood.set_nonblocking(true).unwrap();
    let alive = packet(0x1000_0004, &1_u32.to_be_bytes());
    while (&flood).write_all(&alive).is_ok() {}
    for _ in 0..3 {
        stock.warm();
    }
    let before = stock.home.descriptors();
    rude.kill().unwrap();
    rude.wait().unwrap();
    drop(flood);
    crate::home::wait_until("both are gone", || {
        stock.home.descriptors().len() + 3 <= before.len()
    });
}
