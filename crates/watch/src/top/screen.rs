//! The terminal: its other screen, without echo, for as long as this is there. It is as before afterwards, also after a panic.

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
    /// Takes the terminal. A panic gives it back first (`ratatui::try_init`).
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

    /// Draws everything anew next time: something else may have written to the terminal.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Stops, as any program at Ctrl-Z, and goes on when the shell says so.
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
