//! The command line of ssh(1), read exactly as OpenSSH reads it.
//!
//! There are two levels. [`LowArgs`] has what was typed: options in order, a destination, the words of a command.
//! [`SshArgs`] has its meaning by OpenSSH's rules of precedence. `ssh` reads its options with the BSD `getopt` of its
//! own compatibility library, stops at the first word that is not an option, takes that word for the destination, and
//! then reads options again up to the command (`main()` in OpenSSH's ssh.c); [`LowArgs::parse`] does the same.
//!
//! Values that `ssh -G` sees as well (ports, ciphers, forwards, `-o` lines) are not checked here: resolving the host
//! reports them in the words of the installed ssh.
//! the host reports them in the words of the ssh that is installed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use trunkline_request::LogLevel;
use trunkline_request::ssh_options::{BadOption, BearsOn, TypedOption, TypedOptions, keyword_and_value};

use crate::ssh_options::can_be_read_once_only;

/// The meaning of a command line of `ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SshArgs {
    /// The options, in order, with which `ssh -G` resolves the destination as the whole line would: `ssh -G` + these +
    /// `--` + [`destination`](Self::destination).
    ///
    /// Options are omitted if they have a field here and do not affect the connection, so that lines which differ only
    /// in these share a cached answer. The fields override the output of `ssh -G`. The command is omitted, too: a host
    /// whose configuration has `Match command` or `Match sessiontype` (OpenSSH 10) must be resolved with the command
    /// and, for a subsystem, `-s` appended.
    pub(crate) config_args: Vec<OsString>,
    /// `host`, `user@host` or `ssh://[user@]host[:port]` as typed. Empty only if the line needs none and
    /// [`needs_system_ssh`](Self::needs_system_ssh) returns a reason.
    pub(crate) destination: OsString,
    /// The words after the destination, joined by one space as in ssh, or `None` for a login shell. If
    /// [`subsystem`](Self::subsystem) is set, the subsystem's name.
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
    pub(crate) stdio_forward: Option<(String, u16)>,
    /// `-O command`: a request to a running master.
    pub(crate) mux_command: Option<OsString>,
    /// `-S path`: the control socket, which overrides `ControlPath`. `none` means no socket.
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
    /// 0 to 3, for `-v`, `-vv` and `-vvv`. Overrides `LogLevel`; [`quiet`](Self::quiet) overrides it.
    pub(crate) verbosity: u8,
    /// `-q` was the last word about logging. Overrules `LogLevel`.
    pub(crate) quiet: bool,
    /// `-e`, or `None` to leave it to `EscapeChar`.
    pub(crate) escape: Option<EscapeChar>,
    /// `-I`, `-K`, `-X`, `-Y` or `-w`, which need an ssh with a connection of its own.
    pub(crate) own_connection: bool,
    /// Every argument as typed, without the program's name, for the system's ssh.
    pub(crate) original: Vec<OsString>,
    system_ssh: Option<&'static str>,
}

/// The choice of a terminal on the server, as in `RequestTTY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TtyRequest {
    /// For a login shell only, unless the configuration says otherwise.
    #[default]
    Auto,
    No,
    /// When standard input is a terminal.
    Yes,
    /// Even when standard input is not a terminal.
    Force,
}

/// The character that starts an escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EscapeChar {
    /// No character: the session is transparent.
    None,
    /// This byte, after a newline.
    Byte(u8),
}

/// A command line that ssh refuses. [`Display`](std::fmt::Display) gives the text for standard error, with the synopsis
/// if ssh prints it. The exit status is [`UsageError::EXIT_STATUS`].
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
    /// `-e` with something that is not a character.
    #[error("Bad escape character '{0}'.")]
    BadEscapeCharacter(String),
    /// `-W` with something other than a host and a port.
    #[error("Bad stdio forwarding specification '{0}'")]
    BadStdioForward(String),
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

impl From<BadOption> for UsageError {
    fn from(bad: BadOption) -> Self {
        match bad {
            BadOption::Unknown(letter) => Self::UnknownOption(letter.into()),
            BadOption::MissingValue(letter) => Self::MissingValue(letter.into()),
        }
    }
}

