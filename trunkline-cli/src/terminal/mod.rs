//! The user's terminal during an interactive session: [raw mode](raw), what the server must know of it
//! ([modes]), and the [escape sequences](escape) by which the user speaks to the client instead of the
//! server.

pub(crate) mod escape;
pub(crate) mod modes;
pub(crate) mod raw;
