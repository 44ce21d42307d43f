//! OpenSSH certificates (PROTOCOL.certkeys).
//!
//! [`Certificate::parse`] reads one. The caller decides whether to trust it (its CA, dates, principals, critical
//! options); for that it only needs a clock and a list of CAs in addition.

use bytes::Bytes;

use super::public_key::{KeyKind, PublicKey, PublicKeyError};
use crate::wire::{Reader, WireError, Writer};
use trunkline_text::Printable;

/// OpenSSH's `SSHKEY_CERT_MAX_PRINCIPALS`.
const MAX_PRINCIPALS: usize = 256;
/// The most critical options, and the most extensions; OpenSSH knows fewer than ten.
const MAX_OPTIONS: usize = 256;

/// A public key with a certification authority's statements about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    key_blob: Bytes,
    serial: u64,
    cert_type: CertType,
    key_id: String,
    principals: Vec<String>,
    valid_after: u64,
    valid_before: u64,
    critical_options: Vec<(String, Bytes)>,
    extensions: Vec<(String, Bytes)>,
    pub(crate) ca_key: Bytes,
    /// The bytes that the CA has signed: everything up to and including its key.
    pub(crate) signed: Bytes,
    pub(crate) signature: Bytes,
    pub(crate) ca_signature_algorithm: String,
}

/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CertType {
    /// Identifies a user to a server.
    User,
    /// Identifies a server.
    Host,
}

/// The reason why a blob is not a usable certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// It is not a certificate, or is for an unsupported type of key.
    #[error("{name:?} is not a supported certificate type")]
    UnsupportedType {
        /// The type that it names.
        name: String,
    },
    /// It is malformed.
    #[error("the certificate is malformed: {0}")]
    Malformed(#[from] WireError),
    /// The certified key or the CA's is malformed, or the CA's is itself a certificate.
    #[error("the certificate holds an unusable {whose} key")]
    BadKey {
        /// "certified" or "CA".
        whose: &'static str,
    },
    /// It is neither for a user nor for a host.
    #[error("the certificate is of the unknown kind {0}")]
    UnknownKind(u32),
    /// It has more principals or options than OpenSSH allows.
    #[error("the certificate has more than {max} {what}")]
    TooMany {
        /// The kind of items.
        what: &'static str,
        /// The limit.
        max: usize,
    },
}

impl Certificate {
    /// Parses a certificate's blob, as a server sends it instead of its host key or a `-cert.pub` file contains it.
    /// Nothing is verified: see [`Self::verify_ca_signature`].
    ///
    /// # Errors
    /// The blob is not a certificate, has bytes left over, is for an unsupported key type or signed by one, or has more
    /// than 256 principals, critical options or extensions.
    pub fn parse(blob: &[u8]) -> Result<Self, CertificateError> {
        let mut reader = Reader::new(blob);
        let name = reader.name()?;
        let kind = KeyKind::from_certified_name(name).ok_or_else(|| CertificateError::UnsupportedType {
            name: name.to_owned(),
        })?;
        let _nonce = reader.string()?;

        let before = reader.rest();
        PublicKey::read(kind, &mut reader).map_err(|error| match error {
            PublicKeyError::Malformed(error) => CertificateError::Malformed(error),
            _ => CertificateError::BadKey { whose: "certified" },
        })?;
        let key_fields = &before[..before.len() - reader.rest().len()];

        let serial = reader.u64()?;
        let cert_type = match reader.u32()? {
            1 => CertType::User,
            2 => CertType::Host,
            other => return Err(CertificateError::UnknownKind(other)),
        };
        // Free text for people to read.
        let key_id = Printable::line(reader.string()?).into_string();
        let principals = read_principals(reader.string()?)?;
        let valid_after = reader.u64()?;
        let valid_before = reader.u64()?;
        let critical_options = read_options(reader.string()?, "critical options")?;
        let extensions = read_options(reader.string()?, "extensions")?;
        let _reserved = reader.string()?;
        let ca_key = reader.string()?;
        let signed = &blob[..blob.len() - reader.rest().len()];
        let signature = reader.string()?;
        reader.finish()?;

        // A plain key: "chained" certificates are not supported.
        PublicKey::parse(ca_key).map_err(|_| CertificateError::BadKey { whose: "CA" })?;
        let ca_signature_algorithm = Reader::new(signature).name()?.to_owned();
        Ok(Self {
            key_blob: Writer::new().string(kind.name()).raw(key_fields).finish(),
            serial,
            cert_type,
            key_id,
            principals,
            valid_after,
            valid_before,
            critical_options,
            extensions,
            ca_key: Bytes::copy_from_slice(ca_key),
            signed: Bytes::copy_from_slice(signed),
            signature: Bytes::copy_from_slice(signature),
            ca_signature_algorithm,
        })
    }

