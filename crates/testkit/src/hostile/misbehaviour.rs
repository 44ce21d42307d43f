//! Ways to break the protocol before a log-in has succeeded.

use std::io;
use std::time::Duration;

use super::key_exchange::{KexFault, KexInit, KeyExchange};
use super::payload::{Payload, number};
use super::wire::{BANNER, Wire};

/// The pause between the bytes of [`Misbehaviour::SlowBanner`].
const TICK: Duration = Duration::from_millis(20);

/// A way to break the protocol that clients must withstand.
///
/// Whatever the server does, a client has to fail within its own time limits and in bounded memory. It must not ask for
/// secrets or believe that it is logged in. Some of these servers end the connection themselves; the others
/// ([`Misbehaviour::holds_on`]) do nothing more and wait for the client to close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Misbehaviour {
    /// Accepts and sends nothing.
    Silence,
    /// Closes right after it accepted.
    CloseAfterConnect,
    /// Lines of text forever, and never a banner (RFC 4253 section 4.2 allows lines, without a limit).
    EndlessLines,
    /// 1 MiB of lines, then a proper banner and silence.
    MebibyteOfLines,
    /// A banner of 1 MiB without an end.
    BannerWithoutEnd,
    /// A banner without an end, one byte at a time: every read makes progress, but the banner never ends.
    SlowBanner,
    /// A banner with a NUL byte in it, which RFC 4253 section 4.2 forbids.
    BannerWithNul,
    /// Version 1.5 of the protocol.
    OldVersion,
    /// 64 KiB of binary noise instead of a banner.
    BinaryGarbage,
    CloseAfterBanner,
    /// A packet with a length field of 4 GiB.
    HugePacket,
    /// A packet with a length field of four bytes more than OpenSSH's limit of 256 KiB: a whole number of blocks.
    SlightlyTooLongPacket,
    /// A packet of length zero.
    EmptyPacket,
    /// A packet with a length that is not a whole number of blocks.
    UnalignedPacket,
    /// More padding than the packet's length.
    PaddingBeyondPacket,
    /// Less than the four bytes of padding that RFC 4253 section 6 requires.
    TooLittlePadding,
    /// A packet that only has padding, without a message number.
    PacketWithoutMessage,
    /// Half of a KEXINIT, then the end of the stream.
    TruncatedPacket,
    /// Two KEXINITs in a row.
    RepeatedKexInit,
    /// A KEXINIT that ends in the middle of a list.
    TruncatedKexInit,
    /// A KEXINIT with a list whose length field is 4 GiB.
    HugeNameList,
    /// A KEXINIT of 10,000 unknown names.
    ManyNames,
    /// A KEXINIT of empty lists.
    EmptyNameLists,
    /// A KEXINIT with commas without names, control characters and bytes that are not ASCII.
    MalformedNames,
    /// No common method of key exchange.
    NoCommonKex,
    NoCommonCipher,
    /// Offers `none` as its only cipher.
    CipherNone,
    /// Announces a guessed packet that the client must ignore, but sends none.
    MissingGuess,
    CloseAfterKexInit,
    /// Disconnects in the key exchange, with a description of 30 KiB of terminal escape sequences.
    DisconnectWithEscapes,
    /// IGNORE messages forever instead of an answer.
    EndlessIgnore,
    /// Reports a successful log-in before any key exchange.
    SuccessBeforeKeyExchange,
    /// Reports a successful log-in after its KEXINIT.
    SuccessInKeyExchange,
    /// NEWKEYS instead of its part of the key exchange.
    NewKeysTooEarly,
    /// See [`KexFault::WrongSignature`].
    WrongSignature,
    /// See [`KexFault::SignatureByAnotherKey`].
    SignatureByAnotherKey,
    /// See [`KexFault::AnotherHostKey`].
    AnotherHostKey,
    /// See [`KexFault::MisnamedSignature`].
    MisnamedSignature,
    /// See [`KexFault::ZeroShare`].
    ZeroShare,
    /// See [`KexFault::ShortShare`].
    ShortShare,
    /// See [`KexFault::TruncatedReply`].
    TruncatedReply,
    /// An IGNORE between the reply and NEWKEYS, which strict key exchange forbids: the first half of the Terrapin
    /// attack.
    IgnoreBeforeNewKeys,
    /// Closes after the key exchange.
    CloseAfterNewKeys,
    /// Noise instead of the first encrypted packet.
    NoiseAfterNewKeys,
    /// Loses an encrypted packet on the way, and sends the next one: the second half of the Terrapin attack.
    LostFirstPacket,
    /// Reports a successful log-in before the client asked for one.
    SuccessUnasked,
    /// Accepts a service other than the requested one.
    AnotherService,
    /// Refuses every log-in, forever, with a list of methods that the client has just used up.
    EndlessAuthFailure,
    /// Asks for the answers to four thousand million prompts.
    ManyPrompts,
    /// Closes in the middle of the log-in.
    CloseInAuthentication,
}

