//! Access for the fuzz targets in `fuzz/` to parsers that the public API does not reach with arbitrary bytes. Not part
//! of the API.

use crate::auth::Auth;
use crate::message::{Disconnect, ExtInfo, KexInit};
use crate::transport::algorithms::{Preferences, negotiate};
use crate::wire::{Reader, Writer};

/// Parses `payload`, without its message number, as each message of the transport layer.
///
/// # Panics
/// If a KEXINIT that was parsed and encoded again is not parsed the same way.
pub fn transport_message(payload: &[u8]) {
    let _ = Disconnect::parse(Reader::new(payload));
    let _ = ExtInfo::parse(Reader::new(payload));
    if let Ok(init) = KexInit::parse(Reader::new(payload)) {
        let again = init.encode(&[0; 16]);
        assert_eq!(KexInit::parse(Reader::new(&again[1..])).as_ref(), Ok(&init));
        let _ = negotiate(&Preferences::default().kexinit(true, false), &init);
    }
}

/// Lets a server answer authentication requests with `payloads`. `request` selects the first request.
pub fn authentication(request: u8, payloads: &[Vec<u8>]) {
    let mut auth = Auth::new("jo".into());
    if request & 0x80 == 0 {
        let accept = Writer::message(crate::message::SERVICE_ACCEPT)
            .string("ssh-userauth")
            .finish();
        let _ = auth.handle(&accept);
    }
    for (n, payload) in payloads.iter().enumerate() {
        match (usize::from(request) + n) % 6 {
            0 => drop(auth.none()),
            1 => drop(auth.publickey_probe("ssh-ed25519", b"key")),
            2 => drop(auth.publickey_signed("ssh-ed25519", b"key", None, b"signature")),
            3 => drop(auth.password("old", None)),
            4 => drop(auth.keyboard_interactive()),
            _ => {}
        }
        if auth.handle(payload).is_err() {
            return;
        }
    }
}
