//! The client's side of sntrup761 (draft-ietf-sshm-ntruprime-ssh), using liboqs.

use std::sync::LazyLock;

use oqs::kem::{Algorithm, Kem};
use zeroize::Zeroizing;

use super::KexError;

/// The length of a ciphertext, the server's answer.
pub(super) const CIPHERTEXT_LEN: usize = 1039;

/// The method's code for this processor.
static SNTRUP761: LazyLock<Kem> = LazyLock::new(|| {
    oqs::init();
    Kem::new(Algorithm::NtruPrimeSntrup761).expect("oqs is built with ntruprime")
});

/// A client's secret key for one exchange, wiped when dropped.
pub(super) struct DecapsulationKey(Zeroizing<Vec<u8>>);

impl DecapsulationKey {
    /// Makes a secret key and the public key (1158 bytes) to which a server encapsulates.
    ///
    /// # Errors
    /// [`KexError::Local`] if the library fails.
    pub(super) fn generate() -> Result<(Self, Vec<u8>), KexError> {
        let (public, secret) = SNTRUP761.keypair().map_err(|_| KexError::Local)?;
        Ok((Self(secret.into_vec().into()), public.into_vec()))
    }

    /// Returns the shared secret in a server's `ciphertext`. As the method specifies, a ciphertext for another key
    /// gives a secret that the server does not have.
    ///
    /// # Errors
    /// [`KexError::BadPublicKey`] if the ciphertext's length is not [`CIPHERTEXT_LEN`].
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

/// Returns a server's ciphertext for a client's `public` key, and the secret in it.
#[cfg(test)]
pub(super) fn encapsulate(public: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let public = SNTRUP761.public_key_from_bytes(public).unwrap();
    let (ciphertext, secret) = SNTRUP761.encapsulate(public).unwrap();
    (ciphertext.into_vec(), secret.into_vec())
}