impl Misbehaviour {
    /// All of them.
    pub const ALL: &[Misbehaviour] = &[
        Misbehaviour::Silence,
        Misbehaviour::CloseAfterConnect,
        Misbehaviour::EndlessLines,
        Misbehaviour::MebibyteOfLines,
        Misbehaviour::BannerWithoutEnd,
        Misbehaviour::SlowBanner,
        Misbehaviour::BannerWithNul,
        Misbehaviour::OldVersion,
        Misbehaviour::BinaryGarbage,
        Misbehaviour::CloseAfterBanner,
        Misbehaviour::HugePacket,
        Misbehaviour::SlightlyTooLongPacket,
        Misbehaviour::EmptyPacket,
        Misbehaviour::UnalignedPacket,
        Misbehaviour::PaddingBeyondPacket,
        Misbehaviour::TooLittlePadding,
        Misbehaviour::PacketWithoutMessage,
        Misbehaviour::TruncatedPacket,
        Misbehaviour::RepeatedKexInit,
        Misbehaviour::TruncatedKexInit,
        Misbehaviour::HugeNameList,
        Misbehaviour::ManyNames,
        Misbehaviour::EmptyNameLists,
        Misbehaviour::MalformedNames,
        Misbehaviour::NoCommonKex,
        Misbehaviour::NoCommonCipher,
        Misbehaviour::CipherNone,
        Misbehaviour::MissingGuess,
        Misbehaviour::CloseAfterKexInit,
        Misbehaviour::DisconnectWithEscapes,
        Misbehaviour::EndlessIgnore,
        Misbehaviour::SuccessBeforeKeyExchange,
        Misbehaviour::SuccessInKeyExchange,
        Misbehaviour::NewKeysTooEarly,
        Misbehaviour::WrongSignature,
        Misbehaviour::SignatureByAnotherKey,
        Misbehaviour::AnotherHostKey,
        Misbehaviour::MisnamedSignature,
        Misbehaviour::ZeroShare,
        Misbehaviour::ShortShare,
        Misbehaviour::TruncatedReply,
        Misbehaviour::IgnoreBeforeNewKeys,
        Misbehaviour::CloseAfterNewKeys,
        Misbehaviour::NoiseAfterNewKeys,
        Misbehaviour::LostFirstPacket,
        Misbehaviour::SuccessUnasked,
        Misbehaviour::AnotherService,
        Misbehaviour::EndlessAuthFailure,
        Misbehaviour::ManyPrompts,
        Misbehaviour::CloseInAuthentication,
    ];

