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

/// Runs a program that must succeed and returns its output.
fn run(program: &str, args: &[&str], directory: &Path) -> String {
    let ran = Command::new(program)
        .args(args)
        .current_dir(directory)
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

fn generate(directory: &TempDir, kind: (&str, &str), passphrase: &str, more: &[&str]) -> PathBuf {
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
    run("ssh-keygen", &[&args[..], more].concat(), directory.path());
    directory.path().join("key")
}

/// Checks that `ssh-keygen -y` prints the same public key.
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

/// Checks that `ssh-keygen -Y` (PROTOCOL.sshsig) and the protocol crate accept signatures of the key.
fn assert_signs(key: &PrivateKey, directory: &TempDir) {
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
        fs::write(directory.path().join("sig"), text).unwrap();
        fs::write(directory.path().join("message"), "message").unwrap();
        let checked = Command::new("ssh-keygen")
            .args(["-Y", "check-novalidate", "-n", "file", "-s", "sig"])
            .current_dir(directory.path())
            .stdin(fs::File::open(directory.path().join("message")).unwrap())
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
                let directory = tempfile::tempdir().unwrap();
                let path = generate(&directory, kind, passphrase, &["-m", format]);
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
                assert_signs(&key, &directory);
            }
        }
    }
}

#[test]
fn an_encrypted_openssh_key_shows_its_public_half_without_passphrase() {
    let directory = tempfile::tempdir().unwrap();
    let path = generate(&directory, TYPES[0], PASSPHRASE, &[]);
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
        let directory = tempfile::tempdir().unwrap();
        let path = generate(&directory, TYPES[0], PASSPHRASE, &["-Z", cipher, "-a", "4"]);
        PrivateKey::load(&path, Some(PASSPHRASE)).unwrap_or_else(|error| panic!("{cipher}: {error}"));
        let wrong = PrivateKey::load(&path, Some("wrong"));
        assert!(matches!(wrong, Err(KeyError::WrongPassphrase { .. })), "{cipher}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = generate(&directory, TYPES[0], PASSPHRASE, &["-Z", "3des-cbc"]);
    let refused = PrivateKey::load(&path, Some(PASSPHRASE)).unwrap_err().to_string();
    assert!(refused.contains("ssh-keygen -p"), "{refused}");
}

#[test]
fn numbers_with_leading_zeros_load() {
    // Every fourth key on P-521 has such a number.
    for _ in 0..24 {
        let directory = tempfile::tempdir().unwrap();
        let path = generate(&directory, ("ecdsa", "521"), "", &[]);
        assert_signs(&PrivateKey::load(&path, None).unwrap(), &directory);
    }
}

#[test]
fn what_openssl_writes_loads_or_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let openssl = |args: &[&str]| run("openssl", args, directory.path());
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
        let path = directory.path().join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let loaded = PrivateKey::load(&path, Some("x"));
        if name.ends_with("des3") {
            let said = loaded.unwrap_err().to_string();
            assert!(said.contains("ssh-keygen -p -f"), "{said}");
        } else {
            assert_signs(
                &loaded.unwrap_or_else(|error| panic!("{name}: {error}")),
                &directory,
            );
        }
    }
}

#[test]
fn a_key_that_would_take_hours_to_open_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let ed25519 = generate(&directory, TYPES[0], "x", &["-a", "4"]);
    // The rounds follow the salt, which has 16 bytes.
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

    let directory = tempfile::tempdir().unwrap();
    let plain = generate(&directory, TYPES[1], "", &["-m", "PEM"]);
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
        let path = directory.path().join("p8");
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
    let directory = tempfile::tempdir().unwrap();
    let path = generate(&directory, TYPES[0], "", &[]);
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
    let directory = tempfile::tempdir().unwrap();
    let path = generate(&directory, ("rsa", "1024"), "", &[]);
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
    let directory = tempfile::tempdir().unwrap();
    let path = generate(&directory, ("rsa", "2048"), "", &[]);
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
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = generate(&directory, TYPES[0], "", &[]);
    let other = generate(&other, TYPES[0], "", &[]);
    fs::copy(with_suffix(&other, ".pub"), with_suffix(&path, ".pub")).unwrap();
    assert!(matches!(
        PrivateKey::load(&path, None),
        Err(KeyError::PublicMismatch { .. })
    ));
}

