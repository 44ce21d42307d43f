//! What servers show of themselves: public keys and certificates, and what is signed with them.

pub mod certificate;
mod public_key;
pub mod signature;
