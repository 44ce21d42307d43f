//! What an SFTP server answers, in any pieces: to requests of every kind, and to the plans that make them.

use std::time::Instant;

use bytes::Bytes;
use trunkline_sftp::transfer::{Download, DownloadOptions, ManyDownload, Plan, Striped, Walk, WalkOptions};
use trunkline_sftp::{Client, Config, FileAttributes, Handle, OpenFlags, Reply, Request};

/// SSH_FXP_VERSION 3 with limits@openssh.com.
const VERSION: &[u8] = b"\0\0\0\x1e\x02\0\0\0\x03\0\0\0\x12limits@openssh.com\0\0\0\x011";

type Input<'a> = (bool, u8, Vec<(u8, u8, &'a [u8])>, &'a [u8]);

pub(crate) fn fuzz(input: Input<'_>) {
    let (early, piece, packets, raw) = input;
    let now = Instant::now();
    let mut client = Client::new(&Config {
        early_requests: early,
        early_limits: early,
        largest_request: None,
        max_handles: None,
    });
    if piece & 1 == 0 && client.handle_bytes(Bytes::from_static(VERSION)).is_err() {
        return;
    }
    let path = || Bytes::from_static(b"p");
    for request in [
        open(),
        Request::Read {
            handle: handle(),
            offset: 0,
            length: 64,
        },
        Request::Readdir { handle: handle() },
        Request::Realpath { path: path() },
        Request::Stat { path: path() },
        Request::Close { handle: handle() },
    ] {
        client.request(request);
    }
    let mut download = Download::new(DownloadOptions::new(path()));
    let worker = download.add_worker();
    let mut many = ManyDownload::new(1 << 20);
    many.add(path(), Some(100));
    let mut walk = Walk::new(WalkOptions::new(path()));

    let mut stream = Vec::new();
    for (kind, id, body) in packets {
        stream.extend_from_slice(&(5 + body.len() as u32).to_be_bytes());
        stream.push(kind);
        stream.extend_from_slice(&u32::from(id).to_be_bytes());
        stream.extend_from_slice(body);
    }
    stream.extend_from_slice(raw);
    for bytes in stream.chunks(usize::from(piece).max(1)) {
        download.drive(worker, &mut client, now);
        many.drive((), &mut client, now);
        walk.drive((), &mut client, now);
        while client.poll_transmit().is_some() {}
        assert!(client.in_flight() <= 8192, "{} requests in flight", client.in_flight());
        if client.handle_bytes(Bytes::copy_from_slice(bytes)).is_err() {
            return;
        }
        while let Some((id, outcome)) = client.poll_event() {
            let Some(outcome) = download.handle_reply(worker, &mut client, id, outcome, now) else { continue };
            let Some(outcome) = many.handle_reply((), &mut client, id, outcome, now) else { continue };
            let _ = walk.handle_reply((), &mut client, id, outcome, now);
        }
        while download.poll_event().is_some() {}
        while many.poll_event().is_some() {}
        while walk.poll_event().is_some() {}
    }
}

fn open() -> Request {
    Request::Open {
        path: Bytes::from_static(b"p"),
        flags: OpenFlags::READ,
        attributes: FileAttributes::default(),
    }
}

/// A handle, as only a server gives one.
fn handle() -> Handle {
    let mut client = Client::new(&Config {
        early_requests: false,
        early_limits: false,
        largest_request: None,
        max_handles: None,
    });
    let version = Bytes::from_static(b"\0\0\0\x05\x02\0\0\0\x03");
    client.handle_bytes(version).expect("a version without extensions");
    client.request(open());
    let mut sent = Vec::new();
    while let Some(bytes) = client.poll_transmit() {
        sent.extend_from_slice(&bytes);
    }
    // The answer repeats the number that the last request, SSH_FXP_OPEN, has behind its length and type.
    let mut packets = &sent[..];
    let mut id = [0; 4];
    while let Some((length, rest)) = packets.split_first_chunk::<4>() {
        let (packet, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        id.copy_from_slice(&packet[1..5]);
        packets = rest;
    }
    let reply = [&b"\0\0\0\x0a\x66"[..], &id, b"\0\0\0\x01h"].concat();
    client.handle_bytes(Bytes::from(reply)).expect("an answer to what was asked");
    match client.poll_event() {
        Some((_, Ok(Reply::Handle(handle)))) => handle,
        other => panic!("no handle: {other:?}"),
    }
}
