use super::*;
use crate::crypto::cipher::{Opener, Sealer};
use proptest::prelude::*;

const SIZES: [u32; 3] = [dh::MIN_BITS, dh::MAX_BITS, dh::MAX_BITS];

#[test]
fn every_name_leads_back_to_its_method() {
    for &method in KexMethod::DEFAULT {
        assert_eq!(KexMethod::from_name(method.name()), Some(method));
    }
    assert_eq!(KexMethod::from_name("diffie-hellman-group1-sha1"), None);
}

#[test]
fn post_quantum_methods_come_first() {
    let classical = KexMethod::DEFAULT
        .iter()
        .position(|method| !method.is_post_quantum())
        .unwrap();
    assert!(
        KexMethod::DEFAULT[classical..]
            .iter()
            .all(|method| !method.is_post_quantum())
    );
}

#[test]
fn a_group_exchange_asks_for_a_group_as_strong_as_the_keys() {
    for (strength, bits) in [
        (14, 2048),
        (16, 3072),
        (20, 7680),
        (24, 7680),
        (32, 8192),
        (64, 8192),
    ] {
        let asked = KexMethod::DhGroupExchangeSha256
            .generate()
            .unwrap()
            .for_strength(strength);
        let request = Writer::message(MSG_GEX_REQUEST).u32(2048).u32(bits).u32(8192);
        assert_eq!(asked.init_message(), request.finish(), "{strength} bytes");
    }
}

#[test]
fn secrets_made_ahead_can_change_threads() {
    fn is_send<T: Send>() {}
    is_send::<Ephemeral>();
    is_send::<Agreed>();
}

#[test]
fn both_sides_hold_the_same_secret_and_exchange_hash() {
    for &method in KexMethod::DEFAULT {
        let (agreed, server) = exchange(method);
        assert_eq!(agreed.host_key, "the host key");
        assert_eq!(agreed.signature, "the signature");
        assert_eq!(agreed.shared_secret[..], server.secret[..], "{method}");

        let ours = agreed.exchange_hash(b"SSH-2.0-us", b"SSH-2.0-them", b"\x14ours", b"\x14theirs");
        // RFC 4253 section 8, computed independently.
        let hashed = Writer::new()
            .string("SSH-2.0-us")
            .string("SSH-2.0-them")
            .string("\x14ours")
            .string("\x14theirs")
            .string("the host key")
            .raw(&server.exchanged)
            .raw(&server.secret)
            .finish();
        assert_eq!(
            ours.as_bytes(),
            digest::digest(method.hash().algorithm(), &hashed).as_ref(),
            "{method}"
        );
    }
}

#[test]
fn keys_are_extended_as_rfc_4253_says() {
    let (agreed, server) = exchange(KexMethod::Curve25519Sha256);
    let h = agreed.exchange_hash(b"a", b"b", b"c", b"d");
    let first = sha256(&[&server.secret, h.as_bytes(), b"C", b"session"]);
    let second = sha256(&[&server.secret, h.as_bytes(), &first]);
    let third = sha256(&[&server.secret, h.as_bytes(), &first, &second]);
    let all = [first, second, third].concat();
    for len in [0, 1, 16, 31, 32, 33, 64, 80] {
        assert_eq!(agreed.derive(&h, b"session", b'C', len)[..], all[..len]);
    }
}