    /// Returns true if only a time limit of the client's ends this connection, because the data that it has received so
    /// far is legal (if strange), or because the fault is data that never comes.
    #[must_use]
    pub fn holds_on(self) -> bool {
        matches!(
            self,
            Misbehaviour::Silence
                | Misbehaviour::EndlessLines
                | Misbehaviour::MebibyteOfLines
                | Misbehaviour::BannerWithoutEnd
                | Misbehaviour::SlowBanner
                | Misbehaviour::BinaryGarbage
                | Misbehaviour::MissingGuess
                | Misbehaviour::EndlessIgnore
                | Misbehaviour::AnotherService
        )
    }

    /// Plays the script to one client, until the client closes the connection or the script does.
    pub(super) async fn play(self, mut wire: Wire) -> io::Result<()> {
        // A client that gives up resets the connection, so that a write fails. That is correct behaviour.
        if self.act(&mut wire).await.is_ok() && !self.closes() {
            wire.until_closed().await;
        }
        Ok(())
    }

    fn closes(self) -> bool {
        matches!(
            self,
            Misbehaviour::CloseAfterConnect
                | Misbehaviour::CloseAfterBanner
                | Misbehaviour::TruncatedPacket
                | Misbehaviour::CloseAfterKexInit
                | Misbehaviour::CloseAfterNewKeys
                | Misbehaviour::CloseInAuthentication
        )
    }

