//! The algorithms that a connection may use, and the choice among them (RFC 4253 section 7.1).

use crate::crypto::cipher::Cipher;
use crate::crypto::kex::KexMethod;
use crate::crypto::mac::Mac;
use crate::error::{AlgorithmKind, Error};
use crate::message::KexInit;

/// Compression of payloads (RFC 4253 section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// No compression.
    None,
    /// `zlib@openssh.com`: zlib that starts after authentication.
    Zlib,
}

impl Compression {
    /// Returns the name in a KEXINIT.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zlib => "zlib@openssh.com",
        }
    }

    /// Returns the algorithm with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::None, Self::Zlib].into_iter().find(|c| c.name() == name)
    }
}

/// The host key signature algorithms offered by default, in OpenSSH's order. SHA-1's `ssh-rsa` and `ssh-dss` are
/// excluded, and cannot be added.
pub const HOST_KEY_ALGORITHMS: &[&str] = &[
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "sk-ssh-ed25519-cert-v01@openssh.com",
    "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
];

/// The algorithms that this side allows, in order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preferences {
    /// Key exchange methods.
    pub kex: Vec<KexMethod>,
    /// Host key signature algorithms; see [`HOST_KEY_ALGORITHMS`].
    pub host_keys: Vec<String>,
    /// Ciphers, for both directions.
    pub ciphers: Vec<Cipher>,
    /// MACs, for ciphers that need one.
    pub macs: Vec<Mac>,
    /// Compression, for both directions.
    pub compression: Vec<Compression>,
}

impl Default for Preferences {
    fn default() -> Self {
        Self {
            kex: KexMethod::DEFAULT.to_vec(),
            host_keys: HOST_KEY_ALGORITHMS.iter().map(|&name| name.to_owned()).collect(),
            ciphers: Cipher::DEFAULT.to_vec(),
            macs: Mac::DEFAULT.to_vec(),
            compression: vec![Compression::None, Compression::Zlib],
        }
    }
}

/// In the first KEXINIT: this client reads SSH_MSG_EXT_INFO (RFC 8308).
const EXT_INFO_C: &str = "ext-info-c";
/// In the first KEXINIT: the server reads SSH_MSG_EXT_INFO.
const EXT_INFO_S: &str = "ext-info-s";
/// OpenSSH's PROTOCOL, section 1.10: strict key exchange, the answer to the Terrapin attack.
const KEX_STRICT_C: &str = "kex-strict-c-v00@openssh.com";
const KEX_STRICT_S: &str = "kex-strict-s-v00@openssh.com";

impl Preferences {
    /// Returns this side's KEXINIT. The pseudo-methods are only in a connection's `first` one.
    pub(crate) fn kexinit(&self, first: bool, first_kex_packet_follows: bool) -> KexInit {
        let mut kex: Vec<String> = self.kex.iter().map(|method| method.name().to_owned()).collect();
        if first {
            kex.extend([EXT_INFO_C.to_owned(), KEX_STRICT_C.to_owned()]);
        }
        let ciphers: Vec<String> = self.ciphers.iter().map(|c| c.name().to_owned()).collect();
        let macs: Vec<String> = self.macs.iter().map(|m| m.name().to_owned()).collect();
        let compression: Vec<String> = self.compression.iter().map(|c| c.name().to_owned()).collect();
        KexInit {
            kex,
            host_keys: self.host_keys.clone(),
            ciphers_out: ciphers.clone(),
            ciphers_in: ciphers,
            macs_out: macs.clone(),
            macs_in: macs,
            compression_out: compression.clone(),
            compression_in: compression,
            first_kex_packet_follows,
        }
    }
}

/// The algorithms of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// The cipher.
    pub cipher: Cipher,
    /// The MAC; `None` if the cipher authenticates by itself.
    pub mac: Option<Mac>,
    /// Compression.
    pub compression: Compression,
}

