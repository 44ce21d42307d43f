//! The command line that `~C` opens, in ssh's words (clientloop.c, `process_cmdline`).

use trunkline_control::protocol::{ForwardKind, ForwardRequest};

/// The prompt before the line.
pub(crate) const PROMPT: &str = "\r\nssh> ";

/// The parsed request of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandLine {
    Empty,
    /// The list of commands.
    Help,
    /// A change of the forwardings.
    Forward(ForwardRequest),
    /// A command for this machine's shell.
    Local(String),
    /// An unknown command.
    Invalid,
}

impl CommandLine {
    /// Parses a line. `local_commands` is PermitLocalCommand.
    pub(crate) fn parse(line: &str, local_commands: bool) -> Self {
        let line = line.trim();
        if let Some(command) = line.strip_prefix('!').filter(|_| local_commands) {
            return Self::Local(command.to_owned());
        }
        let line = line.strip_prefix('-').unwrap_or(line);
        let (cancel, line) = match line.strip_prefix('K') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let mut rest = line.chars();
        let kind = match rest.next() {
            None if !cancel => return Self::Empty,
            Some('h' | 'H' | '?') if !cancel => return Self::Help,
            Some('L') => ForwardKind::Local,
            Some('R') => ForwardKind::Remote,
            Some('D') => ForwardKind::Dynamic,
            _ => return Self::Invalid,
        };
        let specification = rest.as_str().trim();
        if specification.is_empty() {
            return Self::Invalid;
        }
        Self::Forward(match cancel {
            true => ForwardRequest::Cancel(kind, specification.to_owned()),
            false => ForwardRequest::Open(kind, specification.to_owned()),
        })
    }

    /// Returns the list of commands.
    pub(crate) fn help(local_commands: bool) -> String {
        let local = if local_commands {
            "\n  !command                             run a command on this machine"
        } else {
            ""
        };
        format!(
            "Commands:
  -L[bind_address:]port:host:hostport  forward a port of this machine
  -R[bind_address:]port:host:hostport  forward a port of the server
  -D[bind_address:]port                forward a port of this machine to wherever a SOCKS client asks
  -KL[bind_address:]port               end a forwarding from this machine
  -KR[bind_address:]port               end a forwarding from the server
  -KD[bind_address:]port               end a SOCKS forwarding{local}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CommandLine::{Empty, Forward, Help, Invalid, Local};
    use ForwardKind::{Dynamic, Remote};
    use ForwardRequest::{Cancel, Open};

    #[test]
    fn lines_are_read_as_ssh_reads_them() {
        for (line, meaning) in [
            ("", Empty),
            (" - ", Empty),
            ("-h", Help),
            ("?", Help),
            (
                " -L 8080:db:80 ",
                Forward(Open(ForwardKind::Local, "8080:db:80".into())),
            ),
            ("R0:localhost:22", Forward(Open(Remote, "0:localhost:22".into()))),
            ("-D1080", Forward(Open(Dynamic, "1080".into()))),
            ("-KD 1080", Forward(Cancel(Dynamic, "1080".into()))),
            ("-KR", Invalid),
            ("-L", Invalid),
            ("-K", Invalid),
            ("-Kh", Invalid),
            ("x", Invalid),
            ("!date", Invalid),
        ] {
            assert_eq!(CommandLine::parse(line, false), meaning, "{line:?}");
        }
        assert_eq!(CommandLine::parse("!date", true), Local("date".into()));
    }

    #[test]
    fn the_help_lists_what_works() {
        for (line, permitted) in [("!command", true), ("!command", false)] {
            assert_eq!(CommandLine::help(permitted).contains(line), permitted);
        }
    }
}
