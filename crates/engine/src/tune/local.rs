//! Measurements of this machine alone: ciphers, MACs and signatures on one core, as the engine uses them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair, UnparsedPublicKey};
use aws_lc_rs::{hmac, rand::SecureRandom as _};
use trunkline_proto::cipher::{Cipher, PacketKeys, Sealer};
use trunkline_proto::mac::Mac;
use trunkline_request::tuning::{LocalReport, LocalRow, SIZES, SignatureRow};
use trunkline_text::count_of;

/// Measures this machine, each algorithm at each size for `each`.
///
/// # Errors
/// `Err(what)` if the cryptographic library refuses something, which it has no reason to.
pub fn measure_local(each: Duration) -> Result<LocalReport, &'static str> {
    Ok(LocalReport {
        cpu: cpu(),
        features: features(),
        ciphers: ciphers(each)?,
        macs: macs(each)?,
        signatures: signatures(each)?,
    })
}

/// Returns how often `work` can be done per second.
fn per_second(time: Duration, mut work: impl FnMut()) -> f64 {
    // The first run fills caches.
    work();
    let (mut count, mut batch) = (0_u64, 1_u64);
    let begun = Instant::now();
    loop {
        for _ in 0..batch {
            work();
        }
        count += batch;
        let elapsed = begun.elapsed();
        if elapsed >= time {
            return count as f64 / elapsed.as_secs_f64().max(1e-9);
        }
        // Read the clock only some dozen times in all.
        if elapsed < time / 16 {
            batch *= 2;
        }
    }
}

fn ciphers(each: Duration) -> Result<Vec<LocalRow>, &'static str> {
    let mut rows = Vec::new();
    for &cipher in Cipher::DEFAULT {
        let macs: &[Option<Mac>] = if cipher.is_aead() {
            &[None]
        } else {
            &[Some(Mac::HmacSha256Etm), Some(Mac::HmacSha512Etm)]
        };
        for &mac in macs {
            let mut sealer = Sealer::new(cipher, mac, &keys(cipher, mac)?);
            let rates = SIZES.map(|size| {
                let padding = sealer.padding_len(size);
                let length = 1 + size + padding;
                let mut packet = vec![0; 4 + length + sealer.tag_len()];
                let head = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
                let mut sequence = 0_u32;
                let rate = per_second(each, || {
                    packet[..4].copy_from_slice(&head);
                    packet[4] = padding as u8;
                    sealer.seal(sequence, black_box(&mut packet));
                    sequence = sequence.wrapping_add(1);
                });
                (size, rate * size as f64)
            });
            rows.push(LocalRow {
                algorithm: mac.map_or_else(|| cipher.to_string(), |mac| format!("{cipher} with {mac}")),
                rates: rates.to_vec(),
            });
        }
    }
    Ok(rows)
}

fn keys(cipher: Cipher, mac: Option<Mac>) -> Result<PacketKeys, &'static str> {
    let random = |length: usize| {
        let mut bytes = vec![0; length];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| "no random bytes")?;
        Ok::<_, &str>(zeroize::Zeroizing::new(bytes))
    };
    Ok(PacketKeys {
        iv: random(cipher.iv_len())?,
        key: random(cipher.key_len())?,
        mac_key: random(mac.map_or(0, Mac::key_len))?,
    })
}

fn macs(each: Duration) -> Result<Vec<LocalRow>, &'static str> {
    let mut rows = Vec::new();
    // The work is the same before or after encryption.
    for (mac, algorithm) in [
        (Mac::HmacSha256Etm, hmac::HMAC_SHA256),
        (Mac::HmacSha512Etm, hmac::HMAC_SHA512),
    ] {
        let key = hmac::Key::generate(algorithm, &SystemRandom::new()).map_err(|_| "no MAC key")?;
        let rates = SIZES.map(|size| {
            let data = vec![0; size];
            let rate = per_second(each, || {
                black_box(hmac::sign(&key, black_box(&data)));
            });
            (size, rate * size as f64)
        });
        rows.push(LocalRow {
            algorithm: mac.to_string(),
            rates: rates.to_vec(),
        });
    }
    Ok(rows)
}

/// SSH signs a few hundred bytes.
const MESSAGE: [u8; 400] = [7; 400];