impl Direction {
    /// Returns the strength in bytes that a key exchange needs: OpenSSH's `dh_need` (kex.c, `kex_choose_conf`).
    fn strength(self) -> usize {
        let Self { cipher, mac, .. } = self;
        let lengths = [
            cipher.key_len(),
            cipher.block_len(),
            cipher.iv_len(),
            mac.map_or(0, Mac::key_len),
        ];
        lengths.into_iter().max().unwrap_or_default()
    }
}

/// The algorithms that both sides agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The key exchange method.
    pub kex: KexMethod,
    /// The host key's signature algorithm.
    pub host_key: String,
    /// Client to server.
    pub outgoing: Direction,
    /// Server to client.
    pub incoming: Direction,
    /// Both sides list the same kex and host key algorithms first: only then is a guessed first key exchange packet
    /// right (RFC 4253 section 7).
    pub(crate) guess_right: bool,
    /// The server supports strict key exchange.
    pub(crate) strict: bool,
    /// The server reads SSH_MSG_EXT_INFO (RFC 8308).
    pub(crate) reads_ext_info: bool,
}

impl Negotiated {
    /// Returns the strength in bytes that the key exchange needs.
    pub(crate) fn strength(&self) -> usize {
        self.outgoing.strength().max(self.incoming.strength())
    }
}

/// The part of a server's first KEXINIT that is kept, because later connections may choose by it.
#[derive(Debug, Clone)]
pub(crate) struct ServerOffer {
    /// The key exchange and host key algorithms that it listed first.
    pub(crate) first_choices: Option<(String, String)>,
    /// Our ciphers and compressions that the server accepts in both directions.
    pub(crate) ciphers: Vec<Cipher>,
    pub(crate) compression: Vec<Compression>,
    /// Its MACs are sshd's default ones: some UMAC, which hardly any other server has, and none that sshd lacks.
    /// asyncssh has UMAC, but also `hmac-sha256@ssh.com` and similar ones.
    pub(crate) macs_of_sshd: bool,
}

impl ServerOffer {
    pub(crate) fn from_kexinit(theirs: &KexInit) -> Self {
        let both = |name: &str, one: &[String], other: &[String]| {
            [one, other]
                .iter()
                .all(|list| list.iter().any(|offered| offered == name))
        };
        Self {
            first_choices: theirs.kex.first().cloned().zip(theirs.host_keys.first().cloned()),
            ciphers: Cipher::DEFAULT
                .iter()
                .copied()
                .filter(|cipher| both(cipher.name(), &theirs.ciphers_out, &theirs.ciphers_in))
                .collect(),
            compression: [Compression::None, Compression::Zlib]
                .into_iter()
                .filter(|kind| both(kind.name(), &theirs.compression_out, &theirs.compression_in))
                .collect(),
            macs_of_sshd: theirs.macs_out.iter().any(|name| name.starts_with("umac-"))
                && theirs
                    .macs_out
                    .iter()
                    .all(|name| !name.contains('@') || name.ends_with("@openssh.com")),
        }
    }
}