impl UsageError {
    /// The exit status of ssh after its own errors.
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
    /// Parses the arguments of `ssh`, without the program's name.
    ///
    /// # Errors
    /// [`UsageError`] if ssh itself would print its usage or exit before reading its configuration.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let original: Vec<OsString> = arguments.into_iter().collect();
        Meaning::from_low(LowArgs::parse(&original)?, original)
    }

    /// Returns the reason why only the system's own ssh can do what was typed, as a phrase that completes "handed to
    /// the system's ssh: …".
    ///
    /// Only considers the command line; the resolved configuration may give further reasons.
    pub(crate) fn needs_system_ssh(&self) -> Option<&'static str> {
        self.system_ssh
    }

    /// Returns true if ssh would connect. It does not for `-V`, `-Q`, `-G` and `-O`, which talks to a master.
    pub(crate) fn connects(&self) -> bool {
        !self.version && self.query.is_none() && !self.print_config && self.mux_command.is_none()
    }

    /// Returns the level that overrides `LogLevel`.
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

/// The arguments as typed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct LowArgs {
    /// In the order typed.
    options: Vec<LowOption>,
    destination: Option<OsString>,
    /// The words after the destination and its options.
    command: Vec<OsString>,
}

/// An option, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LowOption {
    typed: TypedOption,
    behind_destination: bool,
}

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
            // ssh looks at the word before the one where getopt stopped: in `ssh -l -- host -v` the user is "--", and
            // no options are read after the host.
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

    /// Reads options from index `next`, and returns the index of the first other word.
    fn read_options(&mut self, arguments: &[OsString], next: usize) -> Result<usize, UsageError> {
        let mut options = TypedOptions::from(arguments, next);
        while !self.ends_the_line()
            && let Some(typed) = options.next()
        {
            self.options.push(LowOption {
                typed: typed?,
                behind_destination: self.destination.is_some(),
            });
        }
        Ok(options.position())
    }

    /// Returns true if the last option makes the rest of the line meaningless to us. `-V` and `-Q` print and exit
    /// immediately. `-P` was a switch without effect up to OpenSSH 9.3 and takes a tag since 9.4, so only the installed
    /// ssh can tell the destination from the tag.
    fn ends_the_line(&self) -> bool {
        self.options
            .last()
            .is_some_and(|option| matches!(option.typed.option.letter, b'V' | b'Q' | b'P'))
    }
}

/// [`SshArgs`] under construction, with the state for OpenSSH's rules of precedence.
struct Meaning {
    args: SshArgs,
    tty: Option<TtyRequest>,
    session: Option<Session>,
    /// `Some` once a switch or an `-o` line has set it. Switches override it, `-o` lines do not.
    no_stdin: Option<bool>,
    background: Option<bool>,
    /// The first ControlMaster and ControlPath in `-o` lines.
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
    fn from_low(low: LowArgs, original: Vec<OsString>) -> Result<SshArgs, UsageError> {
        let ends_the_line = low.ends_the_line();
        let mut meaning = Self::nothing(original);
        let mut destination_read = false;
        for option in &low.options {
            if option.behind_destination && !destination_read {
                meaning.pin_destination(low.destination.as_deref());
                destination_read = true;
            }
            meaning.option(&option.typed)?;
        }
        if !ends_the_line {
            meaning.args.destination = low.destination.ok_or(UsageError::NoDestination)?;
            let (user, _) = user_and_port(&meaning.args.destination);
            if user.is_some_and(|user| user.is_empty()) {
                return Err(UsageError::NoDestination);
            }
        }
        // As in ssh, a command without words does not count as a command.
        let command = low.command.join(OsStr::new(" "));
        if !command.is_empty() {
            meaning.args.command = Some(command);
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
            own_connection: false,
            original,
            system_ssh: None,
        };
        Self {
            args,
            tty: None,
            session: None,
            no_stdin: None,
            background: None,
            control_master: None,
            control_path: None,
        }
    }

    /// Resolves with the destination's own user and port. The first user and port win, and a destination counts by its
    /// position: `ssh u@h -l x` logs in as u. `ssh -G` gets its options first, so the destination's values are put
    /// before them.
    fn pin_destination(&mut self, destination: Option<&OsStr>) {
        let (user, port) = destination.map(user_and_port).unwrap_or_default();
        if let Some(user) = user {
            self.resolve_with(b'l', Some(&user));
        }
        if let Some(port) = port {
            self.resolve_with(b'p', Some(&port));
        }
    }