    #[expect(clippy::too_many_lines, reason = "a list: what each misbehaviour is")]
    async fn act(self, wire: &mut Wire) -> io::Result<()> {
        use Misbehaviour as M;
        let init = KexInit::default();
        match self {
            M::Silence | M::CloseAfterConnect => Ok(()),
            M::EndlessLines => loop {
                wire.send_raw(b"Please stand by.\r\n".repeat(1000).as_slice())
                    .await?;
            },
            M::MebibyteOfLines => {
                wire.send_raw(b"Please stand by\n".repeat(65536).as_slice())
                    .await?;
                wire.send_raw(format!("{BANNER}\r\n").as_bytes()).await
            }
            M::BannerWithoutEnd => {
                wire.send_raw(b"SSH-2.0-").await?;
                wire.send_raw(&vec![b'a'; 1 << 20]).await
            }
            M::SlowBanner => {
                wire.send_raw(b"SSH-2.0-").await?;
                loop {
                    wire.drip(b"a", TICK).await?;
                }
            }
            M::BannerWithNul => wire.send_raw(b"SSH-2.0-Open\0SSH\r\n").await,
            M::OldVersion => wire.send_raw(b"SSH-1.5-older\r\n").await,
            M::BinaryGarbage => wire.send_raw(&noise(64 * 1024)).await,

            M::CloseAfterBanner => wire.exchange_banners(BANNER).await,
            M::HugePacket => after_banner(wire, &packet(u32::MAX, 4, &[number::IGNORE])).await,
            M::SlightlyTooLongPacket => {
                // The limit plus eight bytes, which is the block size before encryption. Four of them are the length
                // field.
                let length = 256 * 1024 + 4;
                after_banner(wire, &packet(length, 4, &[number::IGNORE])).await
            }
            M::EmptyPacket => after_banner(wire, &[0; 64]).await,
            M::UnalignedPacket => after_banner(wire, &packet(13, 4, &[number::IGNORE, 0, 0, 0, 0])).await,
            M::PaddingBeyondPacket => after_banner(wire, &packet(12, 200, &[number::IGNORE])).await,
            M::TooLittlePadding => after_banner(wire, &packet(12, 2, &[number::IGNORE, 0, 0, 0, 4])).await,
            M::PacketWithoutMessage => after_banner(wire, &packet(12, 11, &[])).await,
            M::TruncatedPacket => {
                wire.exchange_banners(BANNER).await?;
                let whole = init.payload();
                wire.send_raw(&packet(404, 4, &whole.as_ref()[..100])).await?;
                wire.finish().await?;
                wire.until_closed().await;
                Ok(())
            }

            M::RepeatedKexInit => after_init(wire, &init, &[init.payload()]).await,
            M::TruncatedKexInit => {
                let whole = init.payload();
                wire.exchange_banners(BANNER).await?;
                wire.send(&whole.as_ref()[..60]).await
            }
            M::HugeNameList => {
                wire.exchange_banners(BANNER).await?;
                wire.send(
                    Payload::message(number::KEXINIT)
                        .raw(&[7; 16])
                        .uint32(u32::MAX)
                        .raw(b"curve25519"),
                )
                .await
            }
            M::ManyNames => {
                let kex = (0..10_000)
                    .map(|n| format!("x{n}@example.com"))
                    .collect::<Vec<_>>()
                    .join(",");
                after_init(wire, &KexInit { kex, ..init }, &[]).await
            }
            M::EmptyNameLists => {
                let empty = KexInit {
                    kex: String::new(),
                    host_key: String::new(),
                    cipher: String::new(),
                    mac: String::new(),
                    compression: String::new(),
                    first_kex_packet_follows: false,
                };
                after_init(wire, &empty, &[]).await
            }
            M::MalformedNames => {
                let kex = ",,\u{1b}[2J,\n,caf\u{e9},curve25519-sha256 ,".to_owned();
                after_init(wire, &KexInit { kex, ..init }, &[]).await
            }
            M::NoCommonKex => {
                after_init(
                    wire,
                    &KexInit {
                        kex: "kex@example.com".to_owned(),
                        ..init
                    },
                    &[],
                )
                .await
            }
            M::NoCommonCipher => {
                after_init(
                    wire,
                    &KexInit {
                        cipher: "rot13@example.com".to_owned(),
                        ..init
                    },
                    &[],
                )
                .await
            }
            M::CipherNone => {
                after_init(
                    wire,
                    &KexInit {
                        cipher: "none".to_owned(),
                        ..init
                    },
                    &[],
                )
                .await
            }
            M::MissingGuess => {
                let guessing = KexInit {
                    first_kex_packet_follows: true,
                    ..init
                };
                after_init(wire, &guessing, &[]).await
            }
            M::CloseAfterKexInit => {
                after_init(wire, &init, &[]).await?;
                wire.receive().await.map(drop)
            }
            M::DisconnectWithEscapes => {
                let description = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\n".repeat(1500);
                let disconnect = Payload::message(number::DISCONNECT)
                    .uint32(3)
                    .string(description)
                    .string("");
                after_init(wire, &init, &[disconnect]).await
            }
            M::EndlessIgnore => {
                // A server from before strict key exchange, which may send IGNORE here.
                after_init(wire, &KexInit::without_strict(), &[]).await?;
                loop {
                    wire.send(Payload::message(number::IGNORE).string([0; 30_000]))
                        .await?;
                }
            }
            M::SuccessBeforeKeyExchange => {
                wire.exchange_banners(BANNER).await?;
                wire.send(Payload::message(number::USERAUTH_SUCCESS)).await
            }
            M::SuccessInKeyExchange => {
                after_init(wire, &init, &[Payload::message(number::USERAUTH_SUCCESS)]).await
            }
            M::NewKeysTooEarly => after_init(wire, &init, &[Payload::message(number::NEWKEYS)]).await,

            M::WrongSignature => with_fault(wire, KexFault::WrongSignature).await,
            M::SignatureByAnotherKey => with_fault(wire, KexFault::SignatureByAnotherKey).await,
            M::AnotherHostKey => with_fault(wire, KexFault::AnotherHostKey).await,
            M::MisnamedSignature => with_fault(wire, KexFault::MisnamedSignature).await,
            M::ZeroShare => with_fault(wire, KexFault::ZeroShare).await,
            M::ShortShare => with_fault(wire, KexFault::ShortShare).await,
            M::TruncatedReply => with_fault(wire, KexFault::TruncatedReply).await,
            M::IgnoreBeforeNewKeys => {
                let before_newkeys = vec![Payload::message(number::IGNORE).string("")];
                wire.exchange_banners(BANNER).await?;
                wire.exchange_keys(&KeyExchange {
                    before_newkeys,
                    ..KeyExchange::default()
                })
                .await
            }

            M::CloseAfterNewKeys => encrypt_wire(wire).await,
            M::NoiseAfterNewKeys => {
                encrypt_wire(wire).await?;
                wire.send_raw(&[&32_u32.to_be_bytes()[..], &noise(48)].concat())
                    .await
            }
            M::LostFirstPacket => {
                encrypt_wire(wire).await?;
                wire.lose(Payload::message(number::EXT_INFO).uint32(0))?;
                wire.expect(number::SERVICE_REQUEST).await?;
                wire.send(Payload::message(number::SERVICE_ACCEPT).string("ssh-userauth"))
                    .await
            }
            M::SuccessUnasked => {
                encrypt_wire(wire).await?;
                wire.send(Payload::message(number::USERAUTH_SUCCESS)).await
            }
            M::AnotherService => {
                encrypt_wire(wire).await?;
                wire.expect(number::SERVICE_REQUEST).await?;
                wire.send(Payload::message(number::SERVICE_ACCEPT).string("ssh-connection"))
                    .await
            }
            M::EndlessAuthFailure => {
                in_authentication(wire).await?;
                loop {
                    wire.expect(number::USERAUTH_REQUEST).await?;
                    let failure = Payload::message(number::USERAUTH_FAILURE);
                    wire.send(
                        failure
                            .string("publickey,password,keyboard-interactive")
                            .boolean(false),
                    )
                    .await?;
                }
            }
            M::ManyPrompts => {
                in_authentication(wire).await?;
                wire.expect(number::USERAUTH_REQUEST).await?;
                let failure = Payload::message(number::USERAUTH_FAILURE);
                wire.send(failure.string("keyboard-interactive").boolean(false))
                    .await?;
                wire.expect(number::USERAUTH_REQUEST).await?;
                let request = Payload::message(number::USERAUTH_INFO_REQUEST)
                    .string("")
                    .string("")
                    .string("");
                wire.send(request.uint32(u32::MAX).string("Password: ").boolean(false))
                    .await
            }
            M::CloseInAuthentication => {
                in_authentication(wire).await?;
                wire.expect(number::USERAUTH_REQUEST).await.map(drop)
            }
        }
    }
}