#[test]
fn a_public_key_file_is_an_identity_that_only_the_agent_can_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = generate(&directory, TYPES[0], "", &[]);
    let public = with_suffix(&path, ".pub");
    assert!(!KeyFile::open(&public).unwrap().has_private_half());
    fs::remove_file(&path).unwrap();
    let file = KeyFile::open(&path).unwrap();
    assert!(file.public_key().is_some() && !file.has_private_half());
    assert!(matches!(file.unlock(None, 0), Err(KeyError::Unreadable { .. })));
}

#[test]
fn the_handle_of_a_security_key_is_left_to_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
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
        let directory = tempfile::tempdir().unwrap();
        let path = generate(&directory, kind, "", &[]);
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
            let directory = tempfile::tempdir().unwrap();
            let path = generate(&directory, kind, passphrase, &[]);
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
    let directory = tempfile::tempdir().unwrap();
    let content = fs::read(generate(&directory, ("ed25519", "256"), "", &[])).unwrap();
    let key = KeyFile::in_memory("k", Zeroizing::new(content)).unwrap();
    assert!(format!("{key:?}").contains("Content(..)"));
}

#[test]
fn a_key_signs_with_no_other_types_algorithm() {
    let directory = tempfile::tempdir().unwrap();
    let key = PrivateKey::load(&generate(&directory, ("rsa", "2048"), "", &[]), None).unwrap();
    assert_eq!(key.signature_algorithms(), ["rsa-sha2-512", "rsa-sha2-256"]);
    for algorithm in ["ssh-rsa", "ssh-ed25519", ""] {
        assert!(matches!(
            key.sign(algorithm, b""),
            Err(KeyError::Algorithm { .. })
        ));
    }
    assert!(!format!("{key:?}").contains("secret"));
}

#[test]
fn public_key_files_are_read_as_ssh_reads_them() {
    let place = tempfile::tempdir().unwrap();
    let written = fs::read_to_string(generate(&place, TYPES[0], "", &[]).with_extension("pub")).unwrap();
    let [kind, blob, comment] =
        <[&str; 3]>::try_from(written.trim().splitn(3, ' ').collect::<Vec<_>>()).unwrap();
    let line = format!("{kind} {blob} {comment}");
    let files = [
        format!("{kind}  {blob}  {comment}\n"),
        format!("{kind}\t{blob}\t{comment}\n"),
        format!("\t {kind} \t {blob}"),
        format!("{kind} {blob}\r\n"),
        format!("{kind} {blob} \n"),
        format!("# made by somebody\n\n{line}\n"),
        format!("  # not a comment, and not a key\n{line}\n"),
        format!("no key\n{line}\n"),
        format!("cert-authority {line}\n{line}\n"),
        format!("{kind} {}\n", &blob[..blob.len() - 1]),
        format!("{kind}{blob}\n"),
        format!("ssh-rsa {blob}\n"),
        format!("{kind}\n"),
        "\n".to_owned(),
        String::new(),
    ];
    let file = place.path().join("shown");
    let mut keys = 0;
    for content in files {
        fs::write(&file, &content).unwrap();
        // ssh-keygen reads this file as ssh reads IdentityFile and CertificateFile.
        let ssh = Command::new("ssh-keygen")
            .args(["-e", "-m", "RFC4716", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let theirs: String = String::from_utf8(ssh.stdout).unwrap();
        let theirs = theirs
            .lines()
            .filter(|line| !line.contains(['-', ':']))
            .collect::<String>();
        let ours = first_public_key(content.as_bytes()).map(|key| STANDARD.encode(&key.blob));
        assert_eq!(ours.unwrap_or_default(), theirs, "{content:?}");
        keys += usize::from(!theirs.is_empty());
    }
    assert_eq!(keys, 9, "files with a key");
}
