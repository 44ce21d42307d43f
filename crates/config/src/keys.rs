//! Keys in the forms in which users keep them: public key lines, private key files, certificates beside them.
//!
//! Keys travel through the engine as wire blobs (RFC 4253 section 6.6: `string` type name, then the numbers). This
//! module turns files into such blobs and makes signatures. [`PublicKey`] is one line of a `.pub` file, [`KeyFile`] the
//! file that an `IdentityFile` names, [`PrivateKey`] its key once a passphrase has opened it.
//!
//! All functions here block: they read files, and deriving a key from a passphrase takes hundreds of milliseconds by
//! design. Call them from a blocking thread.

mod curve;
mod file;
mod formats;
mod private;

pub use file::KeyFile;
pub use private::PrivateKey;
pub use trunkline_proto::signature::fingerprint;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use std::path::PathBuf;
use trunkline_proto::certificate::Certificate;
use trunkline_proto::signature::verify;
use trunkline_proto::wire::Reader;

/// The public half of a key, or a certificate for one: the content of a line of a `.pub` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The type name at the front of the blob: `ssh-ed25519`, `ssh-rsa-cert-v01@openssh.com` …
    pub algorithm: String,
    /// The wire blob.
    pub blob: Bytes,
    /// The comment after the key on its line; often `user@host`. Bytes that are not UTF-8 are replaced.
    pub comment: String,
}

impl PublicKey {
    /// Reads one line in the format of sshd(8)'s `authorized_keys` without options: type, base64, comment.
    ///
    /// Returns `None` if the line has another form, or if its type name is not the one in the blob. Any number of
    /// spaces and tabs may separate the words (sshkey.c, `sshkey_read`).
    pub fn parse(line: &[u8]) -> Option<Self> {
        let (algorithm, rest) = first_word(line.trim_ascii());
        let (encoded, comment) = first_word(rest);
        let algorithm = std::str::from_utf8(algorithm).ok()?;
        let blob = STANDARD.decode(encoded).ok()?;
        if algorithm.is_empty() || Reader::new(&blob).name() != Ok(algorithm) {
            return None;
        }
        Some(Self {
            algorithm: algorithm.to_owned(),
            blob: blob.into(),
            comment: String::from_utf8_lossy(comment).into_owned(),
        })
    }

    /// Returns whether this key made `signature`, encoded as in RFC 4253 section 6.6, over `data`.
    pub fn has_signed(&self, data: &[u8], signature: &[u8]) -> bool {
        Reader::new(signature)
            .name()
            .is_ok_and(|algorithm| verify(&self.blob, algorithm, signature, data).is_ok())
    }

    /// Returns the line for this key, without a line end.
    pub fn to_line(&self) -> String {
        let line = format!("{} {}", self.algorithm, STANDARD.encode(&self.blob));
        if self.comment.is_empty() {
            line
        } else {
            format!("{line} {}", self.comment)
        }
    }

    /// Returns whether this is a certificate and not a plain key.
    pub fn is_certificate(&self) -> bool {
        is_certificate_algorithm(&self.algorithm)
    }
}

/// Returns the first word of a line that begins without blanks, and the rest without leading blanks.
fn first_word(line: &[u8]) -> (&[u8], &[u8]) {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    (word, rest.trim_ascii_start())
}

