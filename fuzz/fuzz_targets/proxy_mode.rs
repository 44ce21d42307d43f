//! What a client in proxy mode may send: any bytes are a message of the connection protocol or refused.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trunkline_daemon::fuzzing::proxy_message;

fuzz_target!(|input: (u8, &[u8])| {
    let (number, body) = input;
    proxy_message(&Bytes::copy_from_slice(body));
    // As PROTOCOL.mux has it: no padding, then the message.
    proxy_message(&[&[0, number], body].concat().into());
});
