//! The user's terminal: [raw mode](raw) and the [command line](command_line) of an interactive session, and [live]
//! lines. Parts that the daemon needs as well are in [`trunkline_control::terminal`].

pub(crate) mod command_line;
pub(crate) mod interrupts;
pub(crate) mod live;
pub(crate) mod raw;

/// Returns true if a stream is a terminal that understands escape sequences.
pub(crate) fn can_be_drawn_on(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Returns the columns of a stream's terminal; `None` if it is not one, or does not tell.
pub(crate) fn width(stream: impl std::os::fd::AsFd) -> Option<u16> {
    size(stream).map(|(columns, _)| columns)
}

/// Returns the terminal's columns and rows.
pub(crate) fn size(stream: impl std::os::fd::AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
