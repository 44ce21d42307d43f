//! The control socket against clients that are broken, foreign or rude: each harms itself alone.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic, and clippy knows of its functions alone, not of what they share"
)]

mod thread;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use trunkline::config::Vantage;
use trunkline_control::client::{Client, ClientError};
use trunkline_daemon::claim::{Claim, StartError};
use trunkline_daemon::place::Place;
use trunkline_daemon::protocol::{MAX_FRAME, Reply, Request, VERSION};

use thread::{Daemon, place};

impl Daemon {
    fn place(&self) -> Place {
        place(&self.dir())
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.place().socket()).unwrap()
    }

    /// A connection that has said hello and been welcomed.
    fn connect_as(&self, protocol: u32) -> UnixStream {
        let mut stream = self.connect();
        send(&mut stream, &hello(protocol));
        assert!(matches!(
            receive(&mut stream),
            Some(Reply::Welcome {
                protocol: VERSION,
                ..
            })
        ));
        stream
    }

    /// Returns whether a client of its own kind is served.
    fn serves(&self) -> bool {
        let mut stream = self.connect_as(VERSION);
        send(&mut stream, &Request::List);
        matches!(receive(&mut stream), Some(Reply::Hosts(hosts)) if hosts.is_empty())
    }
}

fn hello(protocol: u32) -> Request {
    Request::Hello {
        protocol,
        program: "test".into(),
    }
}

fn frame(said: &impl Serialize) -> Vec<u8> {
    let body = rmp_serde::to_vec_named(said).unwrap();
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

fn send(stream: &mut UnixStream, said: &impl Serialize) {
    stream.write_all(&frame(said)).unwrap();
}

/// Returns the next message, or `None` when the other end has closed.
fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> Option<T> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).ok()?;
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(rmp_serde::from_slice(&body).unwrap())
}

fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    // What was not read there is a reset here.
    let _ = stream.read_to_end(&mut rest);
    rest.is_empty()
}

#[test]
fn bytes_that_are_no_frames_end_their_own_connection() {
    let daemon = Daemon::start();
    let too_long = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes();
    let hello = frame(&hello(VERSION));
    let attacks: [&[u8]; 7] = [
        b"SSH-2.0-lost\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        &too_long,
        // MessagePack that ends early, that names no request, and that nests without end.
        &[0, 0, 0, 1, 0x81],
        &[0, 0, 0, 5, 0xa4, b'n', b'o', b'n', b'e'],
        &[&[0, 0, 4, 0][..], &[0x91; 1024]].concat(),
    ];
    for attack in attacks {
        let mut stream = daemon.connect();
        // It may have closed already.
        let _ = stream.write_all(attack);
        assert!(is_closed(&mut stream), "{attack:?}");
        let mut stream = daemon.connect();
        let _ = stream.write_all(&[&hello[..], attack].concat());
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(daemon.serves());
}

#[test]
fn noise_never_harms_anybody_else() {
    let daemon = Daemon::start();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..200 {
        let mut stream = daemon.connect();
        let mut noise = if round % 2 == 0 {
            frame(&hello(VERSION))
        } else {
            Vec::new()
        };
        // Short lengths, so that most of it reaches the decoder.
        noise.extend([0, 0, 0, 64]);
        for _ in 0..8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            noise.extend(state.to_le_bytes());
        }
        let _ = stream.write_all(&noise);
    }
    assert!(daemon.serves());
}

#[test]
fn half_a_frame_waits_for_its_other_half_and_holds_up_nobody() {
    let daemon = Daemon::start();
    let bytes = frame(&hello(VERSION));
    let mut slow = daemon.connect();
    for byte in &bytes[..bytes.len() - 1] {
        slow.write_all(&[*byte]).unwrap();
        assert!(daemon.serves());
    }
    slow.write_all(&bytes[bytes.len() - 1..]).unwrap();
    assert!(matches!(receive(&mut slow), Some(Reply::Welcome { .. })));
    // And one that never comes.
    let mut cut = daemon.connect();
    cut.write_all(&bytes[..7]).unwrap();
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_closed(&mut cut));
}

