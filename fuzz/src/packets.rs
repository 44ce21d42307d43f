//! Packets of every cipher and MAC: any bytes under any key, what we sealed, and what we sealed with one bit changed.

use trunkline_proto::cipher::{Cipher, Opener, PacketKeys, Sealer};
use trunkline_proto::mac::Mac;

const MAX_PACKET: usize = 256 * 1024;

pub(crate) fn fuzz(input: (u8, u8, u8, u32, u16, &[u8])) {
    let (cipher, mac, seed, sequence, flip, bytes) = input;
    let cipher = Cipher::DEFAULT[usize::from(cipher) % Cipher::DEFAULT.len()];
    let mac = (!cipher.is_aead()).then(|| Mac::DEFAULT[usize::from(mac) % Mac::DEFAULT.len()]);
    let keys = |seed: u8| {
        let key = |len: usize| {
            (0..len)
                .map(|n| seed.wrapping_add(n as u8))
                .collect::<Vec<u8>>()
                .into()
        };
        PacketKeys {
            iv: key(cipher.iv_len()),
            key: key(cipher.key_len()),
            mac_key: key(mac.map_or(0, Mac::key_len)),
        }
    };

    for mut opener in [Opener::plaintext(), Opener::new(cipher, mac, &keys(seed))] {
        let mut received = bytes.to_vec();
        if let Ok(Some(len)) = opener.packet_len(sequence, &mut received, MAX_PACKET)
            && let Some(packet) = received.get_mut(..len)
            && let Ok(payload) = opener.open(sequence, packet)
        {
            assert!(!payload.is_empty() && payload.end <= len);
        }
    }

    if bytes.is_empty() {
        return;
    }
    let mut sealer = Sealer::new(cipher, mac, &keys(seed));
    let padding = sealer.padding_len(bytes.len());
    let mut packet = u32::try_from(1 + bytes.len() + padding)
        .unwrap()
        .to_be_bytes()
        .to_vec();
    packet.push(u8::try_from(padding).unwrap());
    packet.extend_from_slice(bytes);
    packet.resize(packet.len() + padding + sealer.tag_len(), 0);
    sealer.seal(sequence, &mut packet);
    let mut changed = packet.clone();
    assert_eq!(
        open(&mut Opener::new(cipher, mac, &keys(seed)), sequence, &mut packet).as_deref(),
        Some(bytes)
    );

    let at = usize::from(flip) % changed.len();
    changed[at] ^= 1 << (flip % 8);
    assert_eq!(
        open(&mut Opener::new(cipher, mac, &keys(seed)), sequence, &mut changed),
        None,
        "byte {at}"
    );
}

fn open(opener: &mut Opener, sequence: u32, packet: &mut [u8]) -> Option<Vec<u8>> {
    let len = opener.packet_len(sequence, packet, MAX_PACKET).ok()??;
    let packet = packet.get_mut(..len)?;
    let payload = opener.open(sequence, packet).ok()?;
    Some(packet[payload].to_vec())
}
