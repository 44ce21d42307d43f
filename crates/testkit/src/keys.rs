//! Key pairs and certificates, made by `ssh-keygen`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, program};

/// A kind of key, for hosts and for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// `ssh-ed25519`
    Ed25519,
    /// RSA with 2,048 bits: quick to make, and accepted by all current policies.
    Rsa,
    /// `ecdsa-sha2-nistp256`
    EcdsaP256,
    /// `ecdsa-sha2-nistp384`
    EcdsaP384,
    /// `ecdsa-sha2-nistp521`
    EcdsaP521,
}

impl KeyType {
    /// All of them.
    pub const ALL: [KeyType; 5] = [
        KeyType::Ed25519,
        KeyType::Rsa,
        KeyType::EcdsaP256,
        KeyType::EcdsaP384,
        KeyType::EcdsaP521,
    ];

    /// Returns the name of the algorithm in a public key (RFC 4253 section 6.6, RFC 5656 section 3.1, RFC 8709 section
    /// 4).
    pub fn algorithm(self) -> &'static str {
        match self {
            KeyType::Ed25519 => "ssh-ed25519",
            KeyType::Rsa => "ssh-rsa",
            KeyType::EcdsaP256 => "ecdsa-sha2-nistp256",
            KeyType::EcdsaP384 => "ecdsa-sha2-nistp384",
            KeyType::EcdsaP521 => "ecdsa-sha2-nistp521",
        }
    }

    /// Returns the values of `-t` and `-b` for ssh-keygen and dropbearkey.
    pub(crate) fn family_and_bits(self) -> (&'static str, Option<&'static str>) {
        match self {
            KeyType::Ed25519 => ("ed25519", None),
            KeyType::Rsa => ("rsa", Some("2048")),
            KeyType::EcdsaP256 => ("ecdsa", Some("256")),
            KeyType::EcdsaP384 => ("ecdsa", Some("384")),
            KeyType::EcdsaP521 => ("ecdsa", Some("521")),
        }
    }
}

/// A key pair in OpenSSH's files: `NAME`, `NAME.pub` and, once it is certified, `NAME-cert.pub`.
#[derive(Debug, Clone)]
pub struct KeyPair {
    key_type: KeyType,
    private: PathBuf,
    public_line: String,
    certificate: Option<PathBuf>,
}

impl KeyPair {
    /// Makes a key pair without a passphrase, as `directory/name` and `directory/name.pub`.
    ///
    /// # Errors
    /// When ssh-keygen is missing or fails. `directory` must exist, and `name` must not.
    pub fn generate(directory: &Path, name: &str, key_type: KeyType) -> Result<KeyPair, Error> {
        KeyPair::generate_encrypted(directory, name, key_type, "")
    }

    /// Makes a key pair like [`KeyPair::generate`], with the private key encrypted with `passphrase` (OpenSSH's bcrypt
    /// format).
    ///
    /// # Errors
    /// As [`KeyPair::generate`]. ssh-keygen requires passphrases of at least five characters.
    pub fn generate_encrypted(
        directory: &Path,
        name: &str,
        key_type: KeyType,
        passphrase: &str,
    ) -> Result<KeyPair, Error> {
        let private = directory.join(name);
        let (family, bits) = key_type.family_and_bits();
        let mut command = Command::new(program::find("ssh-keygen", "openssh-client")?);
        command
            .args(["-q", "-t", family, "-N", passphrase, "-C", name, "-f"])
            .arg(&private);
        if let Some(bits) = bits {
            command.args(["-b", bits]);
        }
        program::run(&mut command)?;
        let public = with_suffix(&private, ".pub");
        let public_line = fs::read_to_string(&public)
            .map_err(|source| Error::File { path: public, source })?
            .trim()
            .to_owned();
        Ok(KeyPair {
            key_type,
            private,
            public_line,
            certificate: None,
        })
    }

    pub fn key_type(&self) -> KeyType {
        self.key_type
    }

    /// Returns the private key's file.
    pub fn private_path(&self) -> &Path {
        &self.private
    }

    /// Returns the public key's file.
    pub fn public_path(&self) -> PathBuf {
        with_suffix(&self.private, ".pub")
    }

    /// Returns the public key as in `authorized_keys`: `algorithm base64 comment`.
    pub fn public_line(&self) -> &str {
        &self.public_line
    }

    /// Returns the public key without its comment: `algorithm base64`.
    pub fn public_key(&self) -> &str {
        let mut spaces = self.public_line.match_indices(' ').map(|(at, _)| at);
        spaces
            .nth(1)
            .map_or(&self.public_line, |end| &self.public_line[..end])
    }

    /// Returns the certificate's file, if an [`Authority`] has signed this key.
    pub fn certificate_path(&self) -> Option<&Path> {
        self.certificate.as_deref()
    }
}

/// A certificate authority: an Ed25519 key that signs host or user keys.
#[derive(Debug, Clone)]
pub struct Authority {
    key: KeyPair,
}

impl Authority {
    /// Makes an authority with the key `directory/name`.
    ///
    /// # Errors
    /// As [`KeyPair::generate`].
    pub fn generate(directory: &Path, name: &str) -> Result<Authority, Error> {
        Ok(Authority {
            key: KeyPair::generate(directory, name, KeyType::Ed25519)?,
        })
    }

    /// Returns the authority's own key.
    pub fn key(&self) -> &KeyPair {
        &self.key
    }

    /// Certifies a user's key for the given login names.
    ///
    /// `validity` is ssh-keygen's `-V` (`+1h`, `-2h:-1h` for an expired one, …).
    ///
    /// # Errors
    /// When ssh-keygen fails, for example because of the validity.
    pub fn sign_user(&self, key: &mut KeyPair, logins: &[String], validity: &str) -> Result<(), Error> {
        self.sign(key, &[], logins, validity)
    }

    /// Certifies a host's key for the given host names or addresses.
    ///
    /// # Errors
    /// As [`Authority::sign_user`].
    pub fn sign_host(&self, key: &mut KeyPair, names: &[String], validity: &str) -> Result<(), Error> {
        self.sign(key, &["-h"], names, validity)
    }

    fn sign(&self, key: &mut KeyPair, kind: &[&str], names: &[String], validity: &str) -> Result<(), Error> {
        let mut command = Command::new(program::find("ssh-keygen", "openssh-client")?);
        command
            .arg("-q")
            .arg("-s")
            .arg(self.key.private_path())
            .args(kind);
        command
            .args(["-I", "testkit", "-n", &names.join(","), "-V", validity])
            .arg(key.public_path());
        program::run(&mut command)?;
        key.certificate = Some(with_suffix(&key.private, "-cert.pub"));
        Ok(())
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
