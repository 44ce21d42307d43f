//! The file that an `IdentityFile` names: a private key, its public half, a certificate beside it.

use super::formats::{Fault, Sealed};
use super::private::{MAX_RSA_BITS, MIN_RSA_BITS};
use super::{KeyError, PrivateKey, PublicKey};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trunkline_proto::certificate::Certificate;
use trunkline_proto::signature;
use zeroize::Zeroizing;

/// The largest key file that is read, in bytes (authfile.c, `MAX_KEY_FILE_SIZE`).
const MAX_KEY_FILE: u64 = 1 << 20;

/// An identity as far as it is known without a passphrase: enough to offer it to a server.
///
/// [`unlock`](Self::unlock) reads the file again; no secret stays in memory in between.
///
/// ```no_run
/// use trunkline_config::keys::{KeyError, KeyFile};
///
/// # fn ask_user() -> String { String::new() }
/// let file = KeyFile::open("/home/me/.ssh/id_ed25519".as_ref())?;
/// // A server can be offered the public half at once; only if it accepts is a passphrase needed.
/// let key = match file.unlock(None, 2048) {
///     Err(KeyError::PassphraseNeeded { .. }) => file.unlock(Some(&ask_user()), 2048)?,
///     other => other?,
/// };
/// let signature = key.sign(key.signature_algorithms()[0], b"data")?;
/// # Ok::<(), KeyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
    public: Option<PublicKey>,
    /// The file of the public half, if it is not the private key's.
    public_path: Option<PathBuf>,
    certificate: Option<PublicKey>,
    /// The file is a private key, or the handle of one in a FIDO token.
    is_private: bool,
    is_encrypted: bool,
    /// The cipher of the file, if it is unsupported.
    foreign_cipher: Option<String>,
    /// The content that stands for a file.
    content: Option<Content>,
}

/// A key in a program's memory. It is wiped when the last [`KeyFile`] that has it is dropped.
#[derive(Clone)]
struct Content(Arc<Zeroizing<Vec<u8>>>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Content(..)")
    }
}

impl KeyFile {
    /// Looks at the key in `path` and at `path.pub` and `path-cert.pub` beside it.
    ///
    /// Takes the public half from `path` itself if that is a public key (`IdentityFile key.pub` picks a key of the
    /// agent), else from `path.pub`, else from the private key if it is not encrypted (authfile.c,
    /// `sshkey_load_public`). Ignores a certificate for another key. Blocks.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`] if neither `path` nor `path.pub` can be read, [`KeyError::Malformed`] and
    /// [`KeyError::Unsupported`] if they hold no usable key.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let public_path = with_suffix(path, ".pub");
        let beside = read(&public_path)
            .ok()
            .and_then(|(content, _)| first_public_key(&content));
        let mut identity = Self {
            path: path.to_owned(),
            public_path: beside.is_some().then_some(public_path),
            public: beside,
            certificate: None,
            is_private: false,
            is_encrypted: false,
            foreign_cipher: None,
            content: None,
        };
        match read(path) {
            Ok((content, _)) => match first_public_key(&content) {
                Some(public) => identity.public = Some(public),
                None => identity.look_into(&content)?,
            },
            // If only the agent has the private half, users often keep the .pub file alone.
            Err(KeyError::Unreadable { source, .. })
                if identity.public.is_some() && source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        identity.take_certificate();
        let beside = read(&with_suffix(path, "-cert.pub"))
            .ok()
            .and_then(|(content, _)| first_public_key(&content))
            .filter(|certificate| identity.is_certified_by(certificate));
        identity.certificate = beside.or(identity.certificate);
        Ok(identity)
    }

    /// Takes the key from `content`, the content of a key file: a private key in any format that [`open`](Self::open)
    /// reads, or a public key, which picks one of the agent's. `name` stands for the path in messages.
    ///
    /// The content stays in memory until the key is dropped, and is then wiped.
    ///
    /// # Errors
    /// [`KeyError::TooLarge`] above 1 MiB, [`KeyError::Malformed`] and [`KeyError::Unsupported`] if it holds no key.
    pub fn in_memory(name: &str, content: Zeroizing<Vec<u8>>) -> Result<Self, KeyError> {
        let path = PathBuf::from(name);
        if content.len() as u64 > MAX_KEY_FILE {
            return Err(KeyError::TooLarge {
                path,
                limit: MAX_KEY_FILE,
            });
        }
        let mut identity = Self {
            path,
            public_path: None,
            public: first_public_key(&content),
            certificate: None,
            is_private: false,
            is_encrypted: false,
            foreign_cipher: None,
            content: None,
        };
        if identity.public.is_none() {
            identity.look_into(&content)?;
        }
        identity.take_certificate();
        identity.content = Some(Content(Arc::new(content)));
        Ok(identity)
    }

