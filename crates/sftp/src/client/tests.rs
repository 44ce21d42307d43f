use super::*;
use crate::attributes::FileAttributes;
use crate::request::OpenFlags;
use bytes::BufMut;
use proptest::prelude::*;

fn packet(kind: u8, body: &[u8]) -> Bytes {
    let mut buf = BytesMut::new();
    buf.put_u32(1 + body.len() as u32);
    buf.put_u8(kind);
    buf.put_slice(body);
    buf.freeze()
}

fn version() -> Bytes {
    packet(kind::VERSION, &[0, 0, 0, 3])
}

fn ready() -> Client {
    let mut client = Client::new(&Config::default());
    client.handle_bytes(version()).unwrap();
    take_sent(&mut client);
    client
}

/// Returns the version packet of OpenSSH's sftp-server.
fn sftp_servers_version() -> Bytes {
    let mut body = BytesMut::from(&[0, 0, 0, 3][..]);
    for (name, version) in [
        ("posix-rename@openssh.com", "1"),
        ("statvfs@openssh.com", "2"),
        ("fstatvfs@openssh.com", "2"),
    ] {
        for text in [name, version] {
            body.put_u32(text.len() as u32);
            body.put_slice(text.as_bytes());
        }
    }
    packet(kind::VERSION, &body)
}

fn take_sent(client: &mut Client) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = client.poll_transmit() {
        all.extend_from_slice(&bytes);
    }
    assert_eq!(client.queued_bytes(), 0);
    all
}

fn reply(kind: u8, id: RequestId, body: &[u8]) -> Bytes {
    packet(kind, &[&id.wire().to_be_bytes(), body].concat())
}

fn status(id: RequestId, code: u8) -> Bytes {
    reply(kind::STATUS, id, &[0, 0, 0, code])
}

fn open(client: &mut Client) -> RequestId {
    let attributes = FileAttributes::default();
    client.request(Request::Open {
        path: "f".into(),
        flags: OpenFlags::READ,
        attributes,
    })
}

#[test]
fn requests_wait_for_the_version_or_leave_early() {
    let mut client = Client::new(&Config::default());
    client.request(Request::Stat { path: "f".into() });
    assert_eq!(take_sent(&mut client), [0, 0, 0, 5, 1, 0, 0, 0, 3]);
    client.handle_bytes(version()).unwrap();
    assert_eq!(take_sent(&mut client), *b"\0\0\0\x0a\x11\0\0\0\0\0\0\0\x01f");

    let mut early = Client::new(&Config {
        early_requests: true,
        early_limits: true,
        ..Config::default()
    });
    early.request(Request::Stat { path: "f".into() });
    assert!(take_sent(&mut early).ends_with(b"\x11\0\0\0\x01\0\0\0\x01f"));
}

