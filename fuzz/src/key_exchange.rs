//! A server's part of every key exchange method, and the host keys, certificates and signatures in it.

use trunkline_proto::certificate::Certificate;
use trunkline_proto::kex::{KexMethod, Step};
use trunkline_proto::wire::Writer;
use trunkline_proto::{HOST_KEY_ALGORITHMS, signature};

pub(crate) fn fuzz(input: (u8, u8, &[u8], &[u8], &[u8])) {
    let (method, algorithm, first, second, third) = input;
    let method = KexMethod::DEFAULT[usize::from(method) % KexMethod::DEFAULT.len()];
    let Ok(ephemeral) = method.generate() else { return };
    // Once as bytes, and once with the layout of a reply, so that the values behind it are reached.
    let reply = Writer::message(31)
        .string(first)
        .string(second)
        .string(third)
        .finish();
    let message = if algorithm & 0x80 == 0 { &reply[..] } else { first };
    match ephemeral.handle(message) {
        Ok(Step::Done(agreed)) => {
            let hash = agreed.exchange_hash(b"SSH-2.0-us", b"SSH-2.0-them", b"ours", b"theirs");
            let keys = agreed.derive(&hash, hash.as_bytes(), b'C', 64);
            assert_eq!(keys.len(), 64);
        }
        Ok(Step::Send { next, .. }) => {
            // A reply to the proposed group.
            let _ = next.handle(second);
        }
        Err(_) => {}
    }

    let algorithm = HOST_KEY_ALGORITHMS[usize::from(algorithm) % HOST_KEY_ALGORITHMS.len()];
    assert!(
        signature::verify(first, algorithm, second, third).is_err(),
        "a signature was forged"
    );
    let _ = signature::key_type(first);
    let _ = signature::rsa_bits(first);
    if let Ok(certificate) = Certificate::parse(first) {
        let _ = certificate.verify_ca_signature();
        let _ = signature::rsa_bits(certificate.key_blob());
    }
}
