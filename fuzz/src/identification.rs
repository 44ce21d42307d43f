//! What a server says first, in any pieces: the outcome does not depend on how it was cut, and memory is bounded.

use std::time::Instant;

use bytes::BufMut;
use trunkline_proto::{Config, Connection, Error};

/// The longest line before the identification, and the largest packet with its length behind it.
const MOST_UNREAD: usize = 256 * 1024 + 4;

pub(crate) fn fuzz(input: (u8, &[u8])) {
    let (piece, text) = input;
    let whole = receive(text, text.len().max(1));
    let cut = receive(text, usize::from(piece).max(1));
    assert_eq!(whole, cut);
}

/// The identification found, or the error met.
fn receive(text: &[u8], piece: usize) -> Result<Option<String>, Error> {
    let mut config = Config::new("jo");
    config.early_kexinit = false;
    let mut connection = Connection::new(config)?;
    for piece in text.chunks(piece) {
        connection.receive_buffer().put_slice(piece);
        connection.handle_received(Instant::now())?;
        assert!(connection.unread() <= MOST_UNREAD);
    }
    Ok(connection.server_id().map(|id| id.as_str().to_owned()))
}