#[test]
fn what_one_direction_seals_the_same_direction_opens() {
    let (agreed, _) = exchange(KexMethod::MlKem768X25519Sha256);
    let h = agreed.exchange_hash(b"a", b"b", b"c", b"d");
    for (cipher, mac) in [
        (Cipher::Aes128Gcm, None),
        (Cipher::Aes192Ctr, Some(Mac::HmacSha512Etm)),
    ] {
        let keys = |direction| agreed.packet_keys(&h, h.as_bytes(), direction, cipher, mac);
        let (out, back) = (keys(Direction::ClientToServer), keys(Direction::ServerToClient));
        let packet = |sealer: &mut Sealer| {
            let mut packet = vec![0, 0, 0, 16, 10, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            packet.resize(20 + sealer.tag_len(), 0);
            sealer.seal(0, &mut packet);
            packet
        };
        let mut sealed = packet(&mut Sealer::new(cipher, mac, &out));
        assert_ne!(sealed, packet(&mut Sealer::new(cipher, mac, &back)));
        let mut opener = Opener::new(cipher, mac, &out);
        assert_eq!(opener.packet_len(0, &mut sealed, 1000), Ok(Some(sealed.len())));
        assert_eq!(opener.open(0, &mut sealed), Ok(5..10));
    }
}

#[test]
fn an_all_zero_x25519_result_is_refused() {
    // Points of small order: 0, 1 and one of order 8 (RFC 7748 section 7's concern).
    let order8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
    let order8: Vec<u8> = (0..64)
        .step_by(2)
        .map(|i| u8::from_str_radix(&order8[i..i + 2], 16).unwrap())
        .collect();
    let mut one = [0; 32];
    one[0] = 1;
    for point in [&[0; 32][..], &one, &order8] {
        let client = KexMethod::Curve25519Sha256.generate().unwrap();
        assert_eq!(client.handle(&reply(point)).unwrap_err(), KexError::BadPublicKey);
        for (method, ciphertext) in [
            (KexMethod::MlKem768X25519Sha256, vec![0; MLKEM768_CIPHERTEXT_LEN]),
            #[cfg(feature = "sntrup761")]
            (
                KexMethod::Sntrup761X25519Sha512,
                vec![0; sntrup761::CIPHERTEXT_LEN],
            ),
        ] {
            let client = method.generate().unwrap();
            let refused = client.handle(&reply(&[&ciphertext, point].concat())).unwrap_err();
            assert_eq!(refused, KexError::BadPublicKey, "{method}");
        }
    }
}

#[test]
fn points_off_the_curve_or_compressed_are_refused() {
    for method in [
        KexMethod::EcdhNistP256,
        KexMethod::EcdhNistP384,
        KexMethod::EcdhNistP521,
    ] {
        let len = method.generate().unwrap().public.len();
        let mut off = vec![1; len];
        off[0] = 4;
        let compressed = { [&[2], &off[1..]].concat() };
        for point in [off, compressed] {
            let refused = method.generate().unwrap().handle(&reply(&point)).unwrap_err();
            assert_eq!(refused, KexError::BadPublicKey, "{method}");
        }
    }
}

#[test]
fn public_keys_of_another_length_are_refused() {
    for &method in KexMethod::DEFAULT
        .iter()
        .filter(|method| !method.name().starts_with("diffie"))
    {
        let expected = {
            let (theirs, _) = serve(method, &method.generate().unwrap().init_message());
            theirs.len()
        };
        for got in [0, expected - 1, expected + 1] {
            let refused = method
                .generate()
                .unwrap()
                .handle(&reply(&vec![4; got]))
                .unwrap_err();
            assert_eq!(refused, KexError::PublicKeyLength { expected, got }, "{method}");
        }
    }
}

#[test]
fn messages_out_of_place_are_refused() {
    for &method in KexMethod::DEFAULT {
        for payload in [&[][..], &[20], &[30], &[32], &[33], &[34]] {
            let number = payload.first().copied().unwrap_or(0);
            let refused = method.generate().unwrap().handle(payload).unwrap_err();
            assert_eq!(refused, KexError::UnexpectedMessage { number }, "{method}");
        }
    }
    // A group exchange expects its reply (33) once the group is known, not a second group (31).
    let group = Writer::message(MSG_GEX_GROUP)
        .mpint(&dh::Group::group14().prime())
        .mpint(&[2])
        .finish();
    let client = KexMethod::DhGroupExchangeSha256.generate().unwrap();
    let Step::Send { next, .. } = client.handle(&group).unwrap() else {
        panic!("a group is not a reply")
    };
    assert_eq!(
        next.handle(&group).unwrap_err(),
        KexError::UnexpectedMessage {
            number: MSG_GEX_GROUP
        }
    );
}

#[test]
fn sntrup761_is_offered_where_it_was_built_in() {
    let offered = KexMethod::from_name("sntrup761x25519-sha512@openssh.com").is_some();
    assert_eq!(offered, cfg!(feature = "sntrup761"));
    // There is always a post-quantum method.
    assert!(KexMethod::DEFAULT[0].is_post_quantum());
}

#[test]
fn bytes_behind_a_message_are_refused() {
    let client = KexMethod::Curve25519Sha256.generate().unwrap();
    let longer = [&reply(&[9; 32])[..], &[0]].concat();
    assert_eq!(
        client.handle(&longer).unwrap_err(),
        KexError::Malformed(WireError::Trailing)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_server_message_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        theirs in proptest::collection::vec(any::<u8>(), 0..1300),
    ) {
        for &method in KexMethod::DEFAULT {
            let numbered = [&[MSG_KEX_REPLY], &bytes[..]].concat();
            for payload in [&bytes[..], &numbered, &reply(&theirs)] {
                let _ = method.generate().unwrap().handle(payload);
            }
        }
        let group = Writer::message(MSG_GEX_GROUP).mpint(&theirs).mpint(&bytes).finish();
        let _ = KexMethod::DhGroupExchangeSha256.generate().unwrap().handle(&group);
    }
}

/// The result of the server's half of an exchange.
struct Server {
    /// `K` as it is hashed.
    secret: Vec<u8>,
    /// The part of the exchange hash between the host key and `K`.
    exchanged: Bytes,
}

/// Runs a whole exchange with a test server.
fn exchange(method: KexMethod) -> (Box<Agreed>, Server) {
    let mut client = method.generate().unwrap();
    assert_eq!(client.method(), method);
    let mut init = client.init_message();
    if method == KexMethod::DhGroupExchangeSha256 {
        let request = Writer::message(34)
            .u32(SIZES[0])
            .u32(SIZES[1])
            .u32(SIZES[2])
            .finish();
        assert_eq!(init, request);
        let group = Writer::message(MSG_GEX_GROUP)
            .mpint(&dh::Group::group14().prime())
            .mpint(&[2]);
        match client.handle(&group.finish()).unwrap() {
            Step::Send { payload, next } => (init, client) = (payload, next),
            Step::Done(_) => panic!("a group is not a reply"),
        }
    }
    let (theirs, server) = serve(method, &init);
    let reply = match &client.secret {
        Secret::FiniteField(_) => Writer::message(31).string("the host key").mpint(&theirs),
        Secret::Proposed(_) => Writer::message(33).string("the host key").mpint(&theirs),
        _ => Writer::message(31).string("the host key").string(&theirs),
    };
    let reply = reply.string("the signature").finish();
    match client.handle(&reply).unwrap() {
        Step::Done(agreed) => (agreed, server),
        Step::Send { .. } => panic!("{method} has one reply"),
    }
}

/// Returns the server's public value and state after the client's INIT.
fn serve(method: KexMethod, init: &[u8]) -> (Vec<u8>, Server) {
    let mut reader = Reader::new(init);
    let number = reader.u8().unwrap();
    assert_eq!(
        number,
        if method == KexMethod::DhGroupExchangeSha256 {
            32
        } else {
            30
        }
    );
    let field = reader.clone().string().unwrap();
    match method {
        KexMethod::MlKem768X25519Sha256 => {
            let (public, point) = field.split_at(1184);
            let key = kem::EncapsulationKey::new(&kem::ML_KEM_768, public).unwrap();
            let (ciphertext, secret) = key.encapsulate().unwrap();
            serve_hybrid(method, field, ciphertext.as_ref(), secret.as_ref(), point)
        }
        #[cfg(feature = "sntrup761")]
        KexMethod::Sntrup761X25519Sha512 | KexMethod::Sntrup761X25519Sha512OpenSsh => {
            let (public, point) = field.split_at(1158);
            let (ciphertext, secret) = sntrup761::encapsulate(public);
            serve_hybrid(method, field, &ciphertext, &secret, point)
        }
        KexMethod::Curve25519Sha256 | KexMethod::Curve25519Sha256LibSsh => {
            serve_point(&agreement::X25519, field)
        }
        KexMethod::EcdhNistP256 => serve_point(&agreement::ECDH_P256, field),
        KexMethod::EcdhNistP384 => serve_point(&agreement::ECDH_P384, field),
        KexMethod::EcdhNistP521 => serve_point(&agreement::ECDH_P521, field),
        KexMethod::DhGroup14Sha256 => serve_number(Writer::new(), dh::Group::group14(), reader),
        KexMethod::DhGroup16Sha512 => serve_number(Writer::new(), dh::Group::group16(), reader),
        KexMethod::DhGroup18Sha512 => serve_number(Writer::new(), dh::Group::group18(), reader),
        KexMethod::DhGroupExchangeSha256 => {
            let group = dh::Group::group14();
            let sizes = Writer::new().u32(SIZES[0]).u32(SIZES[1]).u32(SIZES[2]);
            serve_number(sizes.mpint(&group.prime()).mpint(&[2]), group, reader)
        }
    }
}

fn serve_hybrid(
    method: KexMethod,
    client: &[u8],
    ciphertext: &[u8],
    kem_secret: &[u8],
    client_point: &[u8],
) -> (Vec<u8>, Server) {
    let (point, secret) = agree(&agreement::X25519, client_point);
    let theirs = [ciphertext, &point].concat();
    let hashed = digest::digest(method.hash().algorithm(), &[kem_secret, &secret].concat());
    let exchanged = Writer::new().string(client).string(&theirs).finish();
    (
        theirs,
        Server {
            secret: Writer::new().string(hashed).finish().to_vec(),
            exchanged,
        },
    )
}

fn serve_point(curve: &'static agreement::Algorithm, client: &[u8]) -> (Vec<u8>, Server) {
    let (theirs, secret) = agree(curve, client);
    let exchanged = Writer::new().string(client).string(&theirs).finish();
    (
        theirs,
        Server {
            secret: Writer::new().mpint(&secret).finish().to_vec(),
            exchanged,
        },
    )
}

fn serve_number(before: Writer, group: dh::Group, mut init: Reader<'_>) -> (Vec<u8>, Server) {
    let client = init.mpint().unwrap();
    let exponent = dh::Exponent::generate(group).unwrap();
    let theirs = exponent.public().to_vec();
    let secret = Writer::new()
        .mpint(&exponent.agree(client).unwrap())
        .finish()
        .to_vec();
    (
        theirs.clone(),
        Server {
            secret,
            exchanged: before.mpint(client).mpint(&theirs).finish(),
        },
    )
}

fn agree(curve: &'static agreement::Algorithm, client: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let key = agreement::PrivateKey::generate(curve).unwrap();
    let public = key.compute_public_key().unwrap().as_ref().to_vec();
    let client = UnparsedPublicKey::new(curve, client);
    let secret = agreement::agree(&key, client, (), |secret| Ok(secret.to_vec())).unwrap();
    (public, secret)
}

fn reply(theirs: &[u8]) -> Bytes {
    Writer::message(MSG_KEX_REPLY)
        .string("the host key")
        .string(theirs)
        .string("the signature")
        .finish()
}

fn sha256(parts: &[&[u8]]) -> Vec<u8> {
    digest::digest(&digest::SHA256, &parts.concat()).as_ref().to_vec()
}
