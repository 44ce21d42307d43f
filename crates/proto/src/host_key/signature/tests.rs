use super::*;
use crate::wire::Writer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use std::path::Path;
use std::sync::OnceLock;

/// A real signature and the inputs to verify it.
#[derive(Debug, Clone)]
struct Sample {
    key: Vec<u8>,
    algorithm: String,
    signature: Vec<u8>,
    data: Vec<u8>,
}

impl Sample {
    fn verify(&self) -> Result<(), SignatureError> {
        verify(&self.key, &self.algorithm, &self.signature, &self.data)
    }
}

/// Returns signatures by `ssh-keygen -Y sign` with every type of key, and by security keys made here.
fn samples() -> &'static [Sample] {
    static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut samples = Vec::new();
        for (i, of_type) in ssh_keygen::TYPES.into_iter().enumerate() {
            let name = i.to_string();
            ssh_keygen::key(dir.path(), &name, of_type);
            samples.push(sign(dir.path(), &name));
        }
        samples.extend([security_key_ed25519(), security_key_ecdsa()]);
        samples
    })
}

/// Signs a message with the key of this name.
fn sign(dir: &Path, key: &str) -> Sample {
    std::fs::write(dir.join("message"), "signed by OpenSSH").unwrap();
    ssh_keygen::run(dir, &["-q", "-Y", "sign", "-n", "test", "-f", key, "message"]);
    let armored = std::fs::read_to_string(dir.join("message.sig")).unwrap();
    std::fs::remove_file(dir.join("message.sig")).unwrap();
    sshsig(&armored)
}

/// Parses OpenSSH's PROTOCOL.sshsig.
fn sshsig(armored: &str) -> Sample {
    let lines: String = armored.lines().filter(|line| !line.starts_with('-')).collect();
    let blob = STANDARD.decode(lines).unwrap();
    let mut reader = Reader::new(&blob);
    assert_eq!(reader.take(6).unwrap(), b"SSHSIG");
    assert_eq!(reader.u32().unwrap(), 1);
    let key = reader.string().unwrap().to_vec();
    assert_eq!(reader.string().unwrap(), b"test");
    reader.string().unwrap();
    assert_eq!(reader.string().unwrap(), b"sha512");
    let signature = reader.string().unwrap().to_vec();
    reader.finish().unwrap();
    let hash = digest(&aws_lc_rs::digest::SHA512, b"signed by OpenSSH");
    let data = Writer::new()
        .raw(b"SSHSIG")
        .string("test")
        .string("")
        .string("sha512")
        .string(hash)
        .finish();
    let algorithm = Reader::new(&signature).name().unwrap().to_owned();
    Sample {
        key,
        algorithm,
        signature,
        data: data.to_vec(),
    }
}

fn security_key_ed25519() -> Sample {
    let name = "sk-ssh-ed25519@openssh.com";
    let pair = Ed25519KeyPair::generate().unwrap();
    let signed = pair.sign(&security_key_message(b"exchange hash"));
    Sample {
        key: Writer::new()
            .string(name)
            .string(pair.public_key())
            .string("ssh:")
            .finish()
            .to_vec(),
        algorithm: name.to_owned(),
        signature: Writer::new()
            .string(name)
            .string(signed)
            .u8(5)
            .u32(77)
            .finish()
            .to_vec(),
        data: b"exchange hash".to_vec(),
    }
}

