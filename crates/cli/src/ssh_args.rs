//! The command line of ssh(1), read exactly as OpenSSH reads it.
//!
//! There are two levels. [`LowArgs`] is what was typed: options in order, a destination, the words of a
//! command. [`SshArgs`] is what it means, after OpenSSH's rules of precedence. `ssh` reads its options with
//! the BSD `getopt` of its own compatibility library, stops at the first word that is no option, takes that
//! word for the destination, and then reads options again up to the command (`main()` in OpenSSH's ssh.c);
//! [`LowArgs::parse`] does the same.
//!
//! Values that `ssh -G` sees as well (ports, ciphers, forwards, `-o` lines) are not judged here: resolving
//! the host reports them in the words of the ssh that is installed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use trunkline_request::LogLevel;

/// What a command line of `ssh` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SshArgs {
    /// The options that `ssh -G` must see, in order, to resolve the destination as the whole line would have
    /// it: `ssh -G` + these + `--` + [`destination`](Self::destination).
    ///
    /// Left out is what has a field here and does not touch the connection, so that lines which differ in it
    /// share a cached answer. Those fields overrule what `ssh -G` prints. So does the absence of a command: a
    /// host whose configuration holds `Match command` or `Match sessiontype` (OpenSSH 10) has to be resolved
    /// with the command and, for a subsystem, `-s` appended.
    pub(crate) config_args: Vec<OsString>,
    /// `host`, `user@host` or `ssh://[user@]host[:port]` as typed. Empty only when the line needs none and
    /// [`needs_system_ssh`](Self::needs_system_ssh) gives a reason.
    pub(crate) destination: OsString,
    /// The words after the destination, joined by one space as ssh does, or `None` for a login shell. The
    /// name of the subsystem when [`subsystem`](Self::subsystem) is set.
    pub(crate) command: Option<OsString>,
    /// `-s` or `-o SessionType=subsystem`: the command names a subsystem.
    pub(crate) subsystem: bool,
    /// `-t`, `-T` and `-o RequestTTY`. [`TtyRequest::Auto`] leaves it to the configuration.
    pub(crate) tty: TtyRequest,
    /// `-n` (or `-f`, which implies it): read nothing from standard input.
    pub(crate) no_stdin: bool,
    /// `-f`: go to the background once authenticated.
    pub(crate) background: bool,
    /// `-N` (or `-W`, which implies it): open no session.
    pub(crate) no_command: bool,
    /// `-W host:port`: join standard input and output to a forwarded connection.
    pub(crate) stdio_forward: Option<OsString>,
    /// `-O command`: a request to a running master.
    pub(crate) mux_command: Option<OsString>,
    /// `-S path`: the control socket, overruling `ControlPath`. `none` is one way to name none.
    pub(crate) control_path: Option<OsString>,
    /// `-Q feature`: list algorithms.
    pub(crate) query: Option<OsString>,
    /// `-G`: print the resolved configuration.
    pub(crate) print_config: bool,
    /// `-V`: print the version.
    pub(crate) version: bool,
    /// `-E file`: append the log to this file.
    pub(crate) log_file: Option<OsString>,
    /// `-y`: log to syslog.
    pub(crate) syslog: bool,
    /// 0 to 3, for `-v`, `-vv` and `-vvv`. Overrules `LogLevel`, and is overruled by [`quiet`](Self::quiet).
    pub(crate) verbosity: u8,
    /// `-q` was the last word about logging. Overrules `LogLevel`.
    pub(crate) quiet: bool,
    /// `-e`, or `None` to leave it to `EscapeChar`.
    pub(crate) escape: Option<EscapeChar>,
    /// Every argument as typed, without the program's name, for handing over to the system's ssh.
    pub(crate) original: Vec<OsString>,
    system_ssh: Option<&'static str>,
}

/// Whether a terminal is asked for on the server, as `RequestTTY` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TtyRequest {
    /// For a login shell only, unless the configuration says otherwise.
    #[default]
    Auto,
    /// Never.
    No,
    /// When standard input is a terminal.
    Yes,
    /// Even when standard input is not a terminal.
    Force,
}

/// The character that starts an escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EscapeChar {
    /// No character does: the session is transparent.
    None,
    /// This byte does, after a newline.
    Byte(u8),
}

