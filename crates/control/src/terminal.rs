//! A user's terminal during a session, for the program, which has it before it, and for the daemon, to which stock ssh
//! passes it: what a server must know of it ([modes]), and the sequences by which the user speaks to the client
//! instead of the server ([escape]).

pub mod escape;
pub mod modes;