/// The reason why a key could not be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum KeyError {
    /// The file could not be opened or read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Others than the owner can read the file; ssh and trunkline ignore such a key.
    #[error(
        "UNPROTECTED PRIVATE KEY FILE: mode {mode:04o} of {0} lets others read it, so it is not used; \
         run: chmod 600 {0}", path.display()
    )]
    Unprotected {
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is larger than any key.
    #[error("{} is larger than {limit} bytes, so it is not a key file", path.display())]
    TooLarge {
        path: PathBuf,
        /// The largest size accepted, in bytes.
        limit: u64,
    },
    /// The file holds no key in a known format.
    #[error("{0} holds no usable private key: {reason}", path.display())]
    Malformed {
        path: PathBuf,
        /// The error in the file.
        reason: &'static str,
    },
    /// The key is encrypted and no passphrase was given.
    #[error("the key {} needs its passphrase", path.display())]
    PassphraseNeeded { path: PathBuf },
    /// The passphrase does not open the key.
    #[error("wrong passphrase for the key {}", path.display())]
    WrongPassphrase { path: PathBuf },
    /// The key is encrypted in an unsupported way.
    #[error(
        "{0} is encrypted with {cipher}, which trunkline does not read; rewrite it with: \
         ssh-keygen -p -f {0}", path.display()
    )]
    Cipher {
        path: PathBuf,
        /// The name of the cipher or scheme.
        cipher: String,
    },
    /// Deriving the key from the passphrase would take too long, or too much memory.
    #[error(
        "{0} needs {cost} to open, more than trunkline allows; rewrite it with: ssh-keygen -p -a 100 -f {0}",
        path.display()
    )]
    Cost {
        path: PathBuf,
        /// The memory or time that the file asks for.
        cost: String,
    },
    /// The private half lives in a FIDO token, and only an agent (or ssh itself) can sign with it.
    #[error(
        "{} is the handle of a security key; add it to the agent with ssh-add, which can ask for the touch",
        path.display()
    )]
    SecurityKey { path: PathBuf },
    /// The key's type is unknown or no longer considered safe.
    #[error(
        "{} is a {algorithm} key, which is not supported; make a new one with: ssh-keygen -t ed25519",
        path.display()
    )]
    Unsupported { path: PathBuf, algorithm: String },
    /// The RSA key is shorter than `RequiredRSASize` (here at least 2048 bits) or longer than 8192 bits.
    #[error("{} is an RSA key of {bits} bits; only {min} to {max} are accepted", path.display())]
    RsaSize {
        path: PathBuf,
        /// The size of its modulus in bits.
        bits: usize,
        /// The least size accepted.
        min: usize,
        /// The largest size accepted.
        max: usize,
    },
    /// The `.pub` file or certificate beside a key belongs to another key.
    #[error("{} does not belong to the private key {}", public.display(), private.display())]
    PublicMismatch {
        /// The private key's file.
        private: PathBuf,
        /// The public key's or certificate's file.
        public: PathBuf,
    },
    /// A certificate file holds no certificate.
    #[error("{} holds no certificate", path.display())]
    NoCertificate { path: PathBuf },
    /// The requested signature algorithm is not one of the key's.
    #[error("a {key} key cannot sign with {algorithm}")]
    Algorithm {
        /// The key's type.
        key: String,
        /// The requested algorithm.
        algorithm: String,
    },
    /// The cryptographic library refused to sign.
    #[error("signing with the {key} key failed")]
    Signing {
        /// The key's type.
        key: String,
    },
}

const CERTIFICATE_SUFFIX: &str = "-cert-v01@openssh.com";

/// The plain key types in OpenSSH's known_hosts and key files, each with the name that ssh shows.
const KEY_TYPES: [(&str, &str); 8] = [
    ("ssh-ed25519", "ED25519"),
    ("ecdsa-sha2-nistp256", "ECDSA"),
    ("ecdsa-sha2-nistp384", "ECDSA"),
    ("ecdsa-sha2-nistp521", "ECDSA"),
    ("ssh-rsa", "RSA"),
    ("ssh-dss", "DSA"),
    ("sk-ssh-ed25519@openssh.com", "ED25519-SK"),
    ("sk-ecdsa-sha2-nistp256@openssh.com", "ECDSA-SK"),
];

/// Returns the type name at the front of a key blob, if the blob is a plain key of a known type.
///
/// For a certificate's blob, look at the key inside it.
pub fn key_type(blob: &[u8]) -> Option<&'static str> {
    let name = Reader::new(blob).name().ok()?;
    KEY_TYPES
        .iter()
        .map(|(known, _)| *known)
        .find(|known| *known == name)
}

/// Returns the plain key in a certificate's blob, or the blob itself if it is not a certificate. `None` for a certificate
/// that cannot be read.
pub(crate) fn without_certificate(blob: Bytes) -> Option<Bytes> {
    match Reader::new(&blob).name() {
        Ok(name) if is_certificate_algorithm(name) => {
            let certificate = Certificate::parse(&blob).ok()?;
            Some(Bytes::copy_from_slice(certificate.key_blob()))
        }
        _ => Some(blob),
    }
}

