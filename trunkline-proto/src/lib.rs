//! SSH-2 client protocol as a state machine without I/O.

pub mod cipher;
pub mod mac;
pub mod wire;
