//! ssh's escape sequences: at the start of a line, the escape character turns the next one into a request to the
//! client. Pure: takes bytes, returns bytes to forward and [`Action`]s. The reference is OpenSSH's `process_escapes`,
//! also for the text shown.

use std::fmt::Write;

/// Extracts the escape sequences from the user's input.
#[derive(Debug, Clone)]
pub struct EscapeFilter {
    escape: Option<u8>,
    available: Available,
    /// True after a newline, and before the first byte.
    at_line_start: bool,
    /// True while an escape character is held back.
    pending: bool,
}

/// The available sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Available {
    /// The escapes of a client with its own connection. `command_line` is `EnableEscapeCommandline`.
    Own {
        /// True if `~C` opens a command line.
        command_line: bool,
    },
    /// The escapes of a session on a shared connection, without the ones for the client's own process (clientloop.c,
    /// `process_escapes`, "noescape").
    Shared,
}

/// The next step for typed input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends these bytes to the server.
    Forward(Vec<u8>),
    /// Performs this action.
    Act(Action),
}

/// The action of an escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `~.`: end the session. Later input is not read.
    Disconnect,
    /// `~^Z`: suspend the client.
    Suspend,
    /// `~B`: send a break (RFC 4335).
    Break,
    /// `~R`: exchange keys again.
    Rekey,
    /// `~#`: list the forwarded connections.
    ListForwards,
    /// `~&`: go to the background and wait there for forwarded connections. Later input is not read; the server is sent
    /// an end-of-file character (4), as ssh does.
    Background,
    /// `~C`: open a command line to add and cancel forwards.
    CommandLine,
    /// `~C` while `EnableEscapeCommandline` is off, its default.
    CommandLineDisabled,
    /// `~?`: print [`EscapeFilter::help`].
    Help,
    /// A sequence that a shared session does not have.
    Unavailable(u8),
}

impl EscapeFilter {
    /// Returns a filter for a new session with this escape character, if any.
    pub fn new(escape: Option<u8>, available: Available) -> Self {
        Self {
            escape,
            available,
            at_line_start: true,
            pending: false,
        }
    }

    /// Takes input in pieces of any size, and returns the steps in order. A final escape character is held back until
    /// the next call.
    pub fn feed(&mut self, typed: &[u8]) -> Vec<Step> {
        let Some(escape) = self.escape else {
            return if typed.is_empty() {
                Vec::new()
            } else {
                vec![Step::Forward(typed.to_vec())]
            };
        };
        let mut steps = Vec::new();
        let mut forward = Vec::new();
        for &byte in typed {
            if std::mem::take(&mut self.pending) {
                if let Some(action) = self.action(byte) {
                    // Still at the start of a line: another sequence may follow.
                    if !forward.is_empty() {
                        steps.push(Step::Forward(std::mem::take(&mut forward)));
                    }
                    steps.push(Step::Act(action));
                    if matches!(action, Action::Disconnect | Action::Background) {
                        return steps;
                    }
                    continue;
                }
                if byte != escape {
                    forward.push(escape);
                }
            } else if self.at_line_start && byte == escape {
                self.pending = true;
                continue;
            }
            self.at_line_start = matches!(byte, b'\r' | b'\n');
            forward.push(byte);
        }
        if !forward.is_empty() {
            steps.push(Step::Forward(forward));
        }
        steps
    }

    /// Returns the list for `~?`, with a terminal's line ends; empty without an escape character.
    pub fn help(&self) -> String {
        let Some(escape) = self.escape else {
            return String::new();
        };
        let escape = caret(escape);
        let mut text = format!("{escape}?\r\nSupported escape sequences:\r\n");
        for (character, meaning) in HELP {
            let shown = match self.available {
                Available::Own { command_line } => *character != "C" || command_line,
                Available::Shared => SHARED.contains(character),
            };
            if shown {
                // Writing to a String cannot fail.
                _ = write!(text, " {escape}{character:<3} - {meaning}\r\n");
            }
        }
        _ = write!(
            text,
            " {escape}{escape:<3} - send the escape character by typing it twice\r\n\
             (Note that escapes are only recognized immediately after newline.)\r\n"
        );
        text
    }

