//! Key files of any content: the formats of OpenSSH, PEM and PKCS#8, and public keys. A key that can be read signs.

use trunkline::keys::{KeyFile, PublicKey};
use zeroize::Zeroizing;

pub(crate) fn fuzz(content: &[u8]) {
    for line in content.split(|byte| *byte == b'\n').take(8) {
        if let Some(key) = PublicKey::parse(line) {
            assert_eq!(
                PublicKey::parse(key.to_line().as_bytes()).map(|key| key.to_line()),
                Some(key.to_line())
            );
        }
    }
    let Ok(file) = KeyFile::in_memory("key", Zeroizing::new(content.to_vec())) else {
        return;
    };
    // With a passphrase the file says how many rounds that takes, which may be years.
    if let Ok(key) = file.unlock(None, 1024) {
        assert!(!file.is_encrypted());
        for algorithm in key.signature_algorithms() {
            let _ = key.sign(algorithm, b"data");
        }
    }
}