#[test]
fn nothing_is_done_for_a_client_that_does_not_say_hello() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect();
    send(&mut stream, &Request::Stop { at_once: true });
    assert!(is_closed(&mut stream));
    assert!(daemon.serves());
}

#[test]
fn a_client_of_another_version_can_only_ask_to_stop() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect_as(VERSION + 1);
    send(&mut stream, &Request::List);
    assert!(is_closed(&mut stream));
    let mut stream = daemon.connect_as(VERSION + 1);
    send(&mut stream, &Request::Stop { at_once: false });
    assert!(matches!(receive(&mut stream), Some(Reply::Done)));
    assert!(is_closed(&mut stream));
}

#[test]
fn descriptors_that_nobody_claims_are_closed() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect_as(VERSION);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let fds: [BorrowedFd<'_>; 3] = [writer.as_fd(); 3];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = frame(&Request::List);
    sendmsg(
        &stream,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::empty(),
    )
    .unwrap();
    assert!(matches!(receive(&mut stream), Some(Reply::Hosts(_))));
    drop((stream, writer));
    // Ends when the last writer is closed.
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn one_place_has_one_daemon_and_is_private() {
    let daemon = Daemon::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        assert!(matches!(
            Claim::take(&daemon.place(), None),
            Err(StartError::Running(_))
        ));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&daemon.place().runtime), 0o700);
        assert_eq!(mode(&daemon.place().socket()), 0o600);
        assert!(Client::connect(&daemon.place(), None).await.is_ok());
        let nowhere = place(Path::new("/nonexistent"));
        assert!(matches!(
            Client::connect(&nowhere, None).await,
            Err(ClientError::NotRunning)
        ));
    });
}

#[test]
fn clients_with_nothing_under_way_do_not_hold_up_the_end() {
    let daemon = Daemon::start();
    let (mut idle, mut silent) = (daemon.connect_as(VERSION), daemon.connect());
    let mut last = daemon.connect_as(VERSION);
    send(&mut last, &Request::Stop { at_once: false });
    assert!(matches!(receive(&mut last), Some(Reply::Done)));
    assert!(is_closed(&mut idle));
    assert!(is_closed(&mut silent));
}

#[tokio::test]
async fn a_request_in_one_write_with_the_greeting_is_answered_behind_the_welcome() {
    let daemon = Daemon::start();
    let here = Vantage::current();
    let mut client = Client::connect_with(&daemon.place(), None, &here, &Request::List, &[])
        .await
        .unwrap();
    assert!(matches!(client.next().await.unwrap(), Reply::Hosts(hosts) if hosts.is_empty()));
    // Who stands elsewhere is told so, whatever was asked for.
    let elsewhere = Vantage::default();
    let refused = Client::connect_with(&daemon.place(), None, &elsewhere, &Request::List, &[]).await;
    assert!(matches!(refused, Err(ClientError::Elsewhere(_))), "{refused:?}");
}

#[tokio::test]
async fn a_request_that_was_not_welcomed_is_made_of_the_next_daemon() {
    let dir = tempfile::Builder::new().prefix("tl-").tempdir().unwrap();
    let place = place(dir.path());
    place.make().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    let daemons = std::thread::spawn(move || {
        // One that is just ending, and the one that comes after it.
        let (mut ending, _) = listener.accept().unwrap();
        let mut said = [0; 4];
        ending.read_exact(&mut said).unwrap();
        drop(ending);
        let (mut stream, _) = listener.accept().unwrap();
        let greeting: Option<Request> = receive(&mut stream);
        let request: Option<Request> = receive(&mut stream);
        assert!(matches!(
            greeting,
            Some(Request::Hello {
                protocol: VERSION,
                ..
            })
        ));
        assert!(matches!(request, Some(Request::List)));
        send(
            &mut stream,
            &Reply::Welcome {
                protocol: VERSION,
                program: String::new(),
                pid: 1,
                vantage: None,
            },
        );
        send(&mut stream, &Reply::Done);
    });
    let here = Vantage::current();
    let mut client = Client::connect_with(&place, None, &here, &Request::List, &[])
        .await
        .unwrap();
    assert!(matches!(client.next().await.unwrap(), Reply::Done));
    daemons.join().unwrap();
}
