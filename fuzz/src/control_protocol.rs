//! What a client of the daemon may send: any bytes are frames, the start of one, or refused.

use trunkline_daemon::fuzzing::request;

pub(crate) fn fuzz(bytes: &[u8]) {
    let mut rest = bytes;
    while let Some((_request, used)) = request(rest) {
        assert!((4..=rest.len()).contains(&used));
        rest = &rest[used..];
    }
}
