//! The options of ssh(1), their meaning, and how ssh finds them among its arguments.

mod directives;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

pub use directives::{DIRECTIVES, Directive, Values};

/// An option of ssh(1).
#[derive(Debug, PartialEq, Eq)]
pub struct SshOption {
    /// The letter after `-`.
    pub letter: u8,
    /// The name of its value in ssh's synopsis, if it takes one.
    pub value: Option<&'static str>,
    /// The directive of ssh_config(5) that it sets, in lower case.
    pub directive: Option<&'static str>,
    /// The decision that it affects.
    pub bears_on: BearsOn,
}

/// The decision that an option of ssh affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BearsOn {
    /// The two parties, and the connection between them: `ssh -G` must see it.
    Connection,
    /// The same, but only an ssh with its own connection can do it.
    OwnConnection,
    /// Behaviour inside a session or around it.
    Session,
    /// A feature of the system's ssh alone, with the reason as a phrase that completes "handed to the system's ssh: …".
    SystemSsh(&'static str),
}

/// Every option of ssh.c's getopt string. `1` and `2` are obsolete, but ssh still accepts them.
///
/// `P` was a switch without effect up to OpenSSH 9.3 and takes a tag since 9.4: only the installed ssh knows what
/// follows it.
#[rustfmt::skip]
pub const SSH_OPTIONS: &[SshOption] = &[
    switch(b'1', None, BearsOn::Session),
    switch(b'2', None, BearsOn::Session),
    switch(b'4', Some("addressfamily"), BearsOn::Connection),
    switch(b'6', Some("addressfamily"), BearsOn::Connection),
    switch(b'A', Some("forwardagent"), BearsOn::Connection),
    switch(b'a', Some("forwardagent"), BearsOn::Connection),
    option_with_value(b'B', "bind_interface", Some("bindinterface"), BearsOn::Connection),
    option_with_value(b'b', "bind_address", Some("bindaddress"), BearsOn::Connection),
    switch(b'C', Some("compression"), BearsOn::Connection),
    option_with_value(b'c', "cipher_spec", Some("ciphers"), BearsOn::Connection),
    option_with_value(b'D', "[bind_address:]port", Some("dynamicforward"), BearsOn::Connection),
    option_with_value(b'E', "log_file", None, BearsOn::Session),
    option_with_value(b'e', "escape_char", Some("escapechar"), BearsOn::Session),
    option_with_value(b'F', "configfile", None, BearsOn::Connection),
    switch(b'f', Some("forkafterauthentication"), BearsOn::Session),
    switch(b'G', None, BearsOn::SystemSsh("-G prints the configuration as ssh resolves it")),
    switch(b'g', Some("gatewayports"), BearsOn::Connection),
    option_with_value(b'I', "pkcs11", Some("pkcs11provider"), BearsOn::OwnConnection),
    option_with_value(b'i', "identity_file", Some("identityfile"), BearsOn::Connection),
    option_with_value(b'J', "destination", Some("proxyjump"), BearsOn::Connection),
    switch(b'K', Some("gssapiauthentication"), BearsOn::OwnConnection),
    switch(b'k', Some("gssapidelegatecredentials"), BearsOn::Connection),
    option_with_value(b'L', "address", Some("localforward"), BearsOn::Connection),
    option_with_value(b'l', "login_name", Some("user"), BearsOn::Connection),
    switch(b'M', Some("controlmaster"), BearsOn::SystemSsh("-M makes ssh the master of its own control socket")),
    option_with_value(b'm', "mac_spec", Some("macs"), BearsOn::Connection),
    switch(b'N', Some("sessiontype"), BearsOn::Connection),
    switch(b'n', Some("stdinnull"), BearsOn::Session),
    option_with_value(b'O', "ctl_cmd", None, BearsOn::SystemSsh("-O speaks to a ControlMaster of ssh's own")),
    // The value is a directive with its own value: see `keyword_and_value`.
    option_with_value(b'o', "option", None, BearsOn::Connection),
    switch(b'P', None, BearsOn::SystemSsh("-P means different things to different versions of ssh")),
    option_with_value(b'p', "port", Some("port"), BearsOn::Connection),
    option_with_value(b'Q', "query_option", None, BearsOn::SystemSsh("-Q lists what ssh supports")),
    switch(b'q', Some("loglevel"), BearsOn::Session),
    option_with_value(b'R', "address", Some("remoteforward"), BearsOn::Connection),
    option_with_value(b'S', "ctl_path", Some("controlpath"), BearsOn::Session),
    switch(b's', Some("sessiontype"), BearsOn::Session),
    switch(b'T', Some("requesttty"), BearsOn::Session),
    switch(b't', Some("requesttty"), BearsOn::Session),
    switch(b'V', None, BearsOn::SystemSsh("-V prints ssh's version")),
    switch(b'v', Some("loglevel"), BearsOn::Session),
    // Sets ClearAllForwardings and ExitOnForwardFailure if they are unset.
    option_with_value(b'W', "host:port", None, BearsOn::Connection),
    option_with_value(b'w', "local_tun[:remote_tun]", Some("tunneldevice"), BearsOn::OwnConnection),
    switch(b'X', Some("forwardx11"), BearsOn::OwnConnection),
    switch(b'x', Some("forwardx11"), BearsOn::Connection),
    switch(b'Y', Some("forwardx11trusted"), BearsOn::OwnConnection),
    switch(b'y', None, BearsOn::SystemSsh("-y sends ssh's log to syslog")),
];

