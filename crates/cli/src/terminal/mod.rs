//! The user's terminal during an interactive session: [raw mode](raw), and the [command line](command_line) that an escape
//! sequence opens; and where a [live] line is drawn. What the daemon needs as well is in [`trunkline_control::terminal`].

pub(crate) mod command_line;
pub(crate) mod interrupts;
pub(crate) mod live;
pub(crate) mod raw;

/// Returns whether a stream leads to a terminal that can be drawn on: one that understands escape sequences.
pub(crate) fn can_be_drawn_on(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// The columns of the terminal that a stream leads to; `None` where it leads elsewhere, or the terminal does not tell.
pub(crate) fn width(stream: impl std::os::fd::AsFd) -> Option<u16> {
    size(stream).map(|(columns, _)| columns)
}

/// Its columns and rows.
pub(crate) fn size(stream: impl std::os::fd::AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
