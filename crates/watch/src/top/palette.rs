//! Colours, if the terminal has them.

use ratatui::style::{Color, Modifier, Style};

/// The choice of colours.
#[derive(Debug, Clone, Copy)]
pub struct Palette {
    pub(crate) colours: bool,
}

impl Palette {
    /// Chooses by NO_COLOR and TERM.
    pub(crate) fn of_environment() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colours: !is_set("NO_COLOR") && !is_dumb,
        }
    }

    /// Returns the style of a colour, if colours are used.
    pub fn style(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    pub(crate) fn faint(self) -> Style {
        self.style(Color::DarkGray)
    }

    /// Returns the style for a state's word.
    pub(crate) fn state(self, word: &str) -> Style {
        match word {
            "used" | "alive" | "up" | "done" => self.style(Color::Green),
            "busy" | "connecting" | "starting" | "draining" | "running" | "left" => self.style(Color::Yellow),
            "stale" | "silent" | "lost" | "in trouble" => self.style(Color::Red),
            _ => Style::new(),
        }
    }
}

pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(crate) const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