    fn option(&mut self, TypedOption { option, value }: &TypedOption) -> Result<(), UsageError> {
        let value = value.as_ref();
        if matches!(option.letter, b'B' | b'b' | b'l') && value.is_some_and(|value| value.is_empty()) {
            self.leave_to_ssh("nothing as a user, an address or an interface means what ssh makes of it");
        }
        match option.bears_on {
            BearsOn::Connection if option.letter == b'o' => {
                self.directive(value.map_or(OsStr::new(""), OsString::as_os_str));
            }
            BearsOn::Connection => self.resolve_with(option.letter, value),
            BearsOn::OwnConnection => {
                self.resolve_with(option.letter, value);
                self.args.own_connection = true;
            }
            BearsOn::SystemSsh(reason) => self.leave_to_ssh(reason),
            BearsOn::Session => {}
        }
        match option.letter {
            b'1' => return Err(UsageError::ProtocolOne),
            b'W' => {
                self.args.stdio_forward = value.map(|value| stdio_forward(value)).transpose()?;
                self.session = Some(Session::None);
                self.tty = Some(TtyRequest::No);
            }
            b'N' => {
                self.session_type(Session::None, 'N')?;
                self.tty = Some(TtyRequest::No);
            }
            b's' => self.session_type(Session::Subsystem, 's')?,
            b'F' if value.is_some_and(|config| can_be_read_once_only(config)) => {
                self.leave_to_ssh("a configuration from a pipe can be read only once");
            }
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
            b'G' => self.args.print_config = true,
            b'O' => self.args.mux_command = value.cloned(),
            b'Q' => self.args.query = value.cloned(),
            b'S' => self.args.control_path = value.cloned(),
            b'V' => self.args.version = true,
            b'y' => self.args.syslog = true,
            _ => {}
        }
        Ok(())
    }

    /// Handles an `-o` line. Settings that also have a switch are tracked here, because the first one wins.
    fn directive(&mut self, line: &OsStr) {
        let parsed = keyword_and_value(line);
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
            Some("proxycommand") if value == "-" => {
                self.leave_to_ssh("-o ProxyCommand=- speaks over ssh's own standard input and output");
            }
            Some("stdinnull") => _ = self.no_stdin.get_or_insert(yes),
            Some("forkafterauthentication") => {
                self.background.get_or_insert(yes);
                if yes {
                    // Not passed on: `ssh -G` refuses to go to the background without a command.
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
                    // Not passed on: `ssh -G` refuses a subsystem without its name.
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

    fn leave_to_ssh(&mut self, reason: &'static str) {
        self.args.system_ssh.get_or_insert(reason);
    }

    fn finish(mut self, ends_the_line: bool) -> Result<SshArgs, UsageError> {
        if self.args.syslog && self.args.log_file.is_some() && !ends_the_line {
            return Err(UsageError::TwoLogs);
        }
        if self.args.control_path.as_ref().is_some_and(|path| path != "none") {
            self.leave_to_ssh("-S names a control socket of ssh's own");
        }
        // An automatic master serves sharing, which happens here anyway.
        let master = self.control_master.as_deref().unwrap_or("no");
        let is_automatic = matches!(master, "auto" | "autoask");
        let has_path = self.control_path.as_ref().is_some_and(|path| path != "none");
        if matches!(master, "yes" | "true" | "ask") {
            self.leave_to_ssh("-o ControlMaster makes ssh the master of its own control socket");
        } else if has_path && !is_automatic && self.args.control_path.is_none() {
            self.leave_to_ssh("-o ControlPath names a control socket of ssh's own");
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

/// Parses `-W`: a host, in brackets if it has colons, and a port.
fn stdio_forward(value: &OsStr) -> Result<(String, u16), UsageError> {
    let target = value.to_str().and_then(|text| text.rsplit_once(':'));
    let Some((host, Ok(port))) = target.map(|(host, port)| (host, port.parse())) else {
        return Err(UsageError::BadStdioForward(value.display().to_string()));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), port))
}

/// Parses `-e`: one character, `^` and a letter for a control character, or `none`.
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

/// Returns the user and port in a destination (`parse_ssh_uri` in OpenSSH's misc.c).
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
    // Connection parameters start at ';'. ssh ignores them.
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

/// Decodes RFC 3986 section 2.1. A `%` without two hex digits stays for ssh to refuse.
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
mod tests;
