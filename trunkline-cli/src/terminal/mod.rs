//! The user's terminal during an interactive session: [raw mode](raw). What the daemon needs as well is in
//! [`trunkline_daemon::terminal`].

pub(crate) mod raw;
