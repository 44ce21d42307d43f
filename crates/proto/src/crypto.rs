//! The cryptography of a transport (RFC 4253 sections 6 to 8): key exchange methods, ciphers and MACs.

pub mod cipher;
pub mod kex;
pub mod mac;
