//! Texts signed with an nkey: orders, and requests to end a job or a stream.

use aws_lc_rs::digest::{SHA256, digest};
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};

/// The purpose of a signed text. It is part of the signed message, so that a text is valid for no other purpose,
/// whatever its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The order of a job.
    Job,
    /// A request to end a job.
    EndOfJob,
    /// The order of a stream.
    Stream,
    /// A request to end a stream.
    EndOfStream,
}

impl Purpose {
    /// Returns the SHA-256 of a text and its purpose.
    pub(crate) fn digest(self, text: &[u8]) -> Vec<u8> {
        digest(&SHA256, &self.message(text)).as_ref().to_vec()
    }

    fn message(self, text: &[u8]) -> Vec<u8> {
        let name = match self {
            Self::Job => "job",
            Self::EndOfJob => "end of job",
            Self::Stream => "stream",
            Self::EndOfStream => "end of stream",
        };
        // The same key logs in to NATS, which chooses the text that is signed for that. Such a text is UTF-8, and this
        // message never is.
        [b"\xfftrunkline fleet\0", name.as_bytes(), b"\0", text].concat()
    }
}

/// A text with its signature, as stored in the bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// The signed bytes.
    #[serde(with = "serde_bytes")]
    pub text: Vec<u8>,
    /// The signature, by the key that the text names.
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

impl Signed {
    /// Signs a text.
    ///
    /// # Errors
    /// If the key is a public one.
    pub fn new(key: &KeyPair, purpose: Purpose, text: Vec<u8>) -> Result<Self, nkeys::error::Error> {
        let signature = key.sign(&purpose.message(&text))?;
        Ok(Self { text, signature })
    }

    /// Returns true if the owner of this public nkey has signed it for this purpose.
    pub fn is_by(&self, who: &str, purpose: Purpose) -> bool {
        let key = KeyPair::from_public_key(who);
        key.and_then(|key| key.verify(&purpose.message(&self.text), &self.signature))
            .is_ok()
    }
}

/// Returns the SHA-256 of parts and of their boundaries.
pub(crate) fn digest_of(parts: &[Vec<u8>]) -> Vec<u8> {
    let digests = parts.iter().map(|part| digest(&SHA256, part));
    let digests: Vec<u8> = digests.flat_map(|one| one.as_ref().to_vec()).collect();
    digest(&SHA256, &digests).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_counts_only_as_what_it_was_signed_for() {
        let (key, other) = (KeyPair::new_user(), KeyPair::new_user());
        let all = [
            Purpose::Job,
            Purpose::EndOfJob,
            Purpose::Stream,
            Purpose::EndOfStream,
        ];
        for purpose in all {
            let signed = Signed::new(&key, purpose, b"text".to_vec()).unwrap();
            for asked in all {
                assert_eq!(signed.is_by(&key.public_key(), asked), asked == purpose);
            }
            assert!(!signed.is_by(&other.public_key(), purpose));
            assert!(!signed.is_by("UA", purpose));
        }
    }

    #[test]
    fn a_log_in_to_nats_signs_nothing_of_a_fleet() {
        let key = KeyPair::new_user();
        // A server may ask for the signature of any text.
        let message = Purpose::Job.message(b"text");
        assert!(std::str::from_utf8(&message).is_err());
        let log_in = Signed {
            text: b"text".to_vec(),
            signature: key.sign(b"text").unwrap(),
        };
        assert!(!log_in.is_by(&key.public_key(), Purpose::Job));
    }

    #[test]
    fn parts_that_are_cut_elsewhere_have_another_digest() {
        let parts =
            |parts: &[&str]| -> Vec<Vec<u8>> { parts.iter().map(|part| part.as_bytes().to_vec()).collect() };
        assert_ne!(digest_of(&parts(&["ab", "c"])), digest_of(&parts(&["a", "bc"])));
        assert_ne!(digest_of(&parts(&["abc"])), digest_of(&parts(&["abc", ""])));
    }
}