    /// Reads the certificate of a `CertificateFile`, for any key. Blocks.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], or [`KeyError::NoCertificate`] if the file holds something else.
    pub fn read_certificate(path: &Path) -> Result<PublicKey, KeyError> {
        let (content, _) = read(path)?;
        first_public_key(&content)
            .filter(PublicKey::is_certificate)
            .ok_or_else(|| KeyError::NoCertificate {
                path: path.to_owned(),
            })
    }

    /// Returns the path as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the public half, if it can be read without a passphrase.
    pub fn public_key(&self) -> Option<&PublicKey> {
        self.public.as_ref()
    }

    /// Returns the certificate beside the key.
    pub fn certificate(&self) -> Option<&PublicKey> {
        self.certificate.as_ref()
    }

    /// Returns whether `certificate` certifies this key.
    pub fn is_certified_by(&self, certificate: &PublicKey) -> bool {
        match (&self.public, Certificate::parse(&certificate.blob)) {
            (Some(public), Ok(certificate)) => public.blob == certificate.key_blob(),
            _ => false,
        }
    }

    /// Returns whether the file has the private half; if not, only an agent can sign.
    pub fn has_private_half(&self) -> bool {
        self.is_private && !self.is_security_key()
    }

    /// Returns the kind of key in the file, in a few words, if ssh signs with it but [`unlock`](Self::unlock) does not
    /// open it; `None` for other keys. Judges only by what shows without a passphrase.
    pub fn only_ssh_signs(&self) -> Option<String> {
        let public = self.public.as_ref().filter(|_| self.is_private)?;
        if self.is_security_key() {
            return Some("a security key".into());
        }
        if let Some(cipher) = &self.foreign_cipher {
            return Some(format!("a key encrypted with {cipher}"));
        }
        match signature::rsa_bits(&public.blob) {
            Ok(Some(MIN_RSA_BITS..=MAX_RSA_BITS)) => None,
            Ok(Some(bits)) => Some(format!("an RSA key of {bits} bits")),
            _ if public.algorithm == "ssh-ed25519" || public.algorithm.starts_with("ecdsa-sha2-") => None,
            _ => Some(format!("a key of type {}", public.algorithm)),
        }
    }

    /// Returns whether [`unlock`](Self::unlock) needs a passphrase.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns whether the key lives in a FIDO token: only an agent can sign with it, after a touch.
    pub fn is_security_key(&self) -> bool {
        self.public
            .as_ref()
            .is_some_and(|public| public.algorithm.starts_with("sk-"))
    }

    /// Opens the private half, with `passphrase` if it is encrypted. `min_rsa_bits` is `RequiredRSASize`; values below
    /// 2048 count as 2048. Blocks; bcrypt is slow by design.
    ///
    /// # Errors
    /// [`KeyError::PassphraseNeeded`] and [`KeyError::WrongPassphrase`] if the user has to be asked;
    /// [`KeyError::Unprotected`] if others may read the file; another [`KeyError`] if the file is bad.
    pub fn unlock(&self, passphrase: Option<&str>, min_rsa_bits: usize) -> Result<PrivateKey, KeyError> {
        let from_file;
        let content = match &self.content {
            Some(Content(content)) => content,
            None => {
                let (content, mode) = read(&self.path)?;
                if let Some(mode) = mode {
                    return Err(KeyError::Unprotected {
                        path: self.path.clone(),
                        mode,
                    });
                }
                from_file = content;
                &from_file
            }
        };
        let fault = |fault| self.error(fault, min_rsa_bits);
        let sealed = Sealed::parse(content).map_err(fault)?;
        let (secret, comment) = sealed.open(passphrase.map(str::as_bytes)).map_err(fault)?;
        let key = PrivateKey::from_secret(&secret, comment).map_err(fault)?;
        if let Ok(Some(bits)) = signature::rsa_bits(key.public_blob())
            && bits < min_rsa_bits
        {
            return Err(fault(Fault::RsaSize(bits)));
        }
        match &self.public {
            Some(public) if public.blob != *key.public_blob() => Err(KeyError::PublicMismatch {
                private: self.path.clone(),
                public: self.public_path.clone().unwrap_or_else(|| self.path.clone()),
            }),
            _ => Ok(key),
        }
    }