    /// Returns the text to show for an `action`, with its line end. Empty if the action prints its own text
    /// ([`Action::Help`]) or none.
    pub fn echo(&self, action: Action) -> String {
        let Some(escape) = self.escape else {
            return String::new();
        };
        let escape = caret(escape);
        match action {
            Action::Disconnect => format!("{escape}.\r\n"),
            Action::Suspend => format!("{escape}^Z [suspend ssh]\r\n"),
            Action::Break => format!("{escape}B\r\n"),
            Action::ListForwards => format!("{escape}#\r\n"),
            Action::Background => format!("{escape}& [backgrounded]\r\n"),
            Action::CommandLineDisabled => "commandline disabled\r\n".to_owned(),
            Action::Unavailable(byte) => {
                format!(
                    "{escape}{} escape not available to multiplexed sessions\r\n",
                    caret(byte)
                )
            }
            Action::Rekey | Action::CommandLine | Action::Help => String::new(),
        }
    }

    fn action(&self, byte: u8) -> Option<Action> {
        let own = match byte {
            b'.' => Action::Disconnect,
            CONTROL_Z => Action::Suspend,
            b'B' => Action::Break,
            b'R' => Action::Rekey,
            // The program that makes a connection decides what is logged; a session has no log of its own.
            b'v' | b'V' => Action::Unavailable(byte),
            b'#' => Action::ListForwards,
            b'&' => Action::Background,
            b'C' if self.available == (Available::Own { command_line: true }) => Action::CommandLine,
            b'C' => Action::CommandLineDisabled,
            b'?' => Action::Help,
            _ => return None,
        };
        let shared = matches!(
            own,
            Action::Disconnect | Action::Break | Action::Rekey | Action::ListForwards | Action::Help
        );
        Some(match self.available {
            Available::Shared if !shared => Action::Unavailable(byte),
            _ => own,
        })
    }
}

const CONTROL_Z: u8 = 26;

/// ssh's list, in its words and order (clientloop.c, `esc_txt`), without `~V/v`. As on a connection that ssh shares,
/// `~.` ends one session.
const HELP: &[(&str, &str)] = &[
    (".", "terminate session"),
    ("B", "send a BREAK to the remote system"),
    ("C", "open a command line"),
    ("R", "request rekey"),
    ("^Z", "suspend ssh"),
    ("#", "list forwarded connections"),
    ("&", "background ssh (when waiting for connections to terminate)"),
    ("?", "this message"),
];

/// The part of [`HELP`] for shared sessions.
const SHARED: &[&str] = &[".", "#", "B", "R", "?"];