/// Returns the plain key type of a public key algorithm: `ssh-rsa` for `rsa-sha2-512`, and for a certificate algorithm
/// the type of the certified key. `None` for an unknown algorithm.
pub fn key_type_of_algorithm(algorithm: &str) -> Option<&'static str> {
    let plain = match algorithm.strip_suffix(CERTIFICATE_SUFFIX) {
        // PROTOCOL.u2f: sk-…-cert-v01@openssh.com certifies sk-…@openssh.com.
        Some(stem) if stem.starts_with("sk-") => {
            return KEY_TYPES
                .iter()
                .map(|(known, _)| *known)
                .find(|known| known.strip_suffix("@openssh.com") == Some(stem));
        }
        Some(stem) => stem,
        None => algorithm,
    };
    let plain = if matches!(plain, "rsa-sha2-256" | "rsa-sha2-512") {
        "ssh-rsa"
    } else {
        plain
    };
    KEY_TYPES
        .iter()
        .map(|(known, _)| *known)
        .find(|known| *known == plain)
}

/// Returns whether the keys of a public key algorithm are OpenSSH certificates (PROTOCOL.certkeys).
pub fn is_certificate_algorithm(algorithm: &str) -> bool {
    algorithm.ends_with(CERTIFICATE_SUFFIX)
}

/// Returns the public key algorithms for a key of type `key_type` in USERAUTH, best first.
///
/// An RSA key has two (RFC 8332), plain or certified; SHA-1's `ssh-rsa` is never used.
pub fn public_key_algorithms(key_type: &str) -> Vec<&str> {
    match key_type {
        "ssh-rsa" => vec!["rsa-sha2-512", "rsa-sha2-256"],
        "ssh-rsa-cert-v01@openssh.com" => {
            vec![
                "rsa-sha2-512-cert-v01@openssh.com",
                "rsa-sha2-256-cert-v01@openssh.com",
            ]
        }
        other => vec![other],
    }
}

/// Returns the signature algorithm for a public key algorithm. A certificate signs as the plain key in it
/// (PROTOCOL.certkeys).
pub fn signature_algorithm(public_key_algorithm: &str) -> &str {
    match public_key_algorithm.strip_suffix(CERTIFICATE_SUFFIX) {
        Some("sk-ssh-ed25519") => "sk-ssh-ed25519@openssh.com",
        Some("sk-ecdsa-sha2-nistp256") => "sk-ecdsa-sha2-nistp256@openssh.com",
        Some(stem) => stem,
        None => public_key_algorithm,
    }
}

/// Returns the name that ssh shows for a key type: `ED25519` for `ssh-ed25519`.
pub fn display_name(key_type: &str) -> &str {
    KEY_TYPES
        .iter()
        .find(|(known, _)| *known == key_type)
        .map_or(key_type, |(_, shown)| shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti someone@example";

    #[test]
    fn a_public_key_line_is_read_and_written_alike() {
        let key = PublicKey::parse(LINE.as_bytes()).unwrap();
        assert_eq!(key.algorithm, "ssh-ed25519");
        assert_eq!(key.comment, "someone@example");
        assert_eq!(key.to_line(), LINE);
        assert_eq!(
            fingerprint(&key.blob),
            "SHA256:UCUiLr7Pjs9wFFJMDByLgc3NrtdU344OgUM45wZPcIQ"
        );
    }

    #[test]
    fn a_line_that_contradicts_its_blob_is_refused() {
        assert_eq!(
            PublicKey::parse(LINE.replacen("ssh-ed25519", "ssh-rsa", 1).as_bytes()),
            None
        );
        assert_eq!(PublicKey::parse(b"ssh-ed25519 !!!"), None);
        assert_eq!(PublicKey::parse(b""), None);
    }

    #[test]
    fn algorithms_lead_to_their_key_types() {
        assert_eq!(key_type_of_algorithm("rsa-sha2-512"), Some("ssh-rsa"));
        assert_eq!(
            key_type_of_algorithm("rsa-sha2-256-cert-v01@openssh.com"),
            Some("ssh-rsa")
        );
        assert_eq!(
            key_type_of_algorithm("sk-ssh-ed25519-cert-v01@openssh.com"),
            Some("sk-ssh-ed25519@openssh.com")
        );
        assert_eq!(key_type_of_algorithm("ssh-quantum"), None);
        assert_eq!(
            signature_algorithm("rsa-sha2-512-cert-v01@openssh.com"),
            "rsa-sha2-512"
        );
        assert_eq!(
            signature_algorithm("sk-ssh-ed25519-cert-v01@openssh.com"),
            "sk-ssh-ed25519@openssh.com"
        );
    }

    proptest! {
        #[test]
        fn no_line_panics(line: Vec<u8>, blob: Vec<u8>) {
            let _ = PublicKey::parse(&line);
            let _ = key_type(&blob);
        }
    }
}