/// Chooses for each kind the first of ours that the server has too.
pub(crate) fn negotiate(ours: &KexInit, theirs: &KexInit) -> Result<Negotiated, Error> {
    let kex = choose(AlgorithmKind::Kex, &ours.kex, &theirs.kex, KexMethod::from_name)?;
    let host_key = choose(
        AlgorithmKind::HostKey,
        &ours.host_keys,
        &theirs.host_keys,
        |name| Some(name.to_owned()),
    )?;
    let direction = |[
        ciphers,
        their_ciphers,
        macs,
        their_macs,
        compression,
        their_compression,
    ]: [&[String]; 6]| {
        let cipher = choose(AlgorithmKind::Cipher, ciphers, their_ciphers, Cipher::from_name)?;
        Ok::<_, Error>(Direction {
            cipher,
            mac: if cipher.is_aead() {
                None
            } else {
                Some(choose(AlgorithmKind::Mac, macs, their_macs, Mac::from_name)?)
            },
            compression: choose(
                AlgorithmKind::Compression,
                compression,
                their_compression,
                Compression::from_name,
            )?,
        })
    };
    Ok(Negotiated {
        kex,
        host_key,
        outgoing: direction([
            &ours.ciphers_out,
            &theirs.ciphers_out,
            &ours.macs_out,
            &theirs.macs_out,
            &ours.compression_out,
            &theirs.compression_out,
        ])?,
        incoming: direction([
            &ours.ciphers_in,
            &theirs.ciphers_in,
            &ours.macs_in,
            &theirs.macs_in,
            &ours.compression_in,
            &theirs.compression_in,
        ])?,
        guess_right: ours.kex.first() == theirs.kex.first()
            && ours.host_keys.first() == theirs.host_keys.first(),
        strict: theirs.kex.iter().any(|name| name == KEX_STRICT_S),
        reads_ext_info: theirs.kex.iter().any(|name| name == EXT_INFO_S),
    })
}

fn choose<T>(
    what: AlgorithmKind,
    ours: &[String],
    theirs: &[String],
    known: impl Fn(&str) -> Option<T>,
) -> Result<T, Error> {
    ours.iter()
        .filter(|name| theirs.contains(name))
        .find_map(|name| known(name))
        .ok_or_else(|| Error::NothingInCommon {
            what,
            ours: ours.join(","),
            theirs: theirs.join(",").chars().take(1000).collect::<String>().into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(change: impl FnOnce(&mut KexInit)) -> KexInit {
        let mut theirs = Preferences::default().kexinit(false, false);
        change(&mut theirs);
        theirs
    }

    #[test]
    fn our_order_decides() {
        let ours = Preferences::default().kexinit(true, false);
        let theirs = server(|s| s.ciphers_out.reverse());
        let agreed = negotiate(&ours, &theirs).unwrap();
        assert_eq!(agreed.outgoing.cipher, Cipher::DEFAULT[0]);
        assert!(agreed.guess_right && !agreed.strict);
    }

    #[test]
    fn a_server_offers_what_it_takes_in_both_directions() {
        let theirs = server(|s| {
            s.ciphers_in.retain(|name| name != "aes128-ctr");
            s.compression_out = vec!["none".into(), "zlib".into()];
        });
        let offer = ServerOffer::from_kexinit(&theirs);
        assert!(!offer.ciphers.contains(&Cipher::Aes128Ctr) && offer.ciphers.contains(&Cipher::Aes256Ctr));
        assert_eq!(offer.compression, [Compression::None]);
    }

    #[test]
    fn a_guess_is_right_only_when_both_first_choices_are_equal() {
        let ours = Preferences::default().kexinit(true, false);
        let theirs = server(|s| s.host_keys.reverse());
        assert!(!negotiate(&ours, &theirs).unwrap().guess_right);
    }

    #[test]
    fn a_marker_is_never_taken_for_a_method() {
        let ours = Preferences::default().kexinit(true, false);
        let theirs = server(|s| s.kex = vec![EXT_INFO_C.into(), KEX_STRICT_C.into()]);
        assert!(matches!(
            negotiate(&ours, &theirs),
            Err(Error::NothingInCommon {
                what: AlgorithmKind::Kex,
                ..
            })
        ));
    }

    #[test]
    fn weak_algorithms_are_not_offered() {
        let ours = Preferences::default().kexinit(true, false);
        let offered = [&ours.kex, &ours.host_keys, &ours.ciphers_out, &ours.macs_out]
            .map(|l| l.join(","))
            .join(",");
        for weak in [
            "sha1", "cbc", "arcfour", "3des", "ssh-dss", "md5", "umac", ",ssh-rsa",
        ] {
            assert!(!offered.contains(weak), "{weak} is offered");
        }
    }
}