/// Turns off configured forwardings: nobody asked for them, and two hosts cannot listen on one port.
pub const NO_FORWARDINGS: [&str; 2] = ["-o", "ClearAllForwardings=yes"];

const fn switch(letter: u8, directive: Option<&'static str>, bears_on: BearsOn) -> SshOption {
    SshOption {
        letter,
        value: None,
        directive,
        bears_on,
    }
}

const fn option_with_value(
    letter: u8,
    value: &'static str,
    directive: Option<&'static str>,
    bears_on: BearsOn,
) -> SshOption {
    SshOption {
        letter,
        value: Some(value),
        directive,
        bears_on,
    }
}

/// An option as typed: `-v`, or `-p 22`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedOption {
    /// The option.
    pub option: &'static SshOption,
    /// Present if the option takes one.
    pub value: Option<OsString>,
}

impl TypedOption {
    /// Returns true if it sets this directive of ssh_config(5), in lower case.
    #[must_use]
    pub fn sets(&self, directive: &str) -> bool {
        let line = self.value.as_deref().filter(|_| self.option.letter == b'o');
        self.option.directive == Some(directive)
            || line
                .and_then(keyword_and_value)
                .is_some_and(|(keyword, _)| keyword == directive)
    }
}

/// An error in ssh's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadOption {
    /// ssh does not have this option.
    Unknown(u8),
    /// It is at the end of the line, without its value.
    MissingValue(u8),
}

/// The options at the start of some of ssh's arguments, as found by BSD's getopt, which ssh includes: words are not
/// reordered, `--` is skipped, a lone `-` is a word, and so is a cluster that ends in `-`.
#[derive(Debug)]
pub struct TypedOptions<'a> {
    arguments: &'a [OsString],
    next: usize,
    /// The remaining letters of a cluster.
    cluster: &'a [u8],
    is_over: bool,
}

impl<'a> TypedOptions<'a> {
    /// Iterates over the options from index `first`.
    #[must_use]
    pub fn from(arguments: &'a [OsString], first: usize) -> Self {
        Self {
            arguments,
            next: first,
            cluster: b"",
            is_over: false,
        }
    }

    /// Returns the index of the first word after the options, once there are no more.
    #[must_use]
    pub fn position(&self) -> usize {
        self.next
    }