/// A command line that ssh refuses. [`Display`](std::fmt::Display) gives what to print on standard error, the
/// synopsis included where ssh prints it; the exit status is [`UsageError::EXIT_STATUS`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UsageError {
    /// An option that ssh does not have.
    #[error("unknown option -- {0}\n{USAGE}")]
    UnknownOption(char),
    /// An option at the end of the line, without its value.
    #[error("option requires an argument -- {0}\n{USAGE}")]
    MissingValue(char),
    /// No host was named, or one with an empty user.
    #[error("{USAGE}")]
    NoDestination,
    /// `-s` without the name of a subsystem.
    #[error("-s needs the name of a subsystem after the destination.\n{USAGE}")]
    NoSubsystem,
    /// `-e` with something that is no character.
    #[error("Bad escape character '{0}'.")]
    BadEscapeCharacter(String),
    /// `-N` and `-s`, or either against `-o SessionType`.
    #[error("-{0} conflicts with an earlier option: use only one of -N, -s and SessionType.")]
    SessionTypeConflict(char),
    /// `-y` and `-E` in one line.
    #[error("-y and -E cannot be used together: the log goes either to syslog or to a file.")]
    TwoLogs,
    /// `-1`.
    #[error("SSH protocol version 1 is not supported; remove -1.")]
    ProtocolOne,
}

impl UsageError {
    /// What ssh exits with after any error of its own.
    pub(crate) const EXIT_STATUS: u8 = 255;
}

/// The synopsis of ssh(1).
pub(crate) const USAGE: &str = "\
usage: ssh [-46AaCfGgKkMNnqsTtVvXxYy] [-B bind_interface] [-b bind_address]
           [-c cipher_spec] [-D [bind_address:]port] [-E log_file]
           [-e escape_char] [-F configfile] [-I pkcs11] [-i identity_file]
           [-J destination] [-L address] [-l login_name] [-m mac_spec]
           [-O ctl_cmd] [-o option] [-P tag] [-p port] [-Q query_option]
           [-R address] [-S ctl_path] [-W host:port]
           [-w local_tun[:remote_tun]] destination [command [argument ...]]";

impl SshArgs {
    /// Reads the arguments of `ssh`, without the program's name.
    ///
    /// # Errors
    /// [`UsageError`] where ssh itself would print its usage or give up before reading its configuration.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let original: Vec<OsString> = arguments.into_iter().collect();
        Meaning::of(LowArgs::parse(&original)?, original)
    }

    /// Why only the system's own ssh can do what was typed, in a phrase that completes "handed to the
    /// system's ssh: …".
    ///
    /// This is about the command line alone; the resolved configuration may hold further reasons.
    pub(crate) fn needs_system_ssh(&self) -> Option<&'static str> {
        self.system_ssh
    }

    /// What overrules `LogLevel`.
    pub(crate) fn log_level(&self) -> Option<LogLevel> {
        match self.verbosity {
            _ if self.quiet => Some(LogLevel::Quiet),
            0 => None,
            1 => Some(LogLevel::Debug1),
            2 => Some(LogLevel::Debug2),
            _ => Some(LogLevel::Debug3),
        }
    }
}

/// What was typed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct LowArgs {
    /// In the order typed.
    options: Vec<LowOption>,
    destination: Option<OsString>,
    /// The words after the destination and the options behind it.
    command: Vec<OsString>,
}

/// One option as typed: `-v`, or `-p 22`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LowOption {
    letter: u8,
    /// Present exactly for the letters that take one.
    value: Option<OsString>,
    /// It stood behind the destination.
    behind_destination: bool,
}

/// The letters without a value. `1` and `2` are relics that ssh still reads.
const SWITCHES: &[u8] = b"1246AaCfGgKkMNnqsTtVvXxYy";
/// The letters with one.
const VALUED: &[u8] = b"BbcDEeFIiJLlmOopQRSWw";

impl LowArgs {
    fn parse(arguments: &[OsString]) -> Result<Self, UsageError> {
        let mut low = Self::default();
        let mut next = 0;
        loop {
            let after_options = low.read_options(arguments, next)?;
            next = after_options;
            if low.ends_the_line() {
                return Ok(low);
            }
            // ssh looks at the word before the one getopt stopped at, whatever it was: in `ssh -l -- host -v`
            // the user is "--", and no option is read behind the host.
            let terminated = next > 0 && arguments[next - 1] == "--";
            if low.destination.is_some() || next >= arguments.len() {
                break;
            }
            low.destination = Some(arguments[next].clone());
            next += 1;
            if terminated || next >= arguments.len() {
                break;
            }
        }
        low.command = arguments[next..].to_vec();
        Ok(low)
    }

