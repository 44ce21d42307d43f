//! Colours, where there are any.

use ratatui::style::{Color, Modifier, Style};

/// Whether there are colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    pub(super) colours: bool,
}

impl Palette {
    /// As NO_COLOR and TERM say.
    pub(super) fn of_environment() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colours: !is_set("NO_COLOR") && !is_dumb,
        }
    }

    pub(super) fn style(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    pub(super) fn faint(self) -> Style {
        self.style(Color::DarkGray)
    }

    /// Of the word for a state.
    pub(super) fn state(self, word: &str) -> Style {
        match word {
            "used" | "alive" | "up" | "done" => self.style(Color::Green),
            "busy" | "connecting" | "starting" | "draining" | "running" | "left" => self.style(Color::Yellow),
            "stale" | "silent" | "lost" | "in trouble" => self.style(Color::Red),
            _ => Style::new(),
        }
    }
}

pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
