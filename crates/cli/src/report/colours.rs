//! Colours: on a terminal, unless the user does not want them.

use anstyle::{AnsiColor, Style};
use std::ffi::OsStr;
use std::fmt::Display;

/// The choice of colours for one output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    On,
    /// Text only.
    Off,
}

impl Colours {
    /// Chooses for a stream that is or is not a terminal. The caller passes the values of `NO_COLOR` (any but an empty
    /// one turns colours off, <https://no-color.org>) and `TERM` (`dumb` does too).
    pub(crate) fn choose(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> Self {
        let unwanted = no_color.is_some_and(|value| !value.is_empty());
        let unable = term.is_none_or(|term| term == "dumb");
        if is_terminal && !unwanted && !unable {
            Self::On
        } else {
            Self::Off
        }
    }

    /// Returns a host's name in colour.
    pub(crate) fn host(self, text: impl Display) -> String {
        self.paint(AnsiColor::Cyan.on_default(), text)
    }

    /// Returns the name of the `number`th of many hosts, in a colour that tells its lines from others'.
    pub(crate) fn host_of_many(self, number: usize, text: impl Display) -> String {
        // No red, which is for errors, and no colour that is hard to read on black or white.
        const COLOURS: [AnsiColor; 8] = [
            AnsiColor::Cyan,
            AnsiColor::Green,
            AnsiColor::Magenta,
            AnsiColor::Yellow,
            AnsiColor::Blue,
            AnsiColor::BrightCyan,
            AnsiColor::BrightGreen,
            AnsiColor::BrightMagenta,
        ];
        let colour = COLOURS[number.saturating_sub(1) % COLOURS.len()];
        self.paint(colour.on_default(), text)
    }

    /// Returns text in the colour of success.
    pub(crate) fn good(self, text: impl Display) -> String {
        self.paint(AnsiColor::Green.on_default(), text)
    }

    /// Returns text in the colour of failures, and of lines of standard error.
    pub(crate) fn bad(self, text: impl Display) -> String {
        self.paint(AnsiColor::Red.on_default(), text)
    }

    fn paint(self, style: Style, text: impl Display) -> String {
        match self {
            Self::On => format!("{style}{text}{style:#}"),
            Self::Off => text.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let xterm = Some(OsStr::new("xterm"));
        assert_eq!(Colours::choose(true, None, xterm), Colours::On);
        assert_eq!(Colours::choose(true, Some(OsStr::new("")), xterm), Colours::On);
        assert_eq!(Colours::choose(true, Some(OsStr::new("1")), xterm), Colours::Off);
        assert_eq!(
            Colours::choose(true, None, Some(OsStr::new("dumb"))),
            Colours::Off
        );
        assert_eq!(Colours::choose(true, None, None), Colours::Off);
        assert_eq!(Colours::choose(false, None, xterm), Colours::Off);
        assert_eq!(Colours::Off.bad("x"), "x");
        assert_eq!(Colours::On.good("x"), "\u{1b}[32mx\u{1b}[0m");
    }
}