    /// Reads options from `next` on, and returns the index of the first word that is none. As BSD getopt:
    /// words are not reordered, `--` is skipped, a lone `-` is a word, and so is a cluster that ends in `-`.
    fn read_options(&mut self, arguments: &[OsString], mut next: usize) -> Result<usize, UsageError> {
        let behind_destination = self.destination.is_some();
        while let Some(word) = arguments.get(next) {
            let Some(cluster) = word.as_bytes().strip_prefix(b"-").filter(|rest| !rest.is_empty()) else {
                break;
            };
            if cluster == b"-" {
                return Ok(next + 1);
            }
            let mut letters = cluster;
            while let Some((&letter, rest)) = letters.split_first() {
                letters = rest;
                if letter == b'-' && letters.is_empty() {
                    return Ok(next);
                }
                let value = if VALUED.contains(&letter) {
                    let value = if letters.is_empty() {
                        next += 1;
                        arguments
                            .get(next)
                            .cloned()
                            .ok_or(UsageError::MissingValue(letter.into()))?
                    } else {
                        OsStr::from_bytes(letters).to_owned()
                    };
                    letters = b"";
                    Some(value)
                } else if SWITCHES.contains(&letter) || letter == b'P' {
                    None
                } else {
                    return Err(UsageError::UnknownOption(letter.into()));
                };
                self.options.push(LowOption {
                    letter,
                    value,
                    behind_destination,
                });
                if self.ends_the_line() {
                    return Ok(next + 1);
                }
            }
            next += 1;
        }
        Ok(next)
    }

    /// The last option read makes the rest of the line meaningless to us. `-V` and `-Q` print and exit where
    /// they stand. `-P` was a switch without effect up to OpenSSH 9.3 and takes a tag from 9.4 on, so only
    /// the ssh that is installed can tell the destination from the tag.
    fn ends_the_line(&self) -> bool {
        self.options
            .last()
            .is_some_and(|option| matches!(option.letter, b'V' | b'Q' | b'P'))
    }
}

/// [`SshArgs`] in the making, with the state that OpenSSH's rules of precedence need.
struct Meaning {
    args: SshArgs,
    tty: Option<TtyRequest>,
    session: Option<Session>,
    /// `Some` once a switch or an `-o` line has settled it; switches overrule, `-o` lines do not.
    no_stdin: Option<bool>,
    background: Option<bool>,
    x11: bool,
    /// The first ControlMaster and ControlPath of the `-o` lines.
    control_master: Option<String>,
    control_path: Option<String>,
}

/// The values of `SessionType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    Default,
    None,
    Subsystem,
}

impl Meaning {
    fn of(low: LowArgs, original: Vec<OsString>) -> Result<SshArgs, UsageError> {
        let ends_the_line = low.ends_the_line();
        let mut meaning = Self::nothing(original);
        let mut destination_read = false;
        for option in &low.options {
            if option.behind_destination && !destination_read {
                meaning.pin_destination(low.destination.as_deref());
                destination_read = true;
            }
            meaning.option(option)?;
        }
        if !ends_the_line {
            meaning.args.destination = low.destination.ok_or(UsageError::NoDestination)?;
            let (user, _) = user_and_port(&meaning.args.destination);
            if user.is_some_and(|user| user.is_empty()) {
                return Err(UsageError::NoDestination);
            }
        }
        if !low.command.is_empty() {
            meaning.args.command = Some(low.command.join(OsStr::new(" ")));
        }
        meaning.finish(ends_the_line)
    }

    fn nothing(original: Vec<OsString>) -> Self {
        let args = SshArgs {
            config_args: Vec::new(),
            destination: OsString::new(),
            command: None,
            subsystem: false,
            tty: TtyRequest::Auto,
            no_stdin: false,
            background: false,
            no_command: false,
            stdio_forward: None,
            mux_command: None,
            control_path: None,
            query: None,
            print_config: false,
            version: false,
            log_file: None,
            syslog: false,
            verbosity: 0,
            quiet: false,
            escape: None,
            original,
            system_ssh: None,
        };
        Self {
            args,
            tty: None,
            session: None,
            no_stdin: None,
            background: None,
            x11: false,
            control_master: None,
            control_path: None,
        }
    }

    /// The first user and the first port win, and a destination takes part in that race where it stands: `ssh
    /// u@h -l x` logs in as u. `ssh -G` will get its options in front, so the destination's own are put in
    /// front of those.
    fn pin_destination(&mut self, destination: Option<&OsStr>) {
        let (user, port) = destination.map(user_and_port).unwrap_or_default();
        if let Some(user) = user {
            self.resolve_with(b'l', Some(&user));
        }
        if let Some(port) = port {
            self.resolve_with(b'p', Some(&port));
        }
    }