    /// Separates the key from the certificate if the public half is one (`key.pub` may hold one).
    fn take_certificate(&mut self) {
        let Some(certificate) = self.public.take_if(|public| public.is_certificate()) else {
            return;
        };
        let plain = super::without_certificate(certificate.blob.clone());
        let Some((blob, algorithm)) = plain.and_then(|blob| Some((blob.clone(), super::key_type(&blob)?)))
        else {
            return;
        };
        self.public = Some(PublicKey {
            algorithm: algorithm.to_owned(),
            blob,
            comment: certificate.comment.clone(),
        });
        self.certificate = Some(certificate);
    }

    /// Reads the parts of the private key file that need no passphrase.
    fn look_into(&mut self, content: &[u8]) -> Result<(), KeyError> {
        let sealed = match Sealed::parse(content) {
            Ok(sealed) => sealed,
            // An agent may still have the key of a known public half.
            Err(_) if self.public.is_some() => return Ok(()),
            Err(fault) => return Err(self.error(fault, MIN_RSA_BITS)),
        };
        self.is_private = true;
        self.is_encrypted = sealed.is_encrypted();
        self.foreign_cipher = sealed.foreign_cipher();
        if self.public.is_none() {
            self.public = public_key(&sealed);
        }
        Ok(())
    }

    fn error(&self, fault: Fault, min_rsa_bits: usize) -> KeyError {
        let path = self.path.clone();
        match fault {
            Fault::Malformed(reason) => KeyError::Malformed { path, reason },
            Fault::PassphraseNeeded => KeyError::PassphraseNeeded { path },
            Fault::WrongPassphrase => KeyError::WrongPassphrase { path },
            Fault::Cipher(cipher) => KeyError::Cipher { path, cipher },
            Fault::Cost(cost) => KeyError::Cost { path, cost },
            Fault::SecurityKey => KeyError::SecurityKey { path },
            Fault::Unsupported(algorithm) => KeyError::Unsupported { path, algorithm },
            Fault::RsaSize(bits) => KeyError::RsaSize {
                path,
                bits,
                min: min_rsa_bits.max(MIN_RSA_BITS),
                max: MAX_RSA_BITS,
            },
        }
    }
}

/// Reads a file that may hold a secret. The second value is its mode if others than the owner may read it.
///
/// As in authfile.c (`sshkey_perm_ok`), only the user's own files are judged: the user could not change others, such as
/// those on a read-only mount or a pipe from another user.
fn read(path: &Path) -> Result<(Zeroizing<Vec<u8>>, Option<u32>), KeyError> {
    let unreadable = |source| KeyError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.len() > MAX_KEY_FILE {
        return Err(KeyError::TooLarge {
            path: path.to_owned(),
            limit: MAX_KEY_FILE,
        });
    }
    let mode = metadata.mode() & 0o777;
    let is_own = metadata.uid() == rustix::process::getuid().as_raw();
    let exposed = (is_own && mode & 0o077 != 0).then_some(mode);

    // The buffer has its full size from the start, so that growing leaves no part of the secret behind. A pipe (`ssh -i
    // <(…)`) does not tell its length.
    let room = if metadata.is_file() {
        metadata.len()
    } else {
        MAX_KEY_FILE
    } as usize
        + 1;
    let mut content = Zeroizing::new(vec![0; room]);
    let mut len = 0;
    let mut source = file;
    loop {
        match source.read(&mut content[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    if len == room {
        return Err(KeyError::TooLarge {
            path: path.to_owned(),
            limit: MAX_KEY_FILE,
        });
    }
    content.truncate(len);
    Ok((content, exposed))
}

/// Returns the first line of a file that is a public key. Skips other lines, up to the beginning of a private key
/// (authfile.c, `sshkey_try_load_public`).
fn first_public_key(content: &[u8]) -> Option<PublicKey> {
    content
        .split(|&b| b == b'\n')
        .take_while(|line| !line.starts_with(b"-----BEGIN"))
        .filter(|line| !line.starts_with(b"#"))
        .find_map(PublicKey::parse)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

impl PrivateKey {
    /// Loads the private key in `path`, with `passphrase` if it is encrypted.
    ///
    /// [`KeyFile`] does the same in two steps, so that the user is asked for a passphrase only if the server wants the
    /// key. Blocks.
    ///
    /// # Errors
    /// As [`KeyFile::unlock`].
    pub fn load(path: &Path, passphrase: Option<&str>) -> Result<Self, KeyError> {
        KeyFile::open(path)?.unlock(passphrase, MIN_RSA_BITS)
    }
}

/// Returns the public half, if it can be read without a passphrase.
fn public_key(sealed: &Sealed) -> Option<PublicKey> {
    sealed.clear_public_key().or_else(|| {
        let (secret, comment) = sealed.open(None).ok()?;
        let key = PrivateKey::from_secret(&secret, comment).ok()?;
        Some(key.public_key().clone())
    })
}

#[cfg(test)]
mod tests;