/// Returns the usual notation of a byte: `~`, or `^A` for a control character.
fn caret(byte: u8) -> String {
    match byte {
        0..32 => format!("^{}", char::from(byte | 64)),
        127 => "^?".to_owned(),
        _ => char::from(byte).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TILDE: Option<u8> = Some(b'~');
    const PLAIN: Available = Available::Own { command_line: false };
    const FULL: Available = Available::Own { command_line: true };

    fn steps(typed: &[u8]) -> Vec<Step> {
        EscapeFilter::new(TILDE, PLAIN).feed(typed)
    }

    fn forward(bytes: &[u8]) -> Step {
        Step::Forward(bytes.to_vec())
    }

    #[test]
    fn a_sequence_counts_only_at_the_start_of_a_line() {
        assert_eq!(steps(b"~."), [Step::Act(Action::Disconnect)]);
        assert_eq!(steps(b"a~."), [forward(b"a~.")]);
        assert_eq!(
            steps(b"ls\r~?x"),
            [forward(b"ls\r"), Step::Act(Action::Help), forward(b"x")]
        );
        assert_eq!(
            steps(b"\n~#~B"),
            [
                forward(b"\n"),
                Step::Act(Action::ListForwards),
                Step::Act(Action::Break)
            ]
        );
        assert_eq!(steps(b"~~~."), [forward(b"~~.")]);
        assert_eq!(steps(b"~x~."), [forward(b"~x~.")]);
        assert_eq!(steps(b"~\r~R"), [forward(b"~\r"), Step::Act(Action::Rekey)]);
    }

    #[test]
    fn every_sequence_has_its_action() {
        for (typed, action) in [
            (b"~.", Action::Disconnect),
            (b"~\x1a", Action::Suspend),
            (b"~B", Action::Break),
            (b"~R", Action::Rekey),
            (b"~v", Action::Unavailable(b'v')),
            (b"~V", Action::Unavailable(b'V')),
            (b"~#", Action::ListForwards),
            (b"~&", Action::Background),
            (b"~C", Action::CommandLineDisabled),
            (b"~?", Action::Help),
        ] {
            assert_eq!(steps(typed), [Step::Act(action)]);
        }
        assert_eq!(
            EscapeFilter::new(TILDE, FULL).feed(b"~C"),
            [Step::Act(Action::CommandLine)]
        );
        assert_eq!(
            EscapeFilter::new(Some(1), PLAIN).feed(b"\x01.x"),
            [Step::Act(Action::Disconnect)]
        );
    }

    #[test]
    fn a_shared_session_has_only_what_concerns_itself() {
        let mut filter = EscapeFilter::new(TILDE, Available::Shared);
        assert_eq!(filter.feed(b"~B"), [Step::Act(Action::Break)]);
        let unavailable = Action::Unavailable(CONTROL_Z);
        assert_eq!(filter.feed(b"~\x1a"), [Step::Act(unavailable)]);
        assert_eq!(
            filter.echo(unavailable),
            "~^Z escape not available to multiplexed sessions\r\n"
        );
        let behind = [Step::Act(Action::Unavailable(b'&')), forward(b"x")];
        assert_eq!(filter.feed(b"~&x"), behind);
        let help = filter.help();
        assert!(help.contains(" ~. ") && !help.contains("~&"), "{help}");
    }

    #[test]
    fn nothing_behind_the_end_of_the_session_is_read() {
        assert_eq!(
            steps(b"a\r~.rm -rf x\r"),
            [forward(b"a\r"), Step::Act(Action::Disconnect)]
        );
        assert_eq!(steps(b"~&x"), [Step::Act(Action::Background)]);
    }

    #[test]
    fn the_help_lists_what_works() {
        let help = EscapeFilter::new(TILDE, PLAIN).help();
        assert!(!help.contains("~C") && !help.contains("~v") && !help.contains("~V"));
        assert!(help.lines().all(|line| !line.contains("\n")));
        for (character, _) in HELP.iter().filter(|(character, _)| *character != "C") {
            assert!(
                help.contains(&format!(" ~{character} ")),
                "~{character} is listed"
            );
        }
        assert!(EscapeFilter::new(Some(1), FULL).help().contains(" ^AC "));
        assert_eq!(EscapeFilter::new(None, FULL).help(), "");
    }

    #[test]
    fn the_user_sees_which_sequence_was_taken() {
        let filter = EscapeFilter::new(TILDE, PLAIN);
        assert_eq!(filter.echo(Action::Disconnect), "~.\r\n");
        assert_eq!(
            filter.echo(Action::CommandLineDisabled),
            "commandline disabled\r\n"
        );
        assert_eq!(filter.echo(Action::Help), "");
    }

    /// Returns a filter's steps for `typed` in pieces of these lengths, with neighbours joined.
    fn in_pieces(filter: &mut EscapeFilter, typed: &[u8], lengths: &[usize]) -> Vec<Step> {
        let mut joined: Vec<Step> = Vec::new();
        let mut rest = typed;
        let mut lengths = lengths.iter().cycle();
        while !rest.is_empty() {
            let length = lengths
                .next()
                .map_or(rest.len(), |&length| length.min(rest.len()));
            let (piece, behind) = rest.split_at(length);
            rest = behind;
            for step in filter.feed(piece) {
                match (joined.last_mut(), step) {
                    (Some(Step::Forward(before)), Step::Forward(more)) => before.extend(more),
                    (_, step @ Step::Act(Action::Disconnect | Action::Background)) => {
                        joined.push(step);
                        return joined;
                    }
                    (_, step) => joined.push(step),
                }
            }
        }
        joined
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn without_the_escape_character_bytes_pass_unchanged(
            typed in prop::collection::vec(any::<u8>(), 1..200),
            lengths in prop::collection::vec(1..20usize, 1..5),
        ) {
            let transparent = in_pieces(&mut EscapeFilter::new(None, FULL), &typed, &lengths);
            prop_assert_eq!(transparent, [forward(&typed)]);
            let plain: Vec<u8> = typed.into_iter().filter(|&byte| byte != b'~').chain(*b"x").collect();
            let filtered = in_pieces(&mut EscapeFilter::new(TILDE, FULL), &plain, &lengths);
            prop_assert_eq!(filtered, [forward(&plain)]);
        }

        #[test]
        fn chunking_changes_nothing(
            typed in prop::collection::vec(prop::sample::select(b"~~~\r\n.a?B&C".to_vec()), 0..40),
            lengths in prop::collection::vec(1..5usize, 1..5),
        ) {
            let whole = in_pieces(&mut EscapeFilter::new(TILDE, FULL), &typed, &[typed.len().max(1)]);
            let pieces = in_pieces(&mut EscapeFilter::new(TILDE, FULL), &typed, &lengths);
            prop_assert_eq!(whole, pieces);
        }
    }
}
