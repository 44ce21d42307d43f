use super::*;
use proptest::prelude::*;

/// Enough for every packet in the tests.
const MAX: usize = 256 * 1024;

#[test]
fn every_name_leads_back_to_its_cipher() {
    for &cipher in Cipher::DEFAULT {
        assert_eq!(Cipher::from_name(cipher.name()), Some(cipher));
    }
    assert_eq!(Cipher::from_name("3des-cbc"), None);
}

#[test]
fn keys_are_renewed_where_openssh_renews_them() {
    assert_eq!(Cipher::Aes128Gcm.rekey_bytes(), 64 << 30);
    assert_eq!(Cipher::ChaCha20Poly1305.rekey_bytes(), 1 << 30);
}

#[test]
fn counter_mode_gives_the_published_blocks() {
    // NIST SP 800-38A, F.5.1 (AES-128) and F.5.5 (AES-256), the first two blocks.
    let counter = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";
    let plain = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51";
    for (cipher, key, sealed) in [
        (
            Cipher::Aes128Ctr,
            "2b7e151628aed2a6abf7158809cf4f3c",
            "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff",
        ),
        (
            Cipher::Aes256Ctr,
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5",
        ),
    ] {
        let keys = PacketKeys {
            iv: Zeroizing::new(hex(counter)),
            key: Zeroizing::new(hex(key)),
            mac_key: Zeroizing::default(),
        };
        // Block by block, to test the counter's progress between packets, too.
        let mut ctr = Ctr::new(cipher, &keys);
        let mut blocks = hex(plain);
        let (first, second) = blocks.split_at_mut(AES_BLOCK);
        ctr.apply(first);
        ctr.apply(second);
        assert_eq!(blocks, hex(sealed));
    }
}

