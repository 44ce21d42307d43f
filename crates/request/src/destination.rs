//! A destination as typed: `host`, `user@host` or `ssh://[user@]host[:port]`, as ssh(1) takes it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A destination, before ssh_config applies.
///
/// The host is an alias, a name or an address, as typed; only resolving it tells which. Neither part contains
/// characters that OpenSSH refuses because they reach a shell through `%h` and `%r`.
///
/// ```
/// use trunkline_request::destination::Destination;
///
/// let destination: Destination = "ssh://deploy@db1.example.org:2222".parse()?;
/// assert_eq!(destination.user.as_deref(), Some("deploy"));
/// assert_eq!(destination.host, "db1.example.org");
/// assert_eq!(destination.port, Some(2222));
/// # Ok::<(), trunkline_request::destination::DestinationError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Destination {
    /// The remote user, if typed.
    pub user: Option<String>,
    /// The alias, name or address. Never empty, never begins with `-`. An address from a URI is without brackets.
    pub host: String,
    /// The port, if typed (only in a URI or a jump host); 1 to 65535.
    pub port: Option<u16>,
}

impl Destination {
    /// Returns a destination of these parts.
    ///
    /// # Errors
    /// As for parsing: an empty host, a part that begins with `-`, a character that is special in a shell, port 0.
    pub fn new(user: Option<&str>, host: &str, port: Option<u16>) -> Result<Self, DestinationError> {
        check_host(host)?;
        user.map_or(Ok(()), check_user)?;
        if port == Some(0) {
            return Err(DestinationError::Port("0".into()));
        }
        Ok(Self {
            user: user.map(Into::into),
            host: host.into(),
            port,
        })
    }

    /// Parses one hop of `ProxyJump` or `-J`: `[user@]host[:port]` with an address in brackets, or an `ssh://` URI.
    ///
    /// # Errors
    /// As for [`Destination::new`].
    pub fn parse_hop(text: &str) -> Result<Self, DestinationError> {
        if let Some(rest) = text.strip_prefix(SCHEME) {
            return parse_uri(rest);
        }
        let (user, address) = split_user(text)?;
        let (host, port) = split_port(address)?;
        Self::new(user, host, port)
    }

    /// Formats the destination for ProxyJump and `-J`: `[user@]host[:port]`, with an IPv6 address in brackets.
    ///
    /// This is not the URI of [`fmt::Display`], because OpenSSH 9.2 accepts no IPv6 address in one.
    #[must_use]
    pub fn as_hop(&self) -> String {
        let user = self
            .user
            .as_ref()
            .map(|user| format!("{user}@"))
            .unwrap_or_default();
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{user}{host}{port}")
    }

    /// Formats the destination without its port, as an argument of ssh(1) beside `-p`.
    #[must_use]
    pub fn without_port(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.host),
            None => self.host.clone(),
        }
    }
}

/// The reason why a destination was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// The host is missing.
    #[error("the destination names no host")]
    NoHost,
    /// The user before `@` is missing.
    #[error("the destination has an empty user before \"@\"")]
    EmptyUser,
    /// A host that a shell or ssh's own option parser would misread.
    #[error("the host name {0:?} begins with \"-\" or contains a character that ssh refuses")]
    Host(String),
    /// A user that a shell or ssh's own option parser would misread.
    #[error("the user name {0:?} begins with \"-\" or contains a character that ssh refuses")]
    User(String),
    /// A port that is not a number from 1 to 65535.
    #[error("the port {0:?} is not a number from 1 to 65535")]
    Port(String),
    /// A URI with a path, a stray bracket or a broken escape.
    #[error("{0:?} is not an ssh URI of the form ssh://[user@]host[:port]")]
    Uri(String),
}

const SCHEME: &str = "ssh://";

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        if let Some(rest) = text.strip_prefix(SCHEME) {
            return parse_uri(rest);
        }
        let (user, host) = split_user(text)?;
        Self::new(user, host, None)
    }
}

