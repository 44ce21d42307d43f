//! Proofs of a server's identity: public keys and certificates, and the signatures made with them.

pub mod certificate;
mod public_key;
pub mod signature;
