//! The user's terminal during an interactive session: [raw mode](raw), and the [command line](command_line) that an escape
//! sequence opens. What the daemon needs as well is in [`trunkline_daemon::terminal`].

pub(crate) mod command_line;
pub(crate) mod interrupts;
pub(crate) mod raw;