#[test]
fn the_gcm_counter_wraps_within_its_eight_bytes() {
    let mut nonce = GcmNonce([0xff; GCM_NONCE_LEN]);
    nonce.advance();
    assert_eq!(nonce.0, [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_plaintext_packet_is_left_as_it_is() {
    let mut sealer = Sealer::plaintext();
    let clear = frame(&sealer, b"hello");
    let mut wire = clear.clone();
    sealer.seal(0, &mut wire);
    assert_eq!(wire, clear);
    assert_eq!(wire.len(), 16);
    assert_eq!(receive(&mut Opener::plaintext(), 0, &mut wire).unwrap(), b"hello");
}

#[test]
fn a_length_outside_the_bounds_is_refused() {
    for length in [0, 4, 40_001, u32::MAX] {
        let mut wire = length.to_be_bytes();
        let refused = Opener::plaintext().packet_len(0, &mut wire, 40_000);
        assert!(
            matches!(refused, Err(CipherError::LengthOutOfRange { max: 40_000, .. })),
            "{refused:?}"
        );
    }
    let refused = Opener::plaintext().packet_len(0, &mut 13u32.to_be_bytes(), 40_000);
    assert_eq!(
        refused,
        Err(CipherError::LengthNotAligned { length: 13, block: 8 })
    );
}

#[test]
fn impossible_padding_is_refused() {
    for padding in [0, 3, 11, 12, 255] {
        let mut wire = [0, 0, 0, 12, padding, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
        let refused = receive(&mut Opener::plaintext(), 0, &mut wire);
        assert_eq!(refused, Err(CipherError::BadPadding), "{padding}");
    }
}

#[test]
fn a_packet_that_was_not_measured_is_not_opened() {
    for (_, _, mut opener) in pairs() {
        assert_eq!(opener.open(0, &mut [0; 64]), Err(CipherError::NotMeasured));
        assert_eq!(opener.open(0, &mut []), Err(CipherError::NotMeasured));
    }
}

#[test]
fn a_sequence_number_or_a_key_that_differs_is_refused() {
    for ((name, mut sealer, _), (_, _, mut opener)) in pairs().into_iter().zip(pairs()) {
        let mut wire = frame(&sealer, b"in order");
        sealer.seal(7, &mut wire);
        // The GCM nonce counts by itself, without sequence numbers.
        if !name.contains("gcm") {
            assert!(receive(&mut opener, 8, &mut wire.clone()).is_err(), "{name}");
        }
        let (mut other, _) = pair_keyed(&name, 99);
        let mut foreign = frame(&other, b"in order");
        other.seal(7, &mut foreign);
        let (_, mut opener) = pair_keyed(&name, 1);
        assert!(receive(&mut opener, 7, &mut foreign).is_err(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_sealed_is_opened(payloads in proptest::collection::vec(payload(), 1..4), first: u32) {
        for (name, mut sealer, mut opener) in pairs() {
            let mut sequence = first;
            for payload in &payloads {
                let mut wire = frame(&sealer, payload);
                sealer.seal(sequence, &mut wire);
                let opened = receive(&mut opener, sequence, &mut wire);
                prop_assert_eq!(opened.as_deref(), Ok(&payload[..]), "{}", name);
                sequence = sequence.wrapping_add(1);
            }
        }
    }

    #[test]
    fn the_size_is_told_whenever_enough_bytes_are_there(payload in payload()) {
        for (name, mut sealer, mut opener) in pairs() {
            let mut wire = frame(&sealer, &payload);
            sealer.seal(3, &mut wire);
            let whole = wire.len();
            for have in 0..whole.min(40) {
                match opener.packet_len(3, &mut wire[..have], MAX) {
                    Ok(None) => prop_assert!(have < AES_BLOCK, "{} with {} bytes", name, have),
                    told => prop_assert_eq!(told, Ok(Some(whole)), "{}", name),
                }
            }
            prop_assert_eq!(receive(&mut opener, 3, &mut wire), Ok(payload.clone()), "{}", name);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused(payload in payload(), position: prop::sample::Index, bit in 0u8..8) {
        for (name, mut sealer, mut opener) in pairs() {
            let mut wire = frame(&sealer, &payload);
            sealer.seal(3, &mut wire);
            let byte = position.index(wire.len());
            wire[byte] ^= 1 << bit;
            // A longer length makes the opener wait for bytes that never come; a shorter one cuts the tag wrong.
            match opener.packet_len(3, &mut wire, MAX) {
                Ok(Some(whole)) if whole <= wire.len() => {
                    prop_assert!(opener.open(3, &mut wire[..whole]).is_err(), "{} at byte {}", name, byte);
                }
                Ok(Some(_)) => prop_assert!(byte < LENGTH_LEN, "{} at byte {}", name, byte),
                Ok(None) => prop_assert!(false, "{} has a whole packet and does not know its size", name),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), sequence: u32, length in 0u32..200) {
        let mut plausible = bytes.clone();
        if let Some(field) = plausible.first_chunk_mut() {
            *field = length.to_be_bytes();
        }
        for bytes in [bytes, plausible] {
            let openers = pairs().into_iter().map(|(_, _, opener)| opener).chain([Opener::plaintext()]);
            for mut opener in openers {
                let mut bytes = bytes.clone();
                if let Ok(Some(whole)) = opener.packet_len(sequence, &mut bytes, 150)
                    && let Some(packet) = bytes.get_mut(..whole)
                {
                    let _ = opener.open(sequence, packet);
                }
            }
        }
    }
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..100),
        proptest::collection::vec(any::<u8>(), 32_700..32_800),
    ]
}

/// Returns both ends of every combination of cipher and MAC, with its name.
fn pairs() -> Vec<(String, Sealer, Opener)> {
    let mut pairs = Vec::new();
    for &cipher in Cipher::DEFAULT {
        let macs = if cipher.is_aead() {
            vec![None]
        } else {
            Mac::DEFAULT.iter().copied().map(Some).collect()
        };
        for mac in macs {
            let name = mac.map_or(cipher.to_string(), |mac: Mac| format!("{cipher} {mac}"));
            let (sealer, opener) = pair_keyed(&name, 1);
            pairs.push((name, sealer, opener));
        }
    }
    pairs
}

fn pair_keyed(name: &str, seed: u8) -> (Sealer, Opener) {
    let (cipher, mac) = name.split_once(' ').unwrap_or((name, ""));
    let (cipher, mac) = (Cipher::from_name(cipher).unwrap(), Mac::from_name(mac));
    let bytes = |n: usize, salt: u8| Zeroizing::new((0..n).map(|i| i as u8 ^ seed ^ salt).collect());
    let keys = PacketKeys {
        // Near the end of its range, to test carries.
        iv: Zeroizing::new(vec![0xff; cipher.iv_len()]),
        key: bytes(cipher.key_len(), 0x55),
        mac_key: bytes(mac.map_or(0, Mac::key_len), 0xaa),
    };
    (Sealer::new(cipher, mac, &keys), Opener::new(cipher, mac, &keys))
}

/// Returns a packet as `seal` takes it.
fn frame(sealer: &Sealer, payload: &[u8]) -> Vec<u8> {
    let padding = sealer.padding_len(payload.len());
    assert!((MIN_PADDING..MIN_PADDING + sealer.block_len()).contains(&padding));
    let length = 1 + payload.len() + padding;
    let mut packet = u32::try_from(length).unwrap().to_be_bytes().to_vec();
    packet.push(u8::try_from(padding).unwrap());
    packet.extend_from_slice(payload);
    packet.resize(LENGTH_LEN + length + sealer.tag_len(), 0x5a);
    packet
}

fn receive(opener: &mut Opener, sequence: u32, wire: &mut [u8]) -> Result<Vec<u8>, CipherError> {
    match opener.packet_len(sequence, wire, MAX)? {
        Some(whole) if whole == wire.len() => {
            opener.open(sequence, wire).map(|payload| wire[payload].to_vec())
        }
        // The length is not the one that was sent.
        _ => Err(CipherError::Forged),
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}
