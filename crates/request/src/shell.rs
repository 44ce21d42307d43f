//! Quoting for a POSIX shell.

/// Quotes a word for a shell.
#[must_use]
pub fn quote(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}