    /// Returns the certified key as a plain public key's blob.
    pub fn key_blob(&self) -> &[u8] {
        &self.key_blob
    }

    /// Returns its purpose.
    pub fn cert_type(&self) -> CertType {
        self.cert_type
    }

    /// Returns the number that the CA gave it; 0 if the CA does not number.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the CA's free text about it.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Returns the host names or user names that it is for. An empty list once meant everyone; since 10.3 OpenSSH takes
    /// it to mean nobody.
    pub fn principals(&self) -> &[String] {
        &self.principals
    }

    /// Returns the first second at which it is valid, since 1970-01-01 00:00:00 UTC.
    pub fn valid_after(&self) -> u64 {
        self.valid_after
    }

    /// Returns the first second at which it is no longer valid; `u64::MAX` for never.
    pub fn valid_before(&self) -> u64 {
        self.valid_before
    }

    /// Returns the critical options in their order: a certificate with an unknown one must be refused. None is defined
    /// for hosts.
    pub fn critical_options(&self) -> &[(String, Bytes)] {
        &self.critical_options
    }

    /// Returns the options that may be ignored, in their order.
    pub fn extensions(&self) -> &[(String, Bytes)] {
        &self.extensions
    }

    /// Returns the blob of the CA's plain public key.
    pub fn ca_key(&self) -> &[u8] {
        &self.ca_key
    }

    /// Returns the algorithm that the CA signed with, to be checked against `CASignatureAlgorithms`.
    pub fn ca_signature_algorithm(&self) -> &str {
        &self.ca_signature_algorithm
    }
}

fn read_principals(field: &[u8]) -> Result<Vec<String>, CertificateError> {
    let mut reader = Reader::new(field);
    let mut principals = Vec::new();
    while !reader.is_empty() {
        if principals.len() == MAX_PRINCIPALS {
            return Err(CertificateError::TooMany {
                what: "principals",
                max: MAX_PRINCIPALS,
            });
        }
        // Control characters make a name that no host has.
        principals.push(Printable::line(reader.utf8()?).into_string());
    }
    Ok(principals)
}

