//! What a client in proxy mode may send: any bytes are a message of the connection protocol or refused.

use bytes::Bytes;
use trunkline_daemon::fuzzing::proxy_message;

pub(crate) fn fuzz(input: (u8, &[u8])) {
    let (number, body) = input;
    proxy_message(&Bytes::copy_from_slice(body));
    // As PROTOCOL.mux has it: no padding, then the message.
    proxy_message(&[&[0, number], body].concat().into());
}