    /// Moves to the letters of the next word, if it has options.
    fn next_cluster(&mut self) -> bool {
        let word = self.arguments.get(self.next).map(|word| word.as_bytes());
        match word.and_then(|word| word.strip_prefix(b"-")) {
            None | Some(b"") => false,
            Some(b"-") => {
                self.next += 1;
                false
            }
            Some(cluster) => {
                self.next += 1;
                self.cluster = cluster;
                true
            }
        }
    }
}

impl Iterator for TypedOptions<'_> {
    type Item = Result<TypedOption, BadOption>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over || (self.cluster.is_empty() && !self.next_cluster()) {
            self.is_over = true;
            return None;
        }
        let (&letter, rest) = self.cluster.split_first()?;
        if letter == b'-' && rest.is_empty() {
            self.is_over = true;
            self.next -= 1;
            return None;
        }
        self.cluster = rest;
        let Some(option) = SSH_OPTIONS.iter().find(|option| option.letter == letter) else {
            return Some(Err(BadOption::Unknown(letter)));
        };
        let mut value = None;
        if option.value.is_some() {
            value = if rest.is_empty() {
                let value = self.arguments.get(self.next).cloned();
                self.next += 1;
                value
            } else {
                Some(OsStr::from_bytes(std::mem::take(&mut self.cluster)).to_owned())
            };
            if value.is_none() {
                return Some(Err(BadOption::MissingValue(letter)));
            }
        }
        Some(Ok(TypedOption { option, value }))
    }
}

/// Splits a line of ssh_config(5), or of `-o`: `User x`, `User=x`, `User = "x"`. Returns the keyword in lower case.
#[must_use]
pub fn keyword_and_value(line: &OsStr) -> Option<(String, String)> {
    let line = line.to_string_lossy();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Vec<Result<(char, Option<String>), BadOption>> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let letter_and_value = |typed: TypedOption| {
            let value = typed.value.map(|value| value.into_string().expect("text"));
            (typed.option.letter.into(), value)
        };
        TypedOptions::from(&words, 0)
            .map(|typed| typed.map(letter_and_value))
            .collect()
    }

    #[test]
    fn options_end_where_getopt_ends_them() {
        let port = || Ok(('p', Some("22".to_owned())));
        assert_eq!(
            parse_line("-vp22 -p 22 host -v"),
            [Ok(('v', None)), port(), port()]
        );
        assert_eq!(parse_line("-v -- -v"), [Ok(('v', None))]);
        assert_eq!(parse_line("-v- -v"), [Ok(('v', None))]);
        assert_eq!(parse_line("- -v"), []);
        assert_eq!(parse_line("-l --"), [Ok(('l', Some("--".to_owned())))]);
        assert_eq!(
            parse_line("-vZ"),
            [Ok(('v', None)), Err(BadOption::Unknown(b'Z'))]
        );
        assert_eq!(parse_line("-p"), [Err(BadOption::MissingValue(b'p'))]);
    }

    #[test]
    fn a_directive_is_set_by_its_letter_or_by_o() {
        let sets = |line: &str, directive: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            TypedOptions::from(&words, 0)
                .filter_map(Result::ok)
                .any(|typed| typed.sets(directive))
        };
        for line in ["-C", "-vC", "-o Compression=no", "-oCOMPRESSION=\"yes\""] {
            assert!(sets(line, "compression"), "{line}");
        }
        for line in ["-c aes128-ctr", "-o CompressionLevel=1", "-v", "-l compression"] {
            assert!(!sets(line, "compression"), "{line}");
        }
    }

    #[test]
    fn each_letter_is_listed_once() {
        for (at, option) in SSH_OPTIONS.iter().enumerate() {
            let twice = SSH_OPTIONS[..at]
                .iter()
                .any(|other| other.letter == option.letter);
            assert!(!twice, "{}", char::from(option.letter));
        }
    }
}
