//! A user's terminal during a session, for the program that has it and for the daemon, to which stock ssh passes it:
//! the facts for a server ([modes]), and the sequences for the client instead of the server ([escape]).

pub mod escape;
pub mod modes;
