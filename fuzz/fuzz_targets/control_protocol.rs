//! What a client of the daemon may send: any bytes are frames, the start of one, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_daemon::fuzzing::request;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Some((_request, used)) = request(rest) {
        assert!((4..=rest.len()).contains(&used));
        rest = &rest[used..];
    }
});