fn signatures(each: Duration) -> Result<Vec<SignatureRow>, &'static str> {
    let failed = |_| "a key could not be made or used";
    let random = SystemRandom::new();
    let mut rows = Vec::new();

    let key = Ed25519KeyPair::generate().map_err(failed)?;
    let public = UnparsedPublicKey::new(&signature::ED25519, key.public_key().as_ref().to_vec());
    let signed = key.sign(&MESSAGE);
    public.verify(&MESSAGE, signed.as_ref()).map_err(failed)?;
    rows.push(SignatureRow {
        algorithm: "ssh-ed25519".into(),
        signed: per_second(each, || {
            black_box(key.sign(black_box(&MESSAGE)));
        }),
        verified: per_second(each, || {
            let _ = black_box(public.verify(&MESSAGE, signed.as_ref()));
        }),
    });

    for (name, signing, verifying) in [
        (
            "ecdsa-sha2-nistp256",
            &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
            &signature::ECDSA_P256_SHA256_ASN1,
        ),
        (
            "ecdsa-sha2-nistp384",
            &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
            &signature::ECDSA_P384_SHA384_ASN1,
        ),
        (
            "ecdsa-sha2-nistp521",
            &signature::ECDSA_P521_SHA512_ASN1_SIGNING,
            &signature::ECDSA_P521_SHA512_ASN1,
        ),
    ] {
        let key = EcdsaKeyPair::generate(signing).map_err(failed)?;
        let public = UnparsedPublicKey::new(verifying, key.public_key().as_ref().to_vec());
        let signed = key.sign(&random, &MESSAGE).map_err(failed)?;
        public.verify(&MESSAGE, signed.as_ref()).map_err(failed)?;
        rows.push(SignatureRow {
            algorithm: name.into(),
            signed: per_second(each, || {
                let _ = black_box(key.sign(&random, black_box(&MESSAGE)));
            }),
            verified: per_second(each, || {
                let _ = black_box(public.verify(&MESSAGE, signed.as_ref()));
            }),
        });
    }

    for (bits, size) in [
        (2048, KeySize::Rsa2048),
        (3072, KeySize::Rsa3072),
        (4096, KeySize::Rsa4096),
    ] {
        let key = RsaKeyPair::generate(size).map_err(failed)?;
        let public = UnparsedPublicKey::new(
            &signature::RSA_PKCS1_2048_8192_SHA512,
            key.public_key().as_ref().to_vec(),
        );
        let mut signed = vec![0; key.public_modulus_len()];
        key.sign(&signature::RSA_PKCS1_SHA512, &random, &MESSAGE, &mut signed)
            .map_err(failed)?;
        public.verify(&MESSAGE, &signed).map_err(failed)?;
        let mut place = signed.clone();
        rows.push(SignatureRow {
            algorithm: format!("rsa-sha2-512, {bits} bits"),
            signed: per_second(each, || {
                let _ = black_box(key.sign(
                    &signature::RSA_PKCS1_SHA512,
                    &random,
                    black_box(&MESSAGE),
                    &mut place,
                ));
            }),
            verified: per_second(each, || {
                let _ = black_box(public.verify(&MESSAGE, &signed));
            }),
        });
    }
    Ok(rows)
}

/// Describes this machine: its CPU, and how many of its cores this process may use.
pub(super) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let name = cpu();
    let name = if name.is_empty() {
        std::env::consts::ARCH.to_owned()
    } else {
        name
    };
    format!("{name}, {}", count_of(cores, "core"))
}

/// Returns Linux's name for the CPU.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name"));
    name.and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim().to_owned())
        .unwrap_or_default()
}

fn features() -> Vec<String> {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("aes", std::arch::is_x86_feature_detected!("aes")),
        ("pclmulqdq", std::arch::is_x86_feature_detected!("pclmulqdq")),
        ("vaes", std::arch::is_x86_feature_detected!("vaes")),
        ("vpclmulqdq", std::arch::is_x86_feature_detected!("vpclmulqdq")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("sha", std::arch::is_x86_feature_detected!("sha")),
        ("bmi2", std::arch::is_x86_feature_detected!("bmi2")),
        ("adx", std::arch::is_x86_feature_detected!("adx")),
    ];
    #[cfg(target_arch = "aarch64")]
    let found = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("aes", std::arch::is_aarch64_feature_detected!("aes")),
        ("pmull", std::arch::is_aarch64_feature_detected!("pmull")),
        ("sha2", std::arch::is_aarch64_feature_detected!("sha2")),
        ("sha3", std::arch::is_aarch64_feature_detected!("sha3")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: [(&str, bool); 0] = [];
    found
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cipher_mac_and_key_type_is_measured_at_every_size() {
        let report = measure_local(Duration::from_millis(1)).unwrap();
        for &cipher in Cipher::DEFAULT {
            assert!(
                report
                    .ciphers
                    .iter()
                    .any(|row| row.algorithm.starts_with(cipher.name()))
            );
        }
        let rows = report.ciphers.iter().chain(&report.macs);
        for row in rows {
            assert_eq!(row.rates.len(), SIZES.len());
            assert!(row.rates.iter().all(|(_, rate)| *rate > 0.0), "{row:?}");
        }
        assert_eq!(report.signatures.len(), 7);
        assert!(
            report
                .signatures
                .iter()
                .all(|row| row.signed > 0.0 && row.verified > 0.0)
        );
    }
}
