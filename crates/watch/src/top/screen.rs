//! The terminal's alternate screen, without echo. Dropping it restores the terminal, also after a panic.

use std::io;

use ratatui::DefaultTerminal;
use rustix::process::{Signal, getpid, kill_process};

use super::app::App;
use super::draw;
use super::palette::Palette;
use super::subject::Subject;

/// The terminal while it is ours.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    palette: Palette,
}

impl Screen {
    /// Takes the terminal. A panic restores it first (`ratatui::try_init`).
    pub(super) fn enter() -> io::Result<Self> {
        Ok(Self {
            terminal: ratatui::try_init()?,
            palette: Palette::of_environment(),
        })
    }

    pub(super) fn draw<S: Subject>(&mut self, app: &mut App<S>, model: &S) -> io::Result<()> {
        self.terminal
            .draw(|frame| draw::draw(frame, app, model, self.palette))?;
        Ok(())
    }

    /// Redraws everything next time, since another program may have written to the terminal.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Stops like any program at Ctrl-Z, and continues when the shell says so.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        ratatui::try_restore()?;
        kill_process(getpid(), Signal::TSTP)?;
        self.terminal = ratatui::try_init()?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