fn security_key_ecdsa() -> Sample {
    let name = "sk-ecdsa-sha2-nistp256@openssh.com";
    let pair = EcdsaKeyPair::generate(&algorithms::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let signed = pair
        .sign(&SystemRandom::new(), &security_key_message(b"exchange hash"))
        .unwrap();
    let (r, s) = signed.as_ref().split_at(32);
    let signed = Writer::new().mpint(r).mpint(s).finish();
    let key = Writer::new()
        .string(name)
        .string("nistp256")
        .string(pair.public_key())
        .string("ssh:");
    Sample {
        key: key.finish().to_vec(),
        algorithm: name.to_owned(),
        signature: Writer::new()
            .string(name)
            .string(signed)
            .u8(5)
            .u32(77)
            .finish()
            .to_vec(),
        data: b"exchange hash".to_vec(),
    }
}

/// Builds PROTOCOL.u2f's message independently: flags 5, counter 77.
fn security_key_message(data: &[u8]) -> Vec<u8> {
    let (application, data) = (digest(&SHA256, b"ssh:"), digest(&SHA256, data));
    [application.as_ref(), &[5, 0, 0, 0, 77], data.as_ref()].concat()
}

#[test]
fn every_algorithm_leads_back_to_its_name() {
    for kind in KeyKind::ALL {
        assert_eq!(KeyKind::from_name(kind.name()), Some(kind));
        assert_eq!(KeyKind::from_certified_name(kind.certified_name()), Some(kind));
        if kind != KeyKind::Rsa {
            assert_eq!(
                Algorithm::from_name(kind.name()),
                Some((Algorithm::Of(kind), false))
            );
            assert_eq!(
                Algorithm::from_name(kind.certified_name()),
                Some((Algorithm::Of(kind), true))
            );
        }
    }
    for sha1 in ["ssh-rsa", "ssh-rsa-cert-v01@openssh.com", "ssh-dss"] {
        assert_eq!(Algorithm::from_name(sha1), None);
    }
}

#[test]
fn signatures_of_every_key_type_are_verified() {
    let algorithms: Vec<&str> = samples().iter().map(|sample| sample.algorithm.as_str()).collect();
    let expected = [
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "rsa-sha2-512",
        "rsa-sha2-512",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    ];
    assert_eq!(algorithms, expected);
    for sample in samples() {
        assert_eq!(sample.verify(), Ok(()), "{}", sample.algorithm);
    }
}

#[test]
fn a_signature_of_other_data_is_wrong() {
    for sample in samples() {
        let other = Sample {
            data: b"something else".to_vec(),
            ..sample.clone()
        };
        assert_eq!(
            other.verify(),
            Err(SignatureError::BadSignature),
            "{}",
            sample.algorithm
        );
    }
}

#[test]
fn a_signature_must_name_the_algorithm_that_was_agreed_on() {
    let rsa = samples()
        .iter()
        .find(|sample| sample.algorithm == "rsa-sha2-512")
        .unwrap();
    let weaker = Sample {
        algorithm: "rsa-sha2-256".into(),
        ..rsa.clone()
    };
    assert!(matches!(
        weaker.verify(),
        Err(SignatureError::WrongAlgorithm {
            expected: "rsa-sha2-256",
            ..
        })
    ));

    let mut reader = Reader::new(&rsa.signature);
    reader.string().unwrap();
    let sha1 = Writer::new()
        .string("ssh-rsa")
        .raw(reader.rest())
        .finish()
        .to_vec();
    let downgraded = Sample {
        signature: sha1,
        ..rsa.clone()
    };
    assert!(matches!(
        downgraded.verify(),
        Err(SignatureError::WrongAlgorithm { .. })
    ));
    let sha1_agreed = Sample {
        algorithm: "ssh-rsa".into(),
        ..downgraded
    };
    assert!(matches!(
        sha1_agreed.verify(),
        Err(SignatureError::UnsupportedAlgorithm { .. })
    ));
}

#[test]
fn a_key_of_another_type_is_refused() {
    for key in samples() {
        for signature in samples()
            .iter()
            .filter(|signature| signature.algorithm != key.algorithm)
        {
            let mixed = Sample {
                key: key.key.clone(),
                ..signature.clone()
            };
            assert!(matches!(mixed.verify(), Err(SignatureError::WrongKeyType { .. })));
        }
        let certified = KeyKind::from_name(key_type(&key.key).unwrap())
            .unwrap()
            .certified_name();
        if certified != "ssh-rsa-cert-v01@openssh.com" {
            let plain = Sample {
                algorithm: certified.into(),
                ..key.clone()
            };
            assert!(matches!(plain.verify(), Err(SignatureError::WrongKeyType { .. })));
        }
    }
}

#[test]
fn a_certified_key_signs_under_the_certificates_algorithm() {
    let dir = tempfile::tempdir().unwrap();
    ssh_keygen::key(dir.path(), "ca", ssh_keygen::TYPES[0]);
    ssh_keygen::key(dir.path(), "host", ssh_keygen::TYPES[4]);
    let plain = sign(dir.path(), "host");
    ssh_keygen::run(
        dir.path(),
        &[
            "-q",
            "-s",
            "ca",
            "-h",
            "-I",
            "id",
            "-n",
            "host.example",
            "host.pub",
        ],
    );
    let certified = Sample {
        key: ssh_keygen::blob(dir.path().join("host-cert.pub")),
        algorithm: "rsa-sha2-512-cert-v01@openssh.com".into(),
        ..plain.clone()
    };
    assert_eq!(certified.verify(), Ok(()));
    assert_eq!(rsa_bits(&certified.key), Ok(Some(2048)));
    let uncertified = Sample {
        algorithm: plain.algorithm,
        ..certified
    };
    assert!(matches!(
        uncertified.verify(),
        Err(SignatureError::WrongKeyType { .. })
    ));
}

#[test]
fn rsa_keys_that_openssh_calls_too_small_are_refused_by_their_size() {
    // ssh-keygen cannot make such a key.
    let key = Writer::new()
        .string("ssh-rsa")
        .mpint(&[1, 0, 1])
        .mpint(&[0x7f; 128])
        .finish();
    assert_eq!(rsa_bits(&key), Ok(Some(1023)));
    let signature = Writer::new().string("rsa-sha2-512").string([1; 128]).finish();
    assert_eq!(
        verify(&key, "rsa-sha2-512", &signature, b""),
        Err(SignatureError::RsaSize { bits: 1023 })
    );
    assert_eq!(rsa_bits(&samples()[0].key), Ok(None));
}

#[test]
fn stripped_zeros_are_put_back_and_longer_numbers_refused() {
    assert_eq!(pad(&[1, 2], 4), Ok(vec![0, 0, 1, 2]));
    assert_eq!(pad(&[1, 2], 1), Err(SignatureError::BadSignature));
}

#[test]
fn fingerprints_are_those_of_ssh_keygen() {
    let dir = tempfile::tempdir().unwrap();
    let path = ssh_keygen::key(dir.path(), "key", ssh_keygen::TYPES[0]);
    let listed = ssh_keygen::run(dir.path(), &["-l", "-f", "key.pub"]);
    assert_eq!(
        listed.split(' ').nth(1).unwrap(),
        fingerprint(&ssh_keygen::blob(path.with_extension("pub")))
    );
}

proptest! {
    #[test]
    fn a_flipped_bit_anywhere_is_refused(position: prop::sample::Index, bit in 0u8..8, part in 0..3) {
        for sample in samples() {
            let mut altered = sample.clone();
            let bytes = match part {
                0 => &mut altered.key,
                1 => &mut altered.signature,
                _ => &mut altered.data,
            };
            let byte = position.index(bytes.len());
            bytes[byte] ^= 1 << bit;
            prop_assert!(altered.verify().is_err(), "{} part {part} byte {byte}", sample.algorithm);
        }
    }

    #[test]
    fn no_bytes_panic(key: Vec<u8>, signature: Vec<u8>, cut: prop::sample::Index, data: Vec<u8>) {
        for sample in samples() {
            let random_key = Sample { key: key.clone(), ..sample.clone() };
            let named = |bytes: &[u8], name: &str| Writer::new().string(name).raw(bytes).finish().to_vec();
            let named_key = Sample {
                key: named(&key, key_type(&sample.key).unwrap()),
                ..sample.clone()
            };
            let named_signature = Sample { signature: named(&signature, &sample.algorithm), ..sample.clone() };
            let mut cut_short = sample.clone();
            cut_short.signature.truncate(cut.index(sample.signature.len()));
            for altered in [random_key, named_key, named_signature, cut_short] {
                prop_assert!(altered.verify().is_err());
                let _ = rsa_bits(&altered.key);
            }
        }
        let _ = (key_type(&data), rsa_bits(&data), fingerprint(&data));
    }
}