impl fmt::Display for Destination {
    /// Formats the shortest text that parses back to the same destination: `[user@]host`, or a URI if there is a port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.without_port();
        if self.port.is_none() && !plain.starts_with(SCHEME) {
            return f.write_str(&plain);
        }
        f.write_str(SCHEME)?;
        if let Some(user) = &self.user {
            write!(f, "{}@", escape(user))?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]", escape(&self.host))?;
        } else {
            f.write_str(&escape(&self.host))?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The serialized form, so that deserializing cannot bypass the checks.
#[derive(Serialize, Deserialize)]
struct Parts {
    user: Option<String>,
    host: String,
    port: Option<u16>,
}

impl TryFrom<Parts> for Destination {
    type Error = DestinationError;

    fn try_from(parts: Parts) -> Result<Self, DestinationError> {
        Self::new(parts.user.as_deref(), &parts.host, parts.port)
    }
}

impl From<Destination> for Parts {
    fn from(destination: Destination) -> Self {
        Self {
            user: destination.user,
            host: destination.host,
            port: destination.port,
        }
    }
}

/// Parses the part after `ssh://`: draft-ietf-secsh-scp-sftp-ssh-uri, as misc.c's `parse_uri` does.
///
/// OpenSSH 9.2 refuses addresses in brackets here, but RFC 3986 section 3.2.2 requires them, so they are accepted.
fn parse_uri(rest: &str) -> Result<Destination, DestinationError> {
    let malformed = || DestinationError::Uri(format!("{SCHEME}{rest}"));
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err(malformed());
    }
    let (user, address) = match authority.split_once('@') {
        Some(("", _)) => return Err(DestinationError::EmptyUser),
        // Connection parameters (";fingerprint=...") are allowed but unused, as in ssh(1).
        Some((user, address)) => (Some(user.split_once(';').map_or(user, |(user, _)| user)), address),
        None => (None, authority),
    };
    let (host, port) = split_port(address)?;
    let user = user
        .map(|user| unescape(user).ok_or_else(malformed))
        .transpose()?;
    let host = unescape(host).ok_or_else(malformed)?;
    Destination::new(user.as_deref(), &host, port)
}

/// Splits at the last `@`: user names may contain one (`name@realm@host`).
fn split_user(text: &str) -> Result<(Option<&str>, &str), DestinationError> {
    match text.rsplit_once('@') {
        Some(("", _)) => Err(DestinationError::EmptyUser),
        Some((user, host)) => Ok((Some(user), host)),
        None => Ok((None, text)),
    }
}

/// Splits `host[:port]` or `[address][:port]`; an empty port counts as none, as in ssh(1).
fn split_port(text: &str) -> Result<(&str, Option<u16>), DestinationError> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or_else(|| DestinationError::Host(text.into()))?;
        match rest.strip_prefix(':') {
            Some(port) => (host, port),
            None if rest.is_empty() => (host, ""),
            None => return Err(DestinationError::Host(text.into())),
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(DestinationError::Host(text.into())),
            Some((host, port)) => (host, port),
            None => (text, ""),
        }
    };
    if port.is_empty() {
        return Ok((host, None));
    }
    // `u16::from_str` accepts a leading "+".
    match port.parse::<u16>() {
        Ok(number) if number != 0 && port.bytes().all(|b| b.is_ascii_digit()) => Ok((host, Some(number))),
        _ => Err(DestinationError::Port(port.into())),
    }
}

/// Checks a host like ssh.c's `valid_hostname`, the answer to CVE-2023-51385, since it reaches shells through `%h`.
/// Also refuses `@`, which ends the user when a destination is parsed again: an escaped one in a URI would turn a part
/// of the host into a user.
fn check_host(host: &str) -> Result<(), DestinationError> {
    if host.is_empty() {
        return Err(DestinationError::NoHost);
    }
    let refused = |c: char| "'`\"$\\;&<>|(){}@".contains(c) || c.is_ascii_whitespace() || c.is_control();
    if host.starts_with('-') || host.contains(refused) {
        return Err(DestinationError::Host(host.into()));
    }
    Ok(())
}

/// Checks a user like ssh.c's `valid_ruser`, since it reaches shells through `%r`.
fn check_user(user: &str) -> Result<(), DestinationError> {
    if user.is_empty() {
        return Err(DestinationError::EmptyUser);
    }
    let bytes = user.as_bytes();
    // An option could follow white space, and a final backslash would escape the next character.
    let hides_an_option = bytes
        .windows(2)
        .any(|pair| pair[0].is_ascii_whitespace() && pair[1] == b'-');
    let refused = |c: char| "'`\";&<>|(){}".contains(c) || c.is_control();
    if user.starts_with('-') || user.ends_with('\\') || hides_an_option || user.contains(refused) {
        return Err(DestinationError::User(user.into()));
    }
    Ok(())
}

