//! The client's side of sntrup761 (draft-ietf-sshm-ntruprime-ssh), by liboqs.

use std::sync::LazyLock;

use oqs::kem::{Algorithm, Kem};
use zeroize::Zeroizing;

use super::KexError;

/// Bytes of a ciphertext, the server's answer.
pub(super) const CIPHERTEXT_LEN: usize = 1039;

/// The method's code for this processor.
static SNTRUP761: LazyLock<Kem> = LazyLock::new(|| {
    oqs::init();
    Kem::new(Algorithm::NtruPrimeSntrup761).expect("oqs is built with ntruprime")
});

/// A client's secret key for one exchange, wiped when dropped.
pub(super) struct DecapsulationKey(Zeroizing<Vec<u8>>);

impl DecapsulationKey {
    /// Makes a secret key and the public key, 1158 bytes, that a server encapsulates to.
    ///
    /// # Errors
    /// [`KexError::Local`] when the library could not.
    pub(super) fn generate() -> Result<(Self, Vec<u8>), KexError> {
        let (public, secret) = SNTRUP761.keypair().map_err(|_| KexError::Local)?;
        Ok((Self(secret.into_vec().into()), public.into_vec()))
    }

    /// The shared secret in a server's `ciphertext`. One that was not made for this key gives a secret that the server
    /// does not have, as the method wants it.
    ///
    /// # Errors
    /// [`KexError::BadPublicKey`] for a ciphertext of another length than [`CIPHERTEXT_LEN`].
    pub(super) fn decapsulate(&self, ciphertext: &[u8]) -> Result<Zeroizing<Vec<u8>>, KexError> {
        let key = SNTRUP761.secret_key_from_bytes(&self.0).ok_or(KexError::Local)?;
        let ciphertext = SNTRUP761
            .ciphertext_from_bytes(ciphertext)
            .ok_or(KexError::BadPublicKey)?;
        let secret = SNTRUP761
            .decapsulate(key, ciphertext)
            .map_err(|_| KexError::Local)?;
        Ok(secret.into_vec().into())
    }
}

/// A server's side: the ciphertext for a client's `public` key, and the secret in it.
#[cfg(test)]
pub(super) fn encapsulate(public: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let public = SNTRUP761.public_key_from_bytes(public).unwrap();
    let (ciphertext, secret) = SNTRUP761.encapsulate(public).unwrap();
    (ciphertext.into_vec(), secret.into_vec())
}
