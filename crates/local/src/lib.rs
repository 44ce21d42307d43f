//! Work done on this machine for a caller: programs that run in their world ([`program`]), and questions that are put
//! to them ([`prompt`]). There is no engine and no cryptography in it: the program that the user types needs it as much
//! as the daemon does.

pub mod child;
pub mod lent;
pub mod program;
pub mod prompt;