async fn after_banner(wire: &mut Wire, bytes: &[u8]) -> io::Result<()> {
    wire.exchange_banners(BANNER).await?;
    wire.send_raw(bytes).await
}

async fn after_init(wire: &mut Wire, init: &KexInit, messages: &[Payload]) -> io::Result<()> {
    wire.exchange_banners(BANNER).await?;
    wire.send(init.payload()).await?;
    wire.send_together(messages).await
}

async fn with_fault(wire: &mut Wire, fault: KexFault) -> io::Result<()> {
    wire.exchange_banners(BANNER).await?;
    wire.exchange_keys(&KeyExchange {
        fault: Some(fault),
        ..KeyExchange::default()
    })
    .await
}

async fn encrypt_wire(wire: &mut Wire) -> io::Result<()> {
    wire.exchange_banners(BANNER).await?;
    wire.exchange_keys(&KeyExchange::default()).await
}

async fn in_authentication(wire: &mut Wire) -> io::Result<()> {
    encrypt_wire(wire).await?;
    wire.expect(number::SERVICE_REQUEST).await?;
    wire.send(Payload::message(number::SERVICE_ACCEPT).string("ssh-userauth"))
        .await
}

/// Makes a plain packet with the given length fields. Missing bytes are filled with zeros, up to the size of a block.
fn packet(length: u32, padding_length: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.push(padding_length);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().max(20), 0);
    bytes
}

/// Makes noise (xorshift32), the same each time, without bytes that could be part of a banner.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0] | 0x80
    })
    .take(length)
    .collect()
}