    fn option(&mut self, LowOption { letter, value, .. }: &LowOption) -> Result<(), UsageError> {
        let value = value.as_ref();
        match letter {
            b'1' => return Err(UsageError::ProtocolOne),
            b'2' => {}
            // What decides who talks to whom, and over what.
            b'4' | b'6' | b'A' | b'a' | b'B' | b'b' | b'C' | b'c' | b'D' | b'F' | b'g' | b'i' | b'J'
            | b'k' | b'L' | b'l' | b'm' | b'p' | b'R' => self.resolve_with(*letter, value),
            b'o' => self.directive(value.map_or(OsStr::new(""), OsString::as_os_str)),
            b'W' => {
                // Resolved with, because it turns on ClearAllForwardings and ExitOnForwardFailure where they
                // are unset.
                self.resolve_with(*letter, value);
                self.args.stdio_forward = value.cloned();
                self.session = Some(Session::None);
                self.tty = Some(TtyRequest::No);
            }
            b'N' => {
                self.resolve_with(*letter, None);
                self.session_type(Session::None, 'N')?;
                self.tty = Some(TtyRequest::No);
            }
            // What goes on inside the session, or around it.
            b's' => self.session_type(Session::Subsystem, 's')?,
            b't' if self.tty == Some(TtyRequest::Yes) => self.tty = Some(TtyRequest::Force),
            b't' => self.tty = Some(TtyRequest::Yes),
            b'T' => self.tty = Some(TtyRequest::No),
            b'n' => self.no_stdin = Some(true),
            b'f' => (self.background, self.no_stdin) = (Some(true), Some(true)),
            b'e' => self.args.escape = Some(escape_char(value.map_or(b"", |v| v.as_bytes()))?),
            b'E' => self.args.log_file = value.cloned(),
            b'q' => self.args.quiet = true,
            b'v' if self.args.quiet && self.args.verbosity > 0 => {}
            b'v' => {
                self.args.quiet = false;
                self.args.verbosity = (self.args.verbosity + 1).min(3);
            }
            // What only the system's ssh does.
            b'G' => {
                self.args.print_config = true;
                self.needs("-G prints the configuration as ssh resolves it");
            }
            b'O' => {
                self.args.mux_command = value.cloned();
                self.needs("-O speaks to a ControlMaster of ssh's own");
            }
            b'Q' => {
                self.args.query = value.cloned();
                self.needs("-Q lists what ssh supports");
            }
            b'V' => {
                self.args.version = true;
                self.needs("-V prints ssh's version");
            }
            b'y' => {
                self.args.syslog = true;
                self.needs("-y sends ssh's log to syslog");
            }
            b'I' => {
                self.resolve_with(*letter, value);
                self.needs("-I uses keys of a PKCS#11 provider");
            }
            b'K' => {
                self.resolve_with(*letter, None);
                self.needs("-K authenticates with GSSAPI");
            }
            b'w' => {
                self.resolve_with(*letter, value);
                self.needs("-w forwards a tunnel device");
            }
            b'X' | b'Y' | b'x' => {
                self.resolve_with(*letter, None);
                self.x11 = *letter != b'x';
            }
            b'S' => self.args.control_path = value.cloned(),
            b'M' => self.needs("-M makes ssh the master of its own control socket"),
            b'P' => self.needs("-P means different things to different versions of ssh"),
            other => return Err(UsageError::UnknownOption((*other).into())),
        }
        Ok(())
    }

    /// An `-o` line. Those that a switch can settle too are followed here, because the first to speak wins.
    fn directive(&mut self, line: &OsStr) {
        let parsed = line.to_str().and_then(keyword_and_value);
        let value = parsed.as_ref().map_or("", |(_, value)| value.as_str());
        let yes = matches!(value, "yes" | "true");
        match parsed.as_ref().map(|(keyword, _)| keyword.as_str()) {
            Some("requesttty") if self.tty.is_none() => {
                self.tty = match value {
                    "force" => Some(TtyRequest::Force),
                    "no" | "false" => Some(TtyRequest::No),
                    "auto" => Some(TtyRequest::Auto),
                    _ if yes => Some(TtyRequest::Yes),
                    _ => None,
                };
            }
            Some("controlmaster") => _ = self.control_master.get_or_insert_with(|| value.into()),
            Some("controlpath") => _ = self.control_path.get_or_insert_with(|| value.into()),
            Some("stdinnull") => _ = self.no_stdin.get_or_insert(yes),
            Some("forkafterauthentication") => {
                self.background.get_or_insert(yes);
                if yes {
                    // Not resolved with: `ssh -G` refuses to go to the background without a command.
                    return;
                }
            }
            Some("sessiontype") => {
                let session = match value {
                    "none" => Session::None,
                    "subsystem" => Session::Subsystem,
                    _ => Session::Default,
                };
                self.session.get_or_insert(session);
                if session == Session::Subsystem {
                    // Not resolved with: `ssh -G` refuses a subsystem without its name.
                    return;
                }
            }
            _ => {}
        }
        self.resolve_with(b'o', Some(&line.to_owned()));
    }

    fn session_type(&mut self, wanted: Session, letter: char) -> Result<(), UsageError> {
        if *self.session.get_or_insert(wanted) == wanted {
            Ok(())
        } else {
            Err(UsageError::SessionTypeConflict(letter))
        }
    }