/// Reads pairs of name and data. The data usually contains another string, which depends on the option.
fn read_options(field: &[u8], what: &'static str) -> Result<Vec<(String, Bytes)>, CertificateError> {
    let mut reader = Reader::new(field);
    let mut options = Vec::new();
    while !reader.is_empty() {
        if options.len() == MAX_OPTIONS {
            return Err(CertificateError::TooMany {
                what,
                max: MAX_OPTIONS,
            });
        }
        let name = Printable::line(reader.utf8()?).into_string();
        options.push((name, Bytes::copy_from_slice(reader.string()?)));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_key::signature::{SignatureError, ssh_keygen};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::OnceLock;

    /// Makes `ssh-keygen` certify `key`.pub in `dir`.
    fn certify(dir: &Path, ca: &str, key: &str, options: &[&str]) -> Vec<u8> {
        let public = format!("{key}.pub");
        ssh_keygen::run(
            dir,
            &[&["-q", "-s", ca, "-I", "the id"], options, &[public.as_str()]].concat(),
        );
        ssh_keygen::blob(dir.join(format!("{key}-cert.pub")))
    }

    fn sample() -> &'static [u8] {
        static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
        SAMPLE.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            ssh_keygen::key(dir.path(), "ca", ssh_keygen::TYPES[0]);
            ssh_keygen::key(dir.path(), "host", ssh_keygen::TYPES[0]);
            certify(dir.path(), "ca", "host", &["-h", "-n", "a.example,*.b.example"])
        })
    }

    #[test]
    fn host_certificates_of_every_type_are_read_and_verified() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for (i, of_type) in ssh_keygen::TYPES.into_iter().enumerate() {
            ssh_keygen::key(dir, &format!("ca{i}"), of_type);
            ssh_keygen::key(dir, &format!("key{i}"), of_type);
        }
        // Creating security keys needs hardware, certifying them does not. Any point will do.
        write_security_keys(dir);
        let keys = ["key0", "key1", "key2", "key3", "key4", "sk-ed25519", "sk-ecdsa"];
        for (i, key) in keys.into_iter().enumerate() {
            let ca = format!("ca{}", i % 5);
            let blob = certify(
                dir,
                &ca,
                key,
                &[
                    "-h",
                    "-n",
                    "a.example,b.example",
                    "-z",
                    "42",
                    "-V",
                    "20200101000000Z:20300101000000Z",
                ],
            );
            let certificate = Certificate::parse(&blob).unwrap();
            assert_eq!(certificate.verify_ca_signature(), Ok(()), "{key}");
            assert_eq!(
                certificate.key_blob(),
                ssh_keygen::blob(dir.join(format!("{key}.pub"))),
                "{key}"
            );
            assert_eq!(
                certificate.ca_key(),
                ssh_keygen::blob(dir.join(format!("{ca}.pub"))),
                "{key}"
            );
            assert_eq!(certificate.cert_type(), CertType::Host);
            assert_eq!((certificate.serial(), certificate.key_id()), (42, "the id"));
            assert_eq!(certificate.principals(), ["a.example", "b.example"]);
            assert_eq!(
                (certificate.valid_after(), certificate.valid_before()),
                (1_577_836_800, 1_893_456_000)
            );
            assert!(certificate.critical_options().is_empty() && certificate.extensions().is_empty());
            let algorithm = [
                "ssh-ed25519",
                "ecdsa-sha2-nistp256",
                "ecdsa-sha2-nistp384",
                "ecdsa-sha2-nistp521",
            ]
            .get(i % 5)
            .copied()
            .unwrap_or("rsa-sha2-512");
            assert_eq!(certificate.ca_signature_algorithm(), algorithm);
        }
    }

    #[test]
    fn an_rsa_ca_may_choose_sha256_but_not_sha1() {
        let dir = tempfile::tempdir().unwrap();
        ssh_keygen::key(dir.path(), "ca", ssh_keygen::TYPES[4]);
        ssh_keygen::key(dir.path(), "host", ssh_keygen::TYPES[0]);
        let sha256 =
            Certificate::parse(&certify(dir.path(), "ca", "host", &["-t", "rsa-sha2-256", "-h"])).unwrap();
        assert_eq!(sha256.ca_signature_algorithm(), "rsa-sha2-256");
        assert_eq!(sha256.verify_ca_signature(), Ok(()));
        let sha1 = Certificate::parse(&certify(dir.path(), "ca", "host", &["-t", "ssh-rsa", "-h"])).unwrap();
        assert_eq!(sha1.ca_signature_algorithm(), "ssh-rsa");
        assert!(matches!(
            sha1.verify_ca_signature(),
            Err(SignatureError::UnsupportedAlgorithm { .. })
        ));
    }

    #[test]
    fn options_and_an_endless_validity_are_read() {
        let dir = tempfile::tempdir().unwrap();
        ssh_keygen::key(dir.path(), "ca", ssh_keygen::TYPES[0]);
        ssh_keygen::key(dir.path(), "user", ssh_keygen::TYPES[0]);
        let options = [
            "-O",
            "clear",
            "-O",
            "permit-pty",
            "-O",
            "force-command=uptime",
            "-n",
            "root",
        ];
        let certificate = Certificate::parse(&certify(dir.path(), "ca", "user", &options)).unwrap();
        assert_eq!(certificate.cert_type(), CertType::User);
        let command = Writer::new().string("uptime").finish();
        assert_eq!(
            certificate.critical_options(),
            [("force-command".to_owned(), command)]
        );
        assert_eq!(
            certificate.extensions(),
            [("permit-pty".to_owned(), Bytes::new())]
        );
        assert_eq!(
            (certificate.valid_after(), certificate.valid_before()),
            (0, u64::MAX)
        );
    }

    #[test]
    fn more_principals_than_openssh_allows_are_refused() {
        let field = |n: usize| (0..n).fold(Writer::new(), |field, _| field.string("x")).finish();
        assert_eq!(
            read_principals(&field(MAX_PRINCIPALS)).unwrap().len(),
            MAX_PRINCIPALS
        );
        let refused = read_principals(&field(MAX_PRINCIPALS + 1));
        assert_eq!(
            refused,
            Err(CertificateError::TooMany {
                what: "principals",
                max: MAX_PRINCIPALS
            })
        );
        let refused = read_options(&field(2 * MAX_OPTIONS + 2), "extensions");
        assert_eq!(
            refused,
            Err(CertificateError::TooMany {
                what: "extensions",
                max: MAX_OPTIONS
            })
        );
    }

    #[test]
    fn a_plain_key_is_no_certificate_and_a_certificate_no_ca() {
        let certificate = Certificate::parse(sample()).unwrap();
        let refused = Certificate::parse(certificate.key_blob());
        assert_eq!(
            refused,
            Err(CertificateError::UnsupportedType {
                name: "ssh-ed25519".into()
            })
        );

        let mut reader = Reader::new(sample());
        for _ in 0..3 {
            reader.string().unwrap();
        }
        let start = sample().len() - reader.rest().len();
        let chained = Writer::new()
            .raw(&sample()[..start])
            .u64(1)
            .u32(2)
            .string("id")
            .string("")
            .u64(0)
            .u64(u64::MAX)
            .string("")
            .string("")
            .string("")
            .string(sample())
            .string(&certificate.signature)
            .finish();
        assert_eq!(
            Certificate::parse(&chained),
            Err(CertificateError::BadKey { whose: "CA" })
        );
    }

    proptest! {
        #[test]
        fn a_flipped_bit_anywhere_is_noticed(position: prop::sample::Index, bit in 0u8..8) {
            let mut altered = sample().to_vec();
            altered[position.index(sample().len())] ^= 1 << bit;
            let accepted = Certificate::parse(&altered).is_ok_and(|cert| cert.verify_ca_signature().is_ok());
            prop_assert!(!accepted);
        }

        #[test]
        fn a_cut_certificate_is_refused(end: prop::sample::Index) {
            prop_assert!(Certificate::parse(&sample()[..end.index(sample().len())]).is_err());
            prop_assert!(Certificate::parse(&[sample(), &[0]].concat()).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, from: prop::sample::Index) {
            let _ = Certificate::parse(&bytes);
            let spliced = [&sample()[..from.index(sample().len())], &bytes].concat();
            let _ = Certificate::parse(&spliced).map(|cert| cert.verify_ca_signature());
        }
    }

    fn write_security_keys(dir: &Path) {
        use base64::Engine as _;
        let ed25519 = ssh_keygen::blob(dir.join("key0.pub"));
        let ecdsa = ssh_keygen::blob(dir.join("key1.pub"));
        for (file, name, plain) in [
            ("sk-ed25519", "sk-ssh-ed25519@openssh.com", ed25519),
            ("sk-ecdsa", "sk-ecdsa-sha2-nistp256@openssh.com", ecdsa),
        ] {
            let mut reader = Reader::new(&plain);
            reader.string().unwrap();
            let blob = Writer::new()
                .string(name)
                .raw(reader.rest())
                .string("ssh:")
                .finish();
            let line = format!(
                "{name} {} test\n",
                base64::engine::general_purpose::STANDARD.encode(blob)
            );
            std::fs::write(dir.join(format!("{file}.pub")), line).unwrap();
        }
    }
}
