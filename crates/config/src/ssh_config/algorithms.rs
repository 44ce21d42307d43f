//! The engine's algorithms, for programs that let their users choose among them.

use trunkline_proto::cipher::Cipher;
use trunkline_proto::kex::KexMethod;
use trunkline_proto::mac::Mac;
use trunkline_proto::{Compression, HOST_KEY_ALGORITHMS};

use crate::keys::is_certificate_algorithm;

/// The names of the algorithms offered by default, best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Algorithms {
    /// Key exchange methods.
    pub kex: Vec<&'static str>,
    /// Host key algorithms; certificates of a type are offered together with it.
    pub host_key: Vec<&'static str>,
    /// Ciphers.
    pub cipher: Vec<&'static str>,
    /// MACs.
    pub mac: Vec<&'static str>,
    /// Compression of payloads.
    pub compression: Vec<&'static str>,
}

impl Algorithms {
    /// Returns the engine's algorithms.
    pub fn all_supported() -> Self {
        let plain = |name: &&str| !is_certificate_algorithm(name);
        Self {
            kex: KexMethod::DEFAULT.iter().map(|kex| kex.name()).collect(),
            host_key: HOST_KEY_ALGORITHMS.iter().copied().filter(plain).collect(),
            cipher: Cipher::DEFAULT.iter().map(|cipher| cipher.name()).collect(),
            mac: Mac::DEFAULT.iter().map(|mac| mac.name()).collect(),
            compression: [Compression::None, Compression::Zlib]
                .map(Compression::name)
                .into(),
        }
    }
}
