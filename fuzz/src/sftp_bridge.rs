//! What an SFTP client and its server send each other over a bridge, whose connection is lost in between.

use bytes::Bytes;
use trunkline_sftp::bridge::{Bridge, MOST_HELD};

/// SSH_FXP_VERSION 3 with limits@openssh.com.
const VERSION: &[u8] = b"\0\0\0\x1e\x02\0\0\0\x03\0\0\0\x12limits@openssh.com\0\0\0\x011";

/// The largest answer to a request, all of which counts while it is under way.
const ANSWER: usize = 256 * 1024;

/// What happens, a packet's type and number, and its bytes.
type Step<'a> = (u8, u8, u8, &'a [u8]);

pub(crate) fn fuzz(steps: Vec<Step<'_>>) {
    let mut bridge = Bridge::default();
    let mut pieces = Vec::new();
    let init = Bytes::from_static(&[0, 0, 0, 5, 1, 0, 0, 0, 3]);
    let begun = bridge.handle_client(init).and_then(|()| bridge.begin());
    let mut live = begun.and_then(|()| bridge.handle_server(Bytes::from_static(VERSION)));
    for step in steps {
        if live.is_err() {
            break;
        }
        let (what, kind, id, body) = step;
        live = match what % 5 {
            0 => bridge.handle_client(packet(kind % 21, id, body)),
            1 => bridge.handle_server(packet(101 + kind % 5, id, body)),
            2 => bridge.handle_client(Bytes::copy_from_slice(body)),
            3 => bridge.handle_server(Bytes::copy_from_slice(body)),
            _ => {
                bridge.lose();
                let begun = bridge.begin();
                begun.and_then(|()| bridge.handle_server(Bytes::from_static(VERSION)))
            }
        };
        bridge.poll_client(&mut pieces);
        bridge.poll_server(&mut pieces);
        pieces.clear();
        assert!(
            !bridge.takes_from_client() || bridge.memory() < MOST_HELD + ANSWER,
            "{} bytes are held",
            bridge.memory()
        );
    }
}

fn packet(kind: u8, id: u8, body: &[u8]) -> Bytes {
    let mut packet = Vec::from((5 + body.len() as u32).to_be_bytes());
    packet.extend([kind, 0, 0, 0, id]);
    packet.extend_from_slice(body);
    packet.into()
}