#[test]
fn replies_come_in_any_order() {
    let mut client = ready();
    let [a, b] = [0, 1].map(|_| client.request(Request::Rmdir { path: "d".into() }));
    client.handle_bytes(status(b, 0)).unwrap();
    client.handle_bytes(status(a, 4)).unwrap();
    assert_eq!(client.poll_event(), Some((b, Ok(Reply::Done))));
    assert!(matches!(client.poll_event(), Some((id, Err(_))) if id == a));
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn a_cancelled_open_leaves_no_handle_behind() {
    let mut client = ready();
    let id = open(&mut client);
    take_sent(&mut client);
    client.cancel(id);
    client
        .handle_bytes(reply(kind::HANDLE, id, b"\0\0\0\x01h"))
        .unwrap();
    assert_eq!(client.poll_event(), None);
    assert_eq!(take_sent(&mut client)[4], kind::CLOSE);

    // The same, with a handle that has come but has not been polled.
    let id = open(&mut client);
    client
        .handle_bytes(reply(kind::HANDLE, id, b"\0\0\0\x01i"))
        .unwrap();
    take_sent(&mut client);
    client.cancel(id);
    assert_eq!(client.poll_event(), None);
    assert_eq!(take_sent(&mut client)[4], kind::CLOSE);
}

#[test]
fn a_handle_that_comes_before_the_limits_waits_for_them() {
    let mut client = Client::new(&Config {
        early_requests: true,
        early_limits: true,
        ..Config::default()
    });
    let [wanted, cancelled] = [0, 1].map(|_| open(&mut client));
    let mut body = BytesMut::new();
    [0, 100_000, 100_000, 7]
        .into_iter()
        .for_each(|limit| body.put_u64(limit));
    client.handle_bytes(version()).unwrap();
    client
        .handle_bytes(reply(kind::HANDLE, wanted, b"\0\0\0\x01h"))
        .unwrap();
    client
        .handle_bytes(reply(kind::HANDLE, cancelled, b"\0\0\0\x01i"))
        .unwrap();
    client.cancel(cancelled);
    assert_eq!(client.poll_event(), None);
    client
        .handle_bytes(reply(kind::EXTENDED_REPLY, RequestId(0), &body))
        .unwrap();
    assert_eq!(
        client.poll_event(),
        Some((wanted, Ok(Reply::Handle(Handle("h".into())))))
    );
    assert_eq!(client.poll_event(), None);
    assert_eq!(
        *client.limits(),
        Limits {
            max_read: 100_000,
            max_write: 100_000,
            max_handles: 7
        }
    );
}

#[test]
fn requests_are_no_larger_than_the_application_wants() {
    let mut client = Client::new(&Config {
        early_requests: true,
        early_limits: true,
        largest_request: Some(5_000),
        ..Config::default()
    });
    assert_eq!(client.limits().max_read, 5_000);
    let mut body = BytesMut::new();
    [0, 100_000, 4_500, 7]
        .into_iter()
        .for_each(|limit| body.put_u64(limit));
    client.handle_bytes(version()).unwrap();
    client
        .handle_bytes(reply(kind::EXTENDED_REPLY, RequestId(0), &body))
        .unwrap();
    assert_eq!(
        (client.limits().max_read, client.limits().max_write),
        (5_000, 4_500)
    );
}

#[test]
fn opens_beyond_the_handles_wait_for_a_close() {
    let mut client = ready();
    client.limits.max_handles = 1;
    let [first, second] = [0, 1].map(|_| open(&mut client));
    assert_eq!(client.in_flight(), 1);
    client
        .handle_bytes(reply(kind::HANDLE, first, b"\0\0\0\x01h"))
        .unwrap();
    assert_eq!(client.in_flight(), 0);
    let close = client.request(Request::Close {
        handle: Handle("h".into()),
    });
    assert_eq!(client.in_flight(), 1);
    client.handle_bytes(status(close, 0)).unwrap();
    assert_eq!((client.in_flight(), client.handles()), (1, 1));
    client.handle_bytes(status(second, 2)).unwrap();
    assert_eq!(client.handles(), 0);
}

#[test]
fn a_writes_data_is_not_copied_but_for_other_servers() {
    for version in [sftp_servers_version(), version()] {
        let mut client = Client::new(&Config::default());
        client.handle_bytes(version).unwrap();
        take_sent(&mut client);
        let data = Bytes::from(vec![7; 5000]);
        client.request(Request::Write {
            handle: Handle("h".into()),
            offset: 0,
            data: data.clone(),
        });
        let first = client.poll_transmit().unwrap();
        match client.keeps_order() {
            true => assert_eq!(client.poll_transmit().unwrap().as_ptr(), data.as_ptr()),
            false => assert_eq!((first.len(), client.poll_transmit()), (5026, None)),
        }
    }
}

#[test]
fn data_is_a_slice_of_what_was_received() {
    let mut client = ready();
    let id = client.request(Request::Read {
        handle: Handle("h".into()),
        offset: 0,
        length: 4000,
    });
    let bytes = reply(kind::DATA, id, &[&4000u32.to_be_bytes()[..], &[1; 4000]].concat());
    client.handle_bytes(bytes.slice(..2000)).unwrap();
    client.handle_bytes(bytes.slice(2000..)).unwrap();
    let Some((_, Ok(Reply::Data(data)))) = client.poll_event() else {
        panic!("no data")
    };
    assert_eq!(data.len(), 4000);
    assert_eq!(data.chunks()[0].as_ptr(), bytes[13..].as_ptr());
}

#[test]
fn what_a_login_script_prints_is_recognised() {
    let mut client = Client::new(&Config::default());
    let error = client.handle_bytes("Welcome to web1!\n".into()).unwrap_err();
    assert_eq!(error, Error::NotSftp("Welcome to web1!".into()));
    assert_eq!(client.handle_bytes(version()), Err(error));
}

#[test]
fn a_server_that_breaks_the_protocol_ends_the_session() {
    let id = RequestId(0);
    let read = Request::Read {
        handle: Handle("h".into()),
        offset: 0,
        length: 1,
    };
    for wrong in [
        packet(kind::VERSION, &[0, 0, 0, 3]),
        status(RequestId(7), 0),
        status(id, 0),
        reply(kind::DATA, id, b"\0\0\0\x02ab"),
        reply(kind::DATA, id, b"\0\0\0\x09ab"),
        reply(kind::NAME, id, &[0xff; 4]),
        reply(250, id, b""),
        Bytes::from_static(&[0, 0, 0, 0]),
        Bytes::from_static(&[0, 4, 0, 1]),
    ] {
        let mut client = ready();
        client.request(read.clone());
        assert!(
            matches!(client.handle_bytes(wrong.clone()), Err(Error::PeerMisbehaved(_))),
            "{wrong:?}"
        );
    }
}

#[test]
fn what_cannot_be_sent_is_answered_here() {
    let mut client = ready();
    let long = client.request(Request::Stat {
        path: vec![b'a'; MAX_PACKET].into(),
    });
    let unknown = client.request(Request::Fsync {
        handle: Handle("h".into()),
    });
    let codes = std::iter::from_fn(|| client.poll_event())
        .map(|(id, outcome)| (id, outcome.unwrap_err().code))
        .collect::<Vec<_>>();
    assert_eq!(
        codes,
        [
            (long, StatusCode::BAD_MESSAGE),
            (unknown, StatusCode::OP_UNSUPPORTED)
        ]
    );
    assert!(take_sent(&mut client).is_empty());
}

proptest! {
    #[test]
    fn no_input_panics(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..10)) {
        let mut client = Client::new(&Config::default());
        for chunk in chunks {
            let _ = client.handle_bytes(chunk.into());
        }
    }

    #[test]
    fn no_reply_panics(
        packets in prop::collection::vec(
            (
                prop::sample::select(vec![101u8, 102, 103, 104, 105, 201]),
                0..12u8,
                prop::collection::vec(any::<u8>(), 0..60),
            ),
            0..20,
        ),
        slice in 1..40usize,
    ) {
        let mut client = ready();
        let handle = || Handle("h".into());
        for request in [
            Request::Stat { path: "a".into() },
            Request::Read { handle: handle(), offset: 0, length: 20 },
            Request::Readdir { handle: handle() },
            Request::Realpath { path: "a".into() },
            Request::Opendir { path: "a".into() },
            Request::Close { handle: handle() },
        ] {
            client.request(request);
        }
        for (kind, id, body) in packets {
            let bytes = reply(kind, RequestId(id.into()), &body);
            for start in (0..bytes.len()).step_by(slice) {
                let _ = client.handle_bytes(bytes.slice(start..bytes.len().min(start + slice)));
            }
            while client.poll_event().is_some() {}
        }
    }
}