/// Decodes %-escapes (RFC 3986 section 2.1). Returns `None` for a broken escape, a NUL or bytes that are not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        let value = u8::try_from(high * 16 + low).ok().filter(|&value| value != 0)?;
        plain.push(value);
    }
    String::from_utf8(plain).ok()
}

/// Escapes everything but the unreserved characters of RFC 3986 section 2.3, and `:`, which is unambiguous in brackets.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (Option<String>, String, Option<u16>) {
        let destination: Destination = text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"));
        (destination.user, destination.host, destination.port)
    }

    #[test]
    fn the_last_at_sign_separates_the_user() {
        assert_eq!(
            parts("name@realm@host"),
            (Some("name@realm".into()), "host".into(), None)
        );
    }

    #[test]
    fn a_uri_carries_port_brackets_escapes_and_ignored_parameters() {
        assert_eq!(
            parts("ssh://u%40x@h:22"),
            (Some("u@x".into()), "h".into(), Some(22))
        );
        assert_eq!(
            parts("ssh://[2001:db8::1]:2222/"),
            (None, "2001:db8::1".into(), Some(2222))
        );
        assert_eq!(
            parts("ssh://[fe80::1%25eth0]"),
            (None, "fe80::1%eth0".into(), None)
        );
        assert_eq!(
            parts("ssh://u;fingerprint=x@h:"),
            (Some("u".into()), "h".into(), None)
        );
    }

    #[test]
    fn a_hop_takes_a_port_without_being_a_uri() {
        let hop = Destination::parse_hop("u@[::1]:24").unwrap();
        assert_eq!(
            (hop.user.as_deref(), hop.host.as_str(), hop.port),
            (Some("u"), "::1", Some(24))
        );
        assert_eq!(Destination::parse_hop("h").unwrap(), "h".parse().unwrap());
        assert_eq!(hop.as_hop(), "u@[::1]:24");
        assert!(Destination::parse_hop("::1").is_err());
    }

    #[test]
    fn what_ssh_refuses_is_refused() {
        for text in [
            "",
            "@h",
            "u@",
            "-oProxyCommand=x",
            "u@-h",
            "-x@h",
            "a b",
            "a;b",
            "a$b",
            "a`b",
            "a\nb",
            "u\t@h",
            "u\\@h",
            "{x}@h",
            "u -o@h",
            "ssh://",
            "ssh://h/path",
            "ssh://h:0",
            "ssh://h:99999",
            "ssh://h:+1",
            "ssh://h%zz",
            "ssh://h%00",
            "ssh://[::1",
            "ssh://::1",
            "ssh://@h",
            "ssh://-h",
            "ssh://h?x",
            "ssh://h%3bid",
            "ssh://root%40h",
            "ssh://u@root%40h:22",
        ] {
            assert!(text.parse::<Destination>().is_err(), "{text:?} was accepted");
        }
    }

    /// The installed ssh reads everything that this parser accepts, except for URIs, as the same host and user.
    #[test]
    fn the_installed_ssh_agrees() {
        for text in [
            "h",
            "u@h",
            "a@b@c",
            "a%b@h",
            "h%25",
            "::1",
            "u-@h",
            "~x@h",
            "u$@h",
            "ssh://u@h:2200",
            "ssh://h/",
            "ssh://u;p=1@h",
        ] {
            let output = Command::new("ssh")
                .args(["-G", "-F", "none", "--", text])
                .stdin(Stdio::null())
                .output()
                .expect("ssh (openssh-client) must be installed");
            let printed = String::from_utf8(output.stdout).unwrap();
            let value = |name: &str| {
                printed
                    .lines()
                    .find_map(|l| l.strip_prefix(name))
                    .map(str::trim)
                    .unwrap()
                    .to_owned()
            };
            let (user, host, port) = parts(text);
            assert_eq!(value("hostname "), host, "{text}");
            if let Some(user) = user {
                assert_eq!(value("user "), user, "{text}");
            }
            assert_eq!(value("port "), port.unwrap_or(22).to_string(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_displayed_parses_back(user in proptest::option::of("[a-z@%é. ]{1,8}"), host in "[a-z0-9.:%é-]{1,12}", port in proptest::option::of(1u16..)) {
            if let Ok(destination) = Destination::new(user.as_deref(), &host, port) {
                // Hosts contain no slash here, so no plain form looks like a URI.
                prop_assert_eq!(destination.to_string().parse::<Destination>().unwrap(), destination);
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = text.parse::<Destination>();
            let _ = format!("ssh://{text}").parse::<Destination>();
            let _ = Destination::parse_hop(&text);
        }
    }
}
