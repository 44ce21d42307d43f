//! Local work for a caller: programs that run in their environment ([`program`]), and questions to them ([`prompt`]).
//! There is no engine and no cryptography here, because both the user's program and the daemon need this.

pub mod child;
pub mod lent;
pub mod program;
pub mod prompt;