    fn resolve_with(&mut self, letter: u8, value: Option<&OsString>) {
        self.args.config_args.push(OsString::from_vec(vec![b'-', letter]));
        self.args.config_args.extend(value.cloned());
    }

    fn needs(&mut self, reason: &'static str) {
        self.args.system_ssh.get_or_insert(reason);
    }

    fn finish(mut self, ends_the_line: bool) -> Result<SshArgs, UsageError> {
        if self.args.syslog && self.args.log_file.is_some() && !ends_the_line {
            return Err(UsageError::TwoLogs);
        }
        if self.x11 {
            self.needs("-X and -Y forward X11");
        }
        if self.args.control_path.as_ref().is_some_and(|path| path != "none") {
            self.needs("-S names a control socket of ssh's own");
        }
        // An automatic master is for sharing, which is what happens here anyway.
        let master = self.control_master.as_deref().unwrap_or("no");
        let is_automatic = matches!(master, "auto" | "autoask");
        let has_path = self.control_path.as_ref().is_some_and(|path| path != "none");
        if matches!(master, "yes" | "true" | "ask") {
            self.needs("-o ControlMaster makes ssh the master of its own control socket");
        } else if has_path && !is_automatic && self.args.control_path.is_none() {
            self.needs("-o ControlPath names a control socket of ssh's own");
        }
        self.args.tty = self.tty.unwrap_or_default();
        self.args.no_stdin = self.no_stdin == Some(true);
        self.args.background = self.background == Some(true);
        self.args.no_command = self.session == Some(Session::None);
        self.args.subsystem = self.session == Some(Session::Subsystem);
        if self.args.subsystem && self.args.command.is_none() && !ends_the_line {
            return Err(UsageError::NoSubsystem);
        }
        Ok(self.args)
    }
}

/// `-e`: one character, `^` and a letter for a control character, or `none`.
fn escape_char(value: &[u8]) -> Result<EscapeChar, UsageError> {
    match value {
        [b'^', letter @ 64..128] => Ok(EscapeChar::Byte(letter & 31)),
        [byte] => Ok(EscapeChar::Byte(*byte)),
        b"none" => Ok(EscapeChar::None),
        _ => Err(UsageError::BadEscapeCharacter(
            String::from_utf8_lossy(value).into_owned(),
        )),
    }
}

