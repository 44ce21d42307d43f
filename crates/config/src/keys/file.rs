//! What an `IdentityFile` names: a private key, its public half, a certificate beside it.

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

/// An identity before its secret is needed: what can be offered to a server without a passphrase.
///
/// The file is read again by [`unlock`](Self::unlock); no secret stays in memory in between.
///
/// ```no_run
/// use trunkline_config::keys::{KeyError, KeyFile};
///
/// # fn ask_user() -> String { String::new() }
/// let file = KeyFile::open("/home/me/.ssh/id_ed25519".as_ref())?;
/// // The public half can be offered at once; only when the server wants it is a passphrase needed.
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
    /// The file the public half was found in, if it is not the private key's.
    public_path: Option<PathBuf>,
    certificate: Option<PublicKey>,
    /// It is a private key, or the handle of one in a FIDO token.
    is_private: bool,
    is_encrypted: bool,
    /// The cipher that guards it, where that is not read here.
    foreign_cipher: Option<String>,
    /// What stands for the file where there is none.
    content: Option<Content>,
}

/// A key in a program's memory. Wiped when the last [`KeyFile`] that has it is dropped.
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
    /// The public half comes from `path` itself if that is a public key (`IdentityFile key.pub` picks a key of the
    /// agent), else from `path.pub`, else from the private key as far as it is not encrypted (authfile.c,
    /// `sshkey_load_public`). A certificate that belongs to another key is not taken. Blocks.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`] if neither `path` nor `path.pub` can be read, [`KeyError::Malformed`] and
    /// [`KeyError::Unsupported`] if nothing of use is in them.
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
            // A key whose private half only the agent has is often kept as its .pub file alone.
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

    /// The key in `content`, which is what a key file holds: a private key in any format that [`open`](Self::open) reads,
    /// or a public key, which picks one of the agent's. `name` stands for the path in messages.
    ///
    /// The content stays in memory until the key is dropped, and is wiped then.
    ///
    /// # Errors
    /// [`KeyError::TooLarge`] above 1 MiB, [`KeyError::Malformed`] and [`KeyError::Unsupported`] if nothing of use is in it.
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

    /// Reads a `CertificateFile`: the certificate in it, for whichever key it certifies. Blocks.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], or [`KeyError::NoCertificate`] if it holds something else.
    pub fn read_certificate(path: &Path) -> Result<PublicKey, KeyError> {
        let (content, _) = read(path)?;
        first_public_key(&content)
            .filter(PublicKey::is_certificate)
            .ok_or_else(|| KeyError::NoCertificate {
                path: path.to_owned(),
            })
    }

    /// The file, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The public half, if it could be read without a passphrase.
    pub fn public_key(&self) -> Option<&PublicKey> {
        self.public.as_ref()
    }

    /// The certificate found beside the key.
    pub fn certificate(&self) -> Option<&PublicKey> {
        self.certificate.as_ref()
    }

    /// Whether `certificate` is a certificate for this key.
    pub fn is_certified_by(&self, certificate: &PublicKey) -> bool {
        match (&self.public, Certificate::parse(&certificate.blob)) {
            (Some(public), Ok(certificate)) => public.blob == certificate.key_blob(),
            _ => false,
        }
    }

    /// Whether the private half is in the file; if not, only an agent can sign.
    pub fn has_private_half(&self) -> bool {
        self.is_private && !self.is_security_key()
    }

    /// What the file holds that ssh signs with and [`unlock`](Self::unlock) does not open, in a few words; `None` for other
    /// keys. What shows only once it is open is not looked at.
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

    /// Whether [`unlock`](Self::unlock) needs a passphrase.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the key lives in a FIDO token: only an agent can sign with it, after a touch.
    pub fn is_security_key(&self) -> bool {
        self.public
            .as_ref()
            .is_some_and(|public| public.algorithm.starts_with("sk-"))
    }

    /// Opens the private half, with `passphrase` if it is encrypted. `min_rsa_bits` is `RequiredRSASize`; less than
    /// 2048 counts as 2048. Blocks; bcrypt takes its time.
    ///
    /// # Errors
    /// [`KeyError::PassphraseNeeded`] and [`KeyError::WrongPassphrase`] can be answered by asking the user;
    /// [`KeyError::Unprotected`] if others may read the file; the rest says what is wrong with it.
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

    /// Where the public half is a certificate (`key.pub` itself may hold one), tells the key from it.
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

    /// Learns what the private key file says without a passphrase.
    fn look_into(&mut self, content: &[u8]) -> Result<(), KeyError> {
        let sealed = match Sealed::parse(content) {
            Ok(sealed) => sealed,
            // With the public half at hand an agent may still have the key.
            Err(_) if self.public.is_some() => return Ok(()),
            Err(fault) => return Err(self.error(fault, MIN_RSA_BITS)),
        };
        self.is_private = true;
        self.is_encrypted = sealed.is_encrypted();
        self.foreign_cipher = sealed.foreign_cipher();
        if self.public.is_none() {
            self.public = sealed.public_key();
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
/// As in authfile.c (`sshkey_perm_ok`) only files of one's own are judged: on foreign ones, such as those
/// of a read-only mount or a pipe from another user, nothing could be changed.
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

    // Filled in place, so that no smaller buffer with a part of the secret is left behind by growing.
    // A pipe (`ssh -i <(…)`) does not tell its length.
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

/// The first line that is a public key or certificate, if the file is one of those.
fn first_public_key(content: &[u8]) -> Option<PublicKey> {
    content
        .split(|&b| b == b'\n')
        .map(<[u8]>::trim_ascii)
        .find(|line| !line.is_empty() && !line.starts_with(b"#"))
        .and_then(PublicKey::parse)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::digest;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};
    use tempfile::TempDir;
    use trunkline_proto::wire::Writer;

    const TYPES: [(&str, &str); 5] = [
        ("ed25519", "256"),
        ("ecdsa", "256"),
        ("ecdsa", "384"),
        ("ecdsa", "521"),
        ("rsa", "2048"),
    ];
    const PASSPHRASE: &str = "correct horse";

    /// Runs a program that must succeed and returns what it wrote.
    fn run(program: &str, args: &[&str], folder: &Path) -> String {
        let ran = Command::new(program)
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .output();
        let ran = ran.unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
        assert!(
            ran.status.success(),
            "{program} {args:?}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8(ran.stdout).unwrap()
    }

    fn generate(folder: &TempDir, kind: (&str, &str), passphrase: &str, more: &[&str]) -> PathBuf {
        let args = [
            "-q",
            "-t",
            kind.0,
            "-b",
            kind.1,
            "-N",
            passphrase,
            "-C",
            "a comment",
            "-f",
            "key",
        ];
        run("ssh-keygen", &[&args[..], more].concat(), folder.path());
        folder.path().join("key")
    }

    /// `ssh-keygen -y` prints the same public key.
    fn assert_public_half(key: &PrivateKey, path: &Path, passphrase: &str) {
        let path = path.to_str().unwrap();
        let printed = run(
            "ssh-keygen",
            &["-y", "-P", passphrase, "-f", path],
            Path::new("/"),
        );
        let printed = PublicKey::parse(printed.as_bytes()).unwrap();
        assert_eq!(&printed.blob, key.public_blob(), "{path}");
    }

    /// Both `ssh-keygen -Y` (PROTOCOL.sshsig) and the protocol crate accept signatures made with the key.
    fn assert_signs(key: &PrivateKey, folder: &TempDir) {
        for algorithm in key.signature_algorithms() {
            let signature = key.sign(algorithm, b"message").unwrap();
            signature::verify(key.public_blob(), algorithm, &signature, b"message").unwrap();
            assert!(signature::verify(key.public_blob(), algorithm, &signature, b"massage").is_err());
            let hash = digest::digest(&digest::SHA512, b"message");
            let about = Writer::new().string("file").string("").string("sha512").finish();
            let signed = Writer::new().raw(b"SSHSIG").raw(&about).string(hash).finish();
            let signature = key.sign(algorithm, &signed).unwrap();
            let body = Writer::new()
                .raw(b"SSHSIG")
                .u32(1)
                .string(key.public_blob())
                .raw(&about)
                .string(signature)
                .finish();
            let armor = STANDARD.encode(body);
            let text = format!("-----BEGIN SSH SIGNATURE-----\n{armor}\n-----END SSH SIGNATURE-----\n");
            fs::write(folder.path().join("sig"), text).unwrap();
            fs::write(folder.path().join("message"), "message").unwrap();
            let checked = Command::new("ssh-keygen")
                .args(["-Y", "check-novalidate", "-n", "file", "-s", "sig"])
                .current_dir(folder.path())
                .stdin(fs::File::open(folder.path().join("message")).unwrap())
                .output()
                .expect("this test needs ssh-keygen");
            assert!(
                checked.status.success(),
                "{algorithm}: {}",
                String::from_utf8_lossy(&checked.stderr)
            );
        }
    }

    #[test]
    fn every_type_in_every_format_of_ssh_keygen_loads_and_signs() {
        for kind in TYPES {
            for format in ["RFC4716", "PEM", "PKCS8"] {
                for passphrase in ["", PASSPHRASE] {
                    // ssh-keygen 9.2 cannot write Ed25519 as PKCS#8; openssl's is read below.
                    if (kind.0, format) == ("ed25519", "PKCS8") {
                        continue;
                    }
                    let folder = tempfile::tempdir().unwrap();
                    let path = generate(&folder, kind, passphrase, &["-m", format]);
                    fs::remove_file(with_suffix(&path, ".pub")).unwrap();
                    let file = KeyFile::open(&path).unwrap();
                    assert_eq!(file.is_encrypted(), !passphrase.is_empty(), "{kind:?} {format}");
                    if file.is_encrypted() {
                        assert!(matches!(
                            file.unlock(None, 0),
                            Err(KeyError::PassphraseNeeded { .. })
                        ));
                        for wrong in ["", "wrong"] {
                            let refused = file.unlock(Some(wrong), 0);
                            assert!(
                                matches!(refused, Err(KeyError::WrongPassphrase { .. })),
                                "{kind:?} {format} {refused:?}"
                            );
                        }
                    }
                    let key = file.unlock(Some(passphrase), 0).unwrap();
                    assert_public_half(&key, &path, passphrase);
                    assert_signs(&key, &folder);
                }
            }
        }
    }

    #[test]
    fn an_encrypted_openssh_key_shows_its_public_half_without_passphrase() {
        let folder = tempfile::tempdir().unwrap();
        let path = generate(&folder, TYPES[0], PASSPHRASE, &[]);
        let public = PublicKey::parse(&fs::read(with_suffix(&path, ".pub")).unwrap()).unwrap();
        fs::remove_file(with_suffix(&path, ".pub")).unwrap();
        let file = KeyFile::open(&path).unwrap();
        assert_eq!(file.public_key().unwrap().blob, public.blob);
        assert_eq!(file.unlock(Some(PASSPHRASE), 0).unwrap().public_key(), &public);
    }

    #[test]
    fn every_cipher_of_ssh_keygen_opens_or_says_what_to_do() {
        let ciphers = [
            "aes128-cbc",
            "aes256-cbc",
            "aes192-ctr",
            "aes256-gcm@openssh.com",
            "chacha20-poly1305@openssh.com",
        ];
        for cipher in ciphers {
            let folder = tempfile::tempdir().unwrap();
            let path = generate(&folder, TYPES[0], PASSPHRASE, &["-Z", cipher, "-a", "4"]);
            PrivateKey::load(&path, Some(PASSPHRASE)).unwrap_or_else(|error| panic!("{cipher}: {error}"));
            let wrong = PrivateKey::load(&path, Some("wrong"));
            assert!(matches!(wrong, Err(KeyError::WrongPassphrase { .. })), "{cipher}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = generate(&folder, TYPES[0], PASSPHRASE, &["-Z", "3des-cbc"]);
        let refused = PrivateKey::load(&path, Some(PASSPHRASE)).unwrap_err().to_string();
        assert!(refused.contains("ssh-keygen -p"), "{refused}");
    }

    #[test]
    fn numbers_with_leading_zeros_load() {
        // Every fourth key on P-521 has such a number.
        for _ in 0..24 {
            let folder = tempfile::tempdir().unwrap();
            let path = generate(&folder, ("ecdsa", "521"), "", &[]);
            assert_signs(&PrivateKey::load(&path, None).unwrap(), &folder);
        }
    }

    #[test]
    fn what_openssl_writes_loads_or_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let openssl = |args: &[&str]| run("openssl", args, folder.path());
        openssl(&["genpkey", "-algorithm", "ed25519", "-out", "ed25519"]);
        openssl(&["ecparam", "-name", "secp384r1", "-genkey", "-out", "ec"]);
        openssl(&["genrsa", "-out", "rsa", "2048"]);
        openssl(&[
            "ec",
            "-aes192",
            "-passout",
            "pass:x",
            "-in",
            "ec",
            "-out",
            "ec-aes192",
        ]);
        openssl(&[
            "rsa",
            "-aes256",
            "-traditional",
            "-passout",
            "pass:x",
            "-in",
            "rsa",
            "-out",
            "rsa-aes256",
        ]);
        openssl(&[
            "rsa",
            "-des3",
            "-traditional",
            "-passout",
            "pass:x",
            "-in",
            "rsa",
            "-out",
            "rsa-des3",
        ]);
        let pkcs8 = ["pkcs8", "-topk8", "-passout", "pass:x", "-in"];
        openssl(&[&pkcs8[..], &["ed25519", "-out", "p8-scrypt", "-scrypt"]].concat());
        openssl(
            &[
                &pkcs8[..],
                &[
                    "rsa",
                    "-out",
                    "p8-sha1",
                    "-v2",
                    "aes-256-cbc",
                    "-v2prf",
                    "hmacWithSHA1",
                ],
            ]
            .concat(),
        );
        openssl(&[&pkcs8[..], &["ec", "-out", "p8-des3", "-v2", "des3"]].concat());
        for name in [
            "ed25519",
            "ec",
            "rsa",
            "ec-aes192",
            "rsa-aes256",
            "p8-scrypt",
            "p8-sha1",
            "rsa-des3",
            "p8-des3",
        ] {
            let path = folder.path().join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let loaded = PrivateKey::load(&path, Some("x"));
            if name.ends_with("des3") {
                let said = loaded.unwrap_err().to_string();
                assert!(said.contains("ssh-keygen -p -f"), "{said}");
            } else {
                assert_signs(&loaded.unwrap_or_else(|error| panic!("{name}: {error}")), &folder);
            }
        }
    }

    #[test]
    fn a_key_that_would_take_hours_to_open_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let ed25519 = generate(&folder, TYPES[0], "x", &["-a", "4"]);
        // The rounds stand behind the salt, which has 16 bytes.
        let text = fs::read_to_string(&ed25519).unwrap();
        let base64: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        let mut bytes = STANDARD.decode(base64).unwrap();
        let at = bytes.windows(6).position(|window| window == b"bcrypt").unwrap() + 6 + 4 + 4 + 16;
        assert_eq!(bytes[at..at + 4], [0, 0, 0, 4]);
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        let body = STANDARD.encode(&bytes);
        let (begin, end) = (
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "-----END OPENSSH PRIVATE KEY-----",
        );
        let lines: Vec<&str> = body
            .as_bytes()
            .chunks(70)
            .map(|line| std::str::from_utf8(line).unwrap())
            .collect();
        fs::write(&ed25519, format!("{begin}\n{}\n{end}\n", lines.join("\n"))).unwrap();
        let said = PrivateKey::load(&ed25519, Some("x")).unwrap_err().to_string();
        assert!(
            said.contains("4294967295 rounds of bcrypt") && said.contains("ssh-keygen -p -a 100 -f"),
            "{said}"
        );

        let folder = tempfile::tempdir().unwrap();
        let plain = generate(&folder, TYPES[1], "", &["-m", "PEM"]);
        for (costs, words) in [
            (&["-iter", "10000001"][..], "10000001 iterations of PBKDF2"),
            (
                &[
                    "-scrypt",
                    "-scrypt_N",
                    "16384",
                    "-scrypt_r",
                    "8",
                    "-scrypt_p",
                    "17",
                ],
                "17 times",
            ),
        ] {
            let path = folder.path().join("p8");
            let made = Command::new("openssl")
                .args(["pkcs8", "-topk8", "-passout", "pass:x", "-in"])
                .arg(&plain)
                .arg("-out")
                .arg(&path)
                .args(costs)
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let said = PrivateKey::load(&path, Some("x")).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_but_its_public_half_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = generate(&folder, TYPES[0], "", &[]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let file = KeyFile::open(&path).unwrap();
        assert!(file.public_key().is_some());
        let said = file.unlock(None, 0).unwrap_err().to_string();
        assert!(
            said.contains("UNPROTECTED PRIVATE KEY FILE") && said.contains("0640"),
            "{said}"
        );
    }

    #[test]
    fn a_short_rsa_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = generate(&folder, ("rsa", "1024"), "", &[]);
        let refused = PrivateKey::load(&path, None);
        assert!(
            matches!(
                refused,
                Err(KeyError::RsaSize {
                    bits: 1024,
                    min: 2048,
                    ..
                })
            ),
            "{refused:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = generate(&folder, ("rsa", "2048"), "", &[]);
        let refused = KeyFile::open(&path).unwrap().unlock(None, 3072);
        assert!(
            matches!(
                refused,
                Err(KeyError::RsaSize {
                    bits: 2048,
                    min: 3072,
                    ..
                })
            ),
            "{refused:?}"
        );
    }

    #[test]
    fn a_public_half_of_another_key_is_refused() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = generate(&folder, TYPES[0], "", &[]);
        let other = generate(&other, TYPES[0], "", &[]);
        fs::copy(with_suffix(&other, ".pub"), with_suffix(&path, ".pub")).unwrap();
        assert!(matches!(
            PrivateKey::load(&path, None),
            Err(KeyError::PublicMismatch { .. })
        ));
    }

    #[test]
    fn a_public_key_file_is_an_identity_that_only_the_agent_can_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = generate(&folder, TYPES[0], "", &[]);
        let public = with_suffix(&path, ".pub");
        assert!(!KeyFile::open(&public).unwrap().has_private_half());
        fs::remove_file(&path).unwrap();
        let file = KeyFile::open(&path).unwrap();
        assert!(file.public_key().is_some() && !file.has_private_half());
        assert!(matches!(file.unlock(None, 0), Err(KeyError::Unreadable { .. })));
    }

    #[test]
    fn the_handle_of_a_security_key_is_left_to_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let public = Writer::new()
            .string("sk-ssh-ed25519@openssh.com")
            .string([1; 32])
            .string("ssh:")
            .finish();
        let body = Writer::new()
            .raw(b"openssh-key-v1\0")
            .string("none")
            .string("none")
            .string("")
            .u32(1)
            .string(&public)
            .string("opaque")
            .finish();
        let label = "OPENSSH PRIVATE KEY";
        let text = format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            STANDARD.encode(body)
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let file = KeyFile::open(&path).unwrap();
        assert_eq!(file.public_key().unwrap().blob, public);
        assert!(file.is_security_key() && !file.has_private_half());
        let said = file.unlock(None, 0).unwrap_err().to_string();
        assert!(said.contains("ssh-add"), "{said}");
    }

    #[test]
    fn certificates_are_found_beside_every_type_of_key_and_only_their_own() {
        let ca = tempfile::tempdir().unwrap();
        let ca_path = generate(&ca, TYPES[0], "", &[]);
        let sign = |path: &Path| {
            let (ca_path, path) = (ca_path.to_str().unwrap(), path.to_str().unwrap());
            run(
                "ssh-keygen",
                &["-q", "-s", ca_path, "-I", "id", "-n", "user", path],
                Path::new("/"),
            );
        };
        let stranger = tempfile::tempdir().unwrap();
        let stranger = generate(&stranger, TYPES[0], "", &[]);
        for kind in TYPES {
            let folder = tempfile::tempdir().unwrap();
            let path = generate(&folder, kind, "", &[]);
            sign(&with_suffix(&path, ".pub"));
            let file = KeyFile::open(&path).unwrap();
            let certificate = file.certificate().unwrap_or_else(|| panic!("{kind:?}"));
            let read = KeyFile::read_certificate(&with_suffix(&path, "-cert.pub")).unwrap();
            assert_eq!(&read, certificate);
            let other = KeyFile::open(&stranger).unwrap();
            assert!(!other.is_certified_by(certificate));
            fs::copy(
                with_suffix(&path, "-cert.pub"),
                with_suffix(&stranger, "-cert.pub"),
            )
            .unwrap();
            assert!(KeyFile::open(&stranger).unwrap().certificate().is_none());
            let none = KeyFile::read_certificate(&with_suffix(&path, ".pub"));
            assert!(matches!(none, Err(KeyError::NoCertificate { .. })));
        }
    }

    #[test]
    fn a_key_in_memory_is_as_good_as_its_file() {
        for kind in TYPES {
            for passphrase in ["", PASSPHRASE] {
                let folder = tempfile::tempdir().unwrap();
                let path = generate(&folder, kind, passphrase, &[]);
                let content = Zeroizing::new(fs::read(&path).unwrap());
                fs::remove_file(&path).unwrap();
                let key = KeyFile::in_memory("the program's key", content).unwrap();
                assert_eq!(key.is_encrypted(), !passphrase.is_empty(), "{kind:?}");
                assert!(key.has_private_half());
                let opened = key.unlock(Some(passphrase), 2048).unwrap();
                assert_eq!(
                    key.public_key().map(|public| &public.blob),
                    Some(opened.public_blob())
                );
            }
        }
    }

    #[test]
    fn a_key_in_memory_is_bounded_and_not_shown() {
        let large = Zeroizing::new(vec![b'x'; MAX_KEY_FILE as usize + 1]);
        assert!(matches!(
            KeyFile::in_memory("k", large),
            Err(KeyError::TooLarge { .. })
        ));
        let nonsense = KeyFile::in_memory("the program's key", Zeroizing::new(b"nonsense".to_vec()));
        let message = nonsense.map(drop).unwrap_err().to_string();
        assert!(message.starts_with("the program's key"), "{message}");
        let folder = tempfile::tempdir().unwrap();
        let content = fs::read(generate(&folder, ("ed25519", "256"), "", &[])).unwrap();
        let key = KeyFile::in_memory("k", Zeroizing::new(content)).unwrap();
        assert!(format!("{key:?}").contains("Content(..)"));
    }

    #[test]
    fn a_key_signs_with_no_other_types_algorithm() {
        let folder = tempfile::tempdir().unwrap();
        let key = PrivateKey::load(&generate(&folder, ("rsa", "2048"), "", &[]), None).unwrap();
        assert_eq!(key.signature_algorithms(), ["rsa-sha2-512", "rsa-sha2-256"]);
        for algorithm in ["ssh-rsa", "ssh-ed25519", ""] {
            assert!(matches!(
                key.sign(algorithm, b""),
                Err(KeyError::Algorithm { .. })
            ));
        }
        assert!(!format!("{key:?}").contains("secret"));
    }
}
