//! What a client of a mux socket may send: any bytes are a request or refused, also behind the number of each request.

use trunkline_daemon::fuzzing::mux_request;

/// PROTOCOL.mux: MUX_MSG_HELLO, and MUX_C_NEW_SESSION up to MUX_C_PROXY.
const HELLO: u32 = 1;
const FIRST_REQUEST: u32 = 0x1000_0002;
const LAST_REQUEST: u32 = 0x1000_000f;

pub(crate) fn fuzz(body: &[u8]) {
    mux_request(body);
    for number in (FIRST_REQUEST..=LAST_REQUEST).chain([HELLO]) {
        mux_request(&[&number.to_be_bytes(), body].concat());
    }
}