/// Splits a line of ssh_config(5): `User x`, `User=x`, `User = "x"`. The keyword is returned in lower case.
fn keyword_and_value(line: &str) -> Option<(String, String)> {
    let line = line.trim_start();
    let end = line.find(|c: char| c.is_ascii_whitespace() || c == '=' || c == '"')?;
    let (keyword, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim();
    let value = rest
        .strip_prefix('"')
        .and_then(|inner| inner.split('"').next())
        .unwrap_or(rest);
    let value = value.split_ascii_whitespace().next().unwrap_or("");
    Some((keyword.to_ascii_lowercase(), value.to_owned()))
}

/// The user and port that a destination itself names (`parse_ssh_uri` in OpenSSH's misc.c).
fn user_and_port(destination: &OsStr) -> (Option<OsString>, Option<OsString>) {
    let bytes = destination.as_bytes();
    let Some(authority) = bytes.strip_prefix(b"ssh://") else {
        let user = bytes.iter().rposition(|&b| b == b'@').map(|at| &bytes[..at]);
        return (user.map(|user| OsStr::from_bytes(user).to_owned()), None);
    };
    let (user, host) = match authority.iter().position(|&b| b == b'@') {
        Some(at) => (Some(&authority[..at]), &authority[at + 1..]),
        None => (None, authority),
    };
    // Everything from ';' on are connection parameters, which ssh ignores.
    let user = user
        .and_then(|user| user.split(|&b| b == b';').next())
        .map(percent_decoded);
    let host = host.strip_suffix(b"/").unwrap_or(host);
    let after_address = host
        .iter()
        .rposition(|&b| b == b']')
        .map_or(host, |bracket| &host[bracket + 1..]);
    let port = after_address
        .iter()
        .rposition(|&b| b == b':')
        .map(|colon| &after_address[colon + 1..]);
    (
        user,
        port.filter(|port| !port.is_empty())
            .map(|port| OsStr::from_bytes(port).to_owned()),
    )
}

/// RFC 3986 section 2.1. A `%` that starts no pair of hex digits is left for ssh to refuse.
fn percent_decoded(text: &[u8]) -> OsString {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%'
            && let Some(pair) = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok())
            && pair.bytes().all(|b| b.is_ascii_hexdigit())
            && let Ok(value) = u8::from_str_radix(pair, 16)
        {
            decoded.push(value);
            rest = &after[2..];
        } else {
            decoded.push(byte);
        }
    }
    OsString::from_vec(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::process::{Command, Stdio};

    fn parse(words: &[&str]) -> Result<SshArgs, UsageError> {
        SshArgs::parse(words.iter().map(OsString::from))
    }

    /// A line that is a shell's way of writing it: words at spaces, single quotes group.
    fn words(line: &str) -> Vec<OsString> {
        let mut words = Vec::new();
        for (index, part) in line.split('\'').enumerate() {
            if index % 2 == 1 {
                words.push(part.into());
            } else {
                words.extend(part.split_whitespace().map(OsString::from));
            }
        }
        words
    }

    fn read(line: &str) -> SshArgs {
        SshArgs::parse(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn a_line_splits_into_options_destination_and_command_as_in_ssh() {
        let table: &[(&str, &[&str], &str, Option<&str>)] = &[
            ("host", &[], "host", None),
            ("host uptime", &[], "host", Some("uptime")),
            ("-p2222 host", &["-p", "2222"], "host", None),
            ("-vvTp2222 -- host -x", &["-p", "2222"], "host", Some("-x")),
            ("host -l u cmd -x", &["-l", "u"], "host", Some("cmd -x")),
            ("host -- cmd -x", &[], "host", Some("cmd -x")),
            ("-- host -- cmd", &[], "host", Some("-- cmd")),
            ("-oUser=x host", &["-o", "User=x"], "host", None),
            ("-o 'User x' host", &["-o", "User x"], "host", None),
            ("-e none -4A host ls  -l", &["-4", "-A"], "host", Some("ls -l")),
            ("-l -- host -v", &["-l", "--"], "host", Some("-v")),
            ("host 'a  b' c", &[], "host", Some("a  b c")),
            ("u@host -l x", &["-l", "u", "-l", "x"], "u@host", None),
            (
                "ssh://u%40corp@host:44 -p 22",
                &["-l", "u@corp", "-p", "44", "-p", "22"],
                "ssh://u%40corp@host:44",
                None,
            ),
            (
                "-C host -i key -- -weird",
                &["-C", "-i", "key"],
                "host",
                Some("-weird"),
            ),
            ("-2tt host", &[], "host", None),
            ("- x", &[], "-", Some("x")),
            ("-v- x", &[], "-v-", Some("x")),
        ];
        for (line, config_args, destination, command) in table {
            let args = read(line);
            assert_eq!(args.config_args, *config_args, "{line}");
            assert_eq!(args.destination, *destination, "{line}");
            assert_eq!(args.command.as_deref(), command.map(OsStr::new), "{line}");
            assert_eq!(args.original, words(line), "{line}");
        }
    }

    #[test]
    fn switches_settle_what_goes_on_inside_the_session() {
        for (line, tty) in [
            ("host", TtyRequest::Auto),
            ("-t host", TtyRequest::Yes),
            ("-tt host", TtyRequest::Force),
            ("-t host -t", TtyRequest::Force),
            ("-ttt host", TtyRequest::Yes),
            ("-t -T host", TtyRequest::No),
            ("-N host", TtyRequest::No),
            ("-oRequestTTY=yes -t host", TtyRequest::Force),
            ("-t -o 'requesttty no' host", TtyRequest::Yes),
            ("-o RequestTTY=force host", TtyRequest::Force),
        ] {
            assert_eq!(read(line).tty, tty, "{line}");
        }
        for (line, verbosity, quiet) in [
            ("-v -q host", 1, true),
            ("-q -v host", 1, false),
            ("-vvvv host", 3, false),
            ("host", 0, false),
        ] {
            let args = read(line);
            assert_eq!((args.verbosity, args.quiet), (verbosity, quiet), "{line}");
        }
        for (line, escape) in [
            ("-e none host", Some(EscapeChar::None)),
            ("-e ^A host", Some(EscapeChar::Byte(1))),
            ("-e% host", Some(EscapeChar::Byte(b'%'))),
            ("-e ^ host", Some(EscapeChar::Byte(b'^'))),
            ("host", None),
        ] {
            assert_eq!(read(line).escape, escape, "{line}");
        }
        let args = read("-f -s -E log host sftp");
        assert!(args.background && args.no_stdin && args.subsystem && !args.no_command);
        assert_eq!(
            (args.log_file, args.command),
            (Some("log".into()), Some("sftp".into()))
        );
        let args = read("-W db:5432 jump");
        assert!(args.no_command);
        assert_eq!(args.stdio_forward, Some("db:5432".into()));
        assert!(read("-n host").no_stdin && read("-o StdinNull=yes host").no_stdin);
        assert!(!read("-o StdinNull=no host").no_stdin);
        assert!(read("-s -o SessionType=none host sftp").subsystem);
    }

    #[test]
    fn what_only_the_system_ssh_does_is_named() {
        let lines = "-G host|-Q cipher|-V|-I lib.so host|-w 0 host|-X host|-Y host|-M host|-S /s host\
            |-O check host|-y host|-P tag host|-P host|-K host";
        for line in lines.split('|') {
            let args = read(line);
            let reason = args
                .needs_system_ssh()
                .unwrap_or_else(|| panic!("{line} needs the system's ssh"));
            assert!(
                reason.starts_with(&line[..2]) || line.starts_with("-Y"),
                "{line}: {reason}"
            );
            assert_eq!(args.original, words(line));
        }
        let args = read("-O check host");
        assert_eq!(
            (args.mux_command, args.print_config, args.version),
            (Some("check".into()), false, false)
        );
        for line in [
            "-oControlMaster=yes -oControlPath=/p host",
            "-o 'ControlMaster ask' host",
            "-o ControlPath=/p host",
            "-o ControlMaster=no -oControlPath=/p host",
        ] {
            let reason = read(line).needs_system_ssh();
            assert!(
                reason.is_some_and(|reason| reason.starts_with("-o Control")),
                "{line}: {reason:?}"
            );
        }
        assert_eq!(read("-Q cipher").query, Some("cipher".into()));
        assert!(read("-V").version && read("-G host").print_config && read("-y host").syslog);
        for line in [
            "host",
            "-X -x host",
            "-S none host",
            "-S none -o ControlPath=/p host",
            "-o ControlPath=none host",
            "-o ControlMaster=auto -o ControlPath=/p -o ControlPersist=60 host",
            "-o ControlMaster=no -o ControlMaster=yes host",
            "-A -C -J j -L 1:h:2 -t host",
            "-W a:1 host",
        ] {
            assert_eq!(read(line).needs_system_ssh(), None, "{line}");
        }
    }

    #[test]
    fn what_ssh_refuses_is_refused() {
        for (line, error) in [
            ("", UsageError::NoDestination),
            ("-v", UsageError::NoDestination),
            ("@host", UsageError::NoDestination),
            ("ssh://@host", UsageError::NoDestination),
            ("-Z host", UsageError::UnknownOption('Z')),
            ("--help", UsageError::UnknownOption('-')),
            ("host -p", UsageError::MissingValue('p')),
            ("-s host", UsageError::NoSubsystem),
            ("-e ab host", UsageError::BadEscapeCharacter("ab".into())),
            ("-N -s host sftp", UsageError::SessionTypeConflict('s')),
            ("-s -N host sftp", UsageError::SessionTypeConflict('N')),
            (
                "-o SessionType=default -N host",
                UsageError::SessionTypeConflict('N'),
            ),
            ("-y -E log host", UsageError::TwoLogs),
            ("-1 host", UsageError::ProtocolOne),
        ] {
            let words = words(line);
            assert_eq!(SshArgs::parse(words.clone()), Err(error.clone()), "{line}");
            let real = Command::new("ssh")
                .arg("-F/dev/null")
                .args(["-o", "BatchMode=yes", "-G"])
                .args(&words)
                .stdin(Stdio::null())
                .output()
                .expect("this test needs the program ssh (openssh-client)");
            assert_eq!(real.status.code(), Some(UsageError::EXIT_STATUS.into()), "{line}");
            let shows_usage = |text: &str| text.contains("usage: ssh");
            assert_eq!(
                shows_usage(&error.to_string()),
                shows_usage(&String::from_utf8_lossy(&real.stderr)),
                "{line}: usage is shown exactly where ssh shows it"
            );
        }
    }

    #[test]
    fn arguments_need_not_be_text() {
        let odd = OsString::from_vec(b"-o\xff=\xfe".to_vec());
        let args = SshArgs::parse([odd, "h".into(), OsString::from_vec(vec![0xff])]).expect("a valid line");
        assert_eq!(
            args.config_args,
            [OsString::from("-o"), OsString::from_vec(b"\xff=\xfe".to_vec())]
        );
        assert_eq!(args.command, Some(OsString::from_vec(vec![0xff])));
        assert_eq!(
            parse(&["-p", "", "h"]).map(|args| args.config_args),
            Ok(vec!["-p".into(), "".into()])
        );
    }

    /// What `ssh -G` prints for a line, by keyword, or `None` where it refuses the line.
    fn ssh_g<S: AsRef<OsStr>>(arguments: &[S]) -> Option<BTreeMap<String, Vec<String>>> {
        let output = Command::new("ssh")
            .args(["-F/dev/null", "-G"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("this test needs the program ssh (openssh-client)");
        if !output.status.success() {
            return None;
        }
        let mut printed = BTreeMap::<String, Vec<String>>::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let (keyword, value) = line.split_once(' ').unwrap_or((line, ""));
            printed
                .entry(keyword.to_owned())
                .or_default()
                .push(value.to_owned());
        }
        Some(printed)
    }

    /// What `ssh -G` prints about things that [`SshArgs`] carries in a field or leaves to the pool.
    const IN_FIELDS: &str = "requesttty sessiontype stdinnull forkafterauthentication escapechar loglevel \
        controlmaster controlpath";

    /// Options to combine, in a shell's way of writing.
    const OPTIONS: &str = "-4|-6|-A|-a|-C|-x|-g|-k|-vv|-q|-t|-tt|-T|-n|-f|-N|-s|-Tn|-2|-K|-X|-M|--|-p 2201\
        |-p2202|-l lena|-lmax|-vlnina|-o 'User olga'|-oUser=otto|-o 'Port = 2203'|-oRequestTTY=yes\
        |-o 'RequestTTY no'|-oSessionType=none|-oSessionType=subsystem|-oStdinNull=no|-oStdinNull=yes\
        |-oForkAfterAuthentication=yes|-oForkAfterAuthentication=no|-oLogLevel=DEBUG|-o 'bogus yes'\
        |-J j1,u@j2:23|-c aes128-ctr|-m hmac-sha2-256|-b 127.0.0.1|-B lo|-L 8080:web:80|-R8081:web:81\
        |-D 1080|-W db:5432|-e none|-e ^B|-e%|-i /dev/null|-S /none.sock|-w 1:2|-E /dev/null";

    fn options(at_most: usize) -> impl Strategy<Value = Vec<OsString>> {
        let option = prop::sample::select(OPTIONS.split('|').collect::<Vec<_>>());
        prop::collection::vec(option.prop_map(words), 0..=at_most).prop_map(|options| options.concat())
    }

    const DESTINATIONS: &str = "web1|anna@web1|a@b@web1|ssh://web1|ssh://bert@web1:2299|ssh://web1:2298/\
        |ssh://c%64@web1|ssh://dora;fp=1@web1|10.1.2.3|user@|@web1|ssh://web1:port|-bad";

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 300,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn config_args_resolve_as_the_whole_line_does(
            before in options(4),
            destination in prop::sample::select(DESTINATIONS.split('|').collect::<Vec<_>>()),
            after in options(3),
            command in prop::collection::vec(prop::sample::select(vec!["ls", "-l", "--", "-p", "22"]), 0..3),
        ) {
            let mut line = before;
            line.push(destination.into());
            line.extend(after);
            line.extend(command.into_iter().map(OsString::from));
            let whole = ssh_g(&line);
            let ours = SshArgs::parse(line.clone()).ok().and_then(|args| {
                let mut words = args.config_args.clone();
                words.extend(["--".into(), args.destination.clone()]);
                // ssh refuses to fork without a command only after it has read its configuration.
                let forks_for_nothing = args.background && args.command.is_none() && !args.no_command;
                ssh_g(&words).filter(|_| !forks_for_nothing).map(|printed| (args, printed))
            });
            let (Some(whole), Some((args, ours))) = (&whole, &ours) else {
                prop_assert_eq!(whole.is_some(), ours.is_some(), "one refuses {:?}", line);
                return Ok(());
            };
            for (keyword, values) in whole {
                if IN_FIELDS.split(' ').all(|field| field != keyword) {
                    prop_assert_eq!(Some(values), ours.get(keyword), "{} of {:?}", keyword, &line);
                }
            }
            let printed = |keyword: &str| whole.get(keyword).map_or("", |values| values[0].as_str());
            let truth = |value: bool| if value { "yes" } else { "no" };
            prop_assert_eq!(truth(args.no_stdin), printed("stdinnull"), "{:?}", &line);
            prop_assert_eq!(truth(args.background), printed("forkafterauthentication"), "{:?}", &line);
            let session = match (args.no_command, args.subsystem) {
                (true, _) => "none",
                (_, true) => "subsystem",
                _ => "default",
            };
            prop_assert_eq!(session, printed("sessiontype"), "{:?}", &line);
            let tty = match args.tty {
                TtyRequest::Auto => "auto",
                TtyRequest::No => "false",
                TtyRequest::Yes => "true",
                TtyRequest::Force => "force",
            };
            prop_assert_eq!(tty, printed("requesttty"), "{:?}", &line);
            let escape = match args.escape {
                None => "~".to_owned(),
                Some(EscapeChar::None) => "none".to_owned(),
                Some(EscapeChar::Byte(byte)) if byte < 32 => format!("\\^{}", char::from(byte | 64)),
                Some(EscapeChar::Byte(byte)) => char::from(byte).to_string(),
            };
            prop_assert_eq!(escape, printed("escapechar"), "{:?}", &line);
        }

        #[test]
        fn no_line_panics_or_loses_a_word(words in prop::collection::vec("[-@:a-zA-Z0-9 =]{0,6}", 0..6)) {
            let line: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Ok(args) = parse(&line) {
                prop_assert_eq!(args.original, line);
            }
        }
    }
}
