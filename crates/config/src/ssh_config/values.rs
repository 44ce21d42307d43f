//! The values of single directives, as `ssh -G` prints them (readconf.c, `dump_client_config`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use trunkline_request::LogLevel;

/// A directive's value, for display and comparison.
pub(crate) trait Shown {
    /// Returns a text that is different for different values.
    fn show(&self) -> String;

    /// Returns whether it is set to a value that means more than its absence.
    fn is_set(&self) -> bool {
        !self.show().is_empty()
    }
}

/// A name-list (RFC 4251, section 5). Most hosts have the same ones, which share the memory.
pub type NameList = Arc<[String]>;

/// Leaves the other names out. A list that stays as it is remains shared.
pub fn retain_names(list: &mut NameList, mut keep: impl FnMut(&str) -> bool) {
    if !list.iter().all(|name| keep(name)) {
        *list = list.iter().filter(|name| keep(name)).cloned().collect();
    }
}

impl Shown for bool {
    fn show(&self) -> String {
        super::yes_or_no(*self)
    }

    fn is_set(&self) -> bool {
        *self
    }
}

impl Shown for String {
    fn show(&self) -> String {
        self.clone()
    }
}

/// In quotes and escaped, so that different paths and lists of paths look different.
impl Shown for PathBuf {
    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl Shown for Vec<PathBuf> {
    fn show(&self) -> String {
        let list: Vec<_> = self.iter().map(Shown::show).collect();
        list.join(" ")
    }
}

impl Shown for Vec<String> {
    fn show(&self) -> String {
        self.join(",")
    }
}

impl Shown for NameList {
    fn show(&self) -> String {
        self.join(",")
    }
}

impl<T: Shown> Shown for Option<T> {
    fn show(&self) -> String {
        self.as_ref().map(Shown::show).unwrap_or_default()
    }
}

impl Shown for ForwardAgent {
    fn show(&self) -> String {
        match self {
            Self::No => "no".into(),
            Self::Yes => "yes".into(),
            Self::Socket(socket) => socket.show(),
        }
    }
}

/// Implements [`Shown`] by `Display`.
macro_rules! displayed {
    ($($name:ty),*) => { $(impl Shown for $name {
        fn show(&self) -> String {
            self.to_string()
        }
    })* };
}
displayed!(u32, u8, RekeyLimit, IpQos);

/// Implements [`Shown`] by `Debug`, for types that are not compared.
macro_rules! as_debugged {
    ($($name:ty),*) => { $(impl Shown for $name {
        fn show(&self) -> String {
            format!("{self:?}")
        }
    })* };
}
as_debugged!(
    AddKeysToAgent,
    ControlPersist,
    Duration,
    LogLevel,
    PermitRemoteOpen,
    Vec<Forward>,
    Vec<Listen>,
    Vec<(String, Duration)>,
    Vec<(String, String)>
);

/// Parses `yes` and `no`, or `true` and `false`: `ssh -G` prints either, depending on the directive.
pub(crate) fn flag(value: &str) -> Option<bool> {
    match value {
        "yes" | "true" => Some(true),
        "no" | "false" => Some(false),
        _ => None,
    }
}

/// Parses sshd_config(5)'s TIME FORMATS: `90`, `2m30s`, `1h`, `1w2d`. `None` for anything else and on overflow.
pub(crate) fn duration(value: &str) -> Option<Duration> {
    let mut seconds: u64 = 0;
    let mut rest = value;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().ok()?;
        let mut tail = rest[digits..].chars();
        let unit = match tail.next() {
            None | Some('s' | 'S') => 1,
            Some('m' | 'M') => 60,
            Some('h' | 'H') => 60 * 60,
            Some('d' | 'D') => 24 * 60 * 60,
            Some('w' | 'W') => 7 * 24 * 60 * 60,
            Some(_) => return None,
        };
        seconds = seconds.checked_add(number.checked_mul(unit)?)?;
        rest = tail.as_str();
    }
    Some(Duration::from_secs(seconds))
}

/// Declares an enum of a directive's words; the first word of each is the one shown.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $first:literal $(| $other:literal)*,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$what])* $variant,)+ }

        impl $name {
            pub(crate) fn parse(value: &str) -> Option<Self> {
                match value {
                    $($first $(| $other)* => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Returns the word in ssh_config.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $first,)+ }
            }
        }

        impl Shown for $name {
            fn show(&self) -> String {
                self.as_str().into()
            }
        }
    };
}

words! {
    /// `AddressFamily`: the addresses of a name that are tried.
    AddressFamily {
        /// IPv4 and IPv6.
        Any = "any",
        /// IPv4 only.
        Inet = "inet",
        /// IPv6 only.
        Inet6 = "inet6",
    }
}

words! {
    /// `StrictHostKeyChecking`.
    StrictHostKeyChecking {
        /// Unknown and changed keys are refused.
        Yes = "yes" | "true",
        /// Unknown keys are accepted and remembered; changed and revoked ones are accepted without anything that would
        /// reveal secrets to an impostor ([`Accepted::is_unverified`](crate::host_key::Accepted::is_unverified)).
        No = "no" | "false" | "off",
        /// The user decides about an unknown key; a changed one is refused.
        Ask = "ask",
        /// Unknown keys are accepted and remembered, changed keys refused.
        AcceptNew = "accept-new",
    }
}

impl StrictHostKeyChecking {
    /// All values, from the strictest to the loosest.
    pub const ALL: [Self; 4] = [Self::Yes, Self::Ask, Self::AcceptNew, Self::No];

    /// Returns its rank among them; the strictest has the highest.
    #[must_use]
    pub fn strictness(self) -> u8 {
        match self {
            Self::Yes => 3,
            Self::Ask => 2,
            Self::AcceptNew => 1,
            Self::No => 0,
        }
    }
}

words! {
    /// `UpdateHostKeys`: whether keys announced by an authenticated server are remembered.
    UpdateHostKeys {
        /// Keys are remembered.
        Yes = "yes" | "true",
        /// Keys are not remembered.
        No = "no" | "false",
        /// The user decides.
        Ask = "ask",
    }
}

words! {
    /// `RequestTTY`.
    RequestTty {
        /// For a shell, if standard input is a terminal.
        Auto = "auto",
        /// Never.
        No = "no" | "false",
        /// If standard input is a terminal.
        Yes = "yes" | "true",
        /// Always.
        Force = "force",
    }
}

words! {
    /// `SessionType`.
    SessionType {
        /// A shell, or the command given.
        Default = "default",
        /// No session (`-N`).
        None = "none",
        /// The command names a subsystem (`-s`).
        Subsystem = "subsystem",
    }
}

words! {
    /// `ControlMaster`.
    ControlMaster {
        /// Never a master.
        No = "no" | "false",
        /// A master.
        Yes = "yes" | "true",
        /// A master that asks before each session.
        Ask = "ask",
        /// A client of a master if there is one, else a master.
        Auto = "auto",
        /// As `auto`, asking before each session.
        AutoAsk = "autoask",
    }
}

words! {
    /// `PubkeyAuthentication`.
    PubkeyAuthentication {
        /// Not tried.
        No = "no" | "false",
        /// Tried, with OpenSSH's host-bound extension if the server supports it.
        Yes = "yes" | "true",
        /// Tried without that extension.
        Unbound = "unbound",
        /// Tried only with that extension.
        HostBound = "host-bound",
    }
}

words! {
    /// `FingerprintHash`.
    FingerprintHash {
        /// SHA-256, in base 64.
        Sha256 = "SHA256" | "sha256",
        /// MD5, in hexadecimal.
        Md5 = "MD5" | "md5",
    }
}

words! {
    /// `WarnWeakCrypto` (OpenSSH 10.1): whether to warn of a key exchange that a quantum computer could break.
    WeakCryptoWarning {
        /// Warn of everything weak.
        Yes = "yes" | "true",
        /// Warn of nothing.
        No = "no" | "false",
        /// Do not warn of a key exchange that is not post-quantum.
        NoPqKex = "no-pq-kex",
    }
}

/// `AddKeysToAgent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddKeysToAgent {
    /// Keys are added at all.
    pub add: bool,
    /// The user is asked before each is added.
    pub ask: bool,
    /// The agent asks before each use.
    pub confirm: bool,
    /// The agent forgets the key after this time.
    pub lifetime: Option<Duration>,
}

impl AddKeysToAgent {
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let mut parsed = Self {
            add: true,
            ..Self::default()
        };
        match value {
            "ask" => parsed.ask = true,
            "confirm" => parsed.confirm = true,
            _ => match (flag(value), value.strip_prefix("confirm ")) {
                (Some(add), _) => parsed.add = add,
                (None, Some(lifetime)) => {
                    parsed.confirm = true;
                    parsed.lifetime = Some(duration(lifetime)?);
                }
                (None, None) => parsed.lifetime = Some(duration(value)?),
            },
        }
        Some(parsed)
    }
}

/// `ControlPersist`: how long an idle connection stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlPersist {
    /// It closes with its first session.
    No,
    /// For ever (`yes` and `0` alike).
    Forever,
    /// For this long.
    For(Duration),
}

impl ControlPersist {
    pub(crate) fn parse(value: &str) -> Option<Self> {
        match flag(value) {
            Some(true) => Some(Self::Forever),
            Some(false) => Some(Self::No),
            None => match duration(value)? {
                Duration::ZERO => Some(Self::Forever),
                time => Some(Self::For(time)),
            },
        }
    }
}

/// `RekeyLimit`: when keys are renewed, in addition to the cipher's requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RekeyLimit {
    /// After this many bytes; `None` for the cipher's own limit.
    pub bytes: Option<u64>,
    /// After this time; `None` for no limit in time.
    pub interval: Option<Duration>,
}

impl RekeyLimit {
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (bytes, seconds) = value.split_once(' ').unwrap_or((value, "0"));
        let bytes: u64 = bytes.parse().ok()?;
        let interval = duration(seconds.trim())?;
        Some(Self {
            bytes: (bytes != 0).then_some(bytes),
            interval: (!interval.is_zero()).then_some(interval),
        })
    }
}

/// Formats as in `RekeyLimit`: bytes, then seconds.
impl fmt::Display for RekeyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{bytes} ")?,
            None => f.write_str("default ")?,
        }
        match self.interval {
            Some(interval) => write!(f, "{}", interval.as_secs()),
            None => f.write_str("none"),
        }
    }
}

/// `IPQoS`: the type-of-service byte for sessions with a terminal, and for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IpQos {
    /// With a terminal; `None` leaves the system's default.
    pub interactive: Option<u8>,
    /// Without a terminal; `None` leaves the system's default.
    pub bulk: Option<u8>,
}

impl IpQos {
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (interactive, bulk) = value.split_once(' ').unwrap_or((value, value));
        Some(Self {
            interactive: type_of_service(interactive)?,
            bulk: type_of_service(bulk.trim())?,
        })
    }
}

/// Formats as in `IPQoS`, with numbers.
impl fmt::Display for IpQos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |byte: Option<u8>| byte.map_or("none".into(), |byte| format!("{byte:#04x}"));
        write!(f, "{} {}", number(self.interactive), number(self.bulk))
    }
}

/// Parses a name of misc.c's `ipqos[]`: those of RFC 2474, 2597, 3246 and 8622, and of the older RFC 1349.
#[allow(clippy::option_option, reason = "\"none\" is a value that is understood")]
fn type_of_service(name: &str) -> Option<Option<u8>> {
    let dscp = |code: u8| Some(Some(code << 2));
    if let Some(class) = name
        .strip_prefix("cs")
        .and_then(|n| n.parse::<u8>().ok())
        .filter(|n| *n < 8)
    {
        return dscp(class * 8);
    }
    if let Some([class @ b'1'..=b'4', drop @ b'1'..=b'3']) = name.strip_prefix("af").map(str::as_bytes) {
        return dscp((class - b'0') * 8 + (drop - b'0') * 2);
    }
    match name {
        "none" => Some(None),
        "ef" => dscp(46),
        "le" => dscp(1),
        "va" => dscp(44),
        "lowdelay" => Some(Some(0x10)),
        "throughput" => Some(Some(0x08)),
        "reliability" => Some(Some(0x04)),
        _ => match name.strip_prefix("0x") {
            Some(digits) => u8::from_str_radix(digits, 16).ok().map(Some),
            None => name.parse().ok().map(Some),
        },
    }
}

/// The listening end of a forwarding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP port; 0 lets the server choose (remote only).
    Tcp {
        /// The address; `None` follows `GatewayPorts`, `*` means every address.
        host: Option<String>,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Socket(PathBuf),
}

impl Listen {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(port) = text.parse() {
            return Some(Self::Tcp { host: None, port });
        }
        match parse_bracketed(text) {
            Some((host, port)) => Some(Self::Tcp {
                host: Some(host.into()),
                port,
            }),
            None => (!text.is_empty()).then(|| Self::Socket(text.into())),
        }
    }
}

/// Formats as `ssh -G` prints it.
impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host: None, port } => write!(f, "{port}"),
            Self::Tcp {
                host: Some(host),
                port,
            } => write!(f, "[{host}]:{port}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The target of a forwarding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ForwardTarget {
    /// A TCP port.
    Tcp {
        /// The name or address, for the far side to look up.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Socket(PathBuf),
    /// A SOCKS client's target (`RemoteForward` with one argument).
    Socks,
}

impl std::fmt::Display for ForwardTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Socks => f.write_str("SOCKS"),
        }
    }
}

/// `LocalForward` or `RemoteForward`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Forward {
    /// The listening end.
    pub listen: Listen,
    /// The target.
    pub target: ForwardTarget,
}

impl Forward {
    /// Parses `LISTEN TARGET`: a port, `[host]:port` or a path each. Paths may contain spaces, so a bracketed target is
    /// searched from the end, and the second of two paths begins with a slash.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (listen, target) = match value.rfind(" [").map(|at| value.split_at(at)) {
            Some((listen, target)) if parse_bracketed(target.trim()).is_some() => {
                let (host, port) = parse_bracketed(target.trim())?;
                // readconf.c represents a dynamic forwarding as one to the host "socks", port 0.
                let target = match (host, port) {
                    ("socks", 0) => ForwardTarget::Socks,
                    _ => ForwardTarget::Tcp {
                        host: host.into(),
                        port,
                    },
                };
                (listen, target)
            }
            _ => {
                let (listen, target) = value.split_at(value.find(" /")?);
                (listen, ForwardTarget::Socket(target.trim_start().into()))
            }
        };
        Some(Self {
            listen: Listen::parse(listen)?,
            target,
        })
    }
}

/// Parses `[host]:port`.
fn parse_bracketed(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
    Some((host, port.parse().ok()?))
}

/// `ForwardAgent`, with its socket looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ForwardAgent {
    /// No forwarding.
    No,
    /// The agent that also authenticates.
    Yes,
    /// Another agent's socket.
    Socket(PathBuf),
}

/// `PermitRemoteOpen`: the allowed targets of a remote dynamic forwarding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PermitRemoteOpen {
    /// Anywhere.
    Any,
    /// Nowhere.
    None,
    /// To these `host:port`; either may be `*`, an IPv6 address is in brackets.
    Only(Vec<String>),
}

impl PermitRemoteOpen {
    pub(crate) fn parse(value: &str) -> Self {
        match value {
            "any" => Self::Any,
            "none" => Self::None,
            list => Self::Only(list.split_whitespace().map(str::to_owned).collect()),
        }
    }
}

/// Parses `EscapeChar`, which `ssh -G` prints like vis(3): `~`, `\^A`, `\\`, `none`. The inner `None` means none.
#[allow(clippy::option_option, reason = "\"none\" is a value that is understood")]
pub(crate) fn escape_char(value: &str) -> Option<Option<u8>> {
    match value.as_bytes() {
        b"none" => Some(None),
        [byte] | [b'\\', byte] => Some(Some(*byte)),
        [b'\\', b'^', b'?'] | [b'^', b'?'] => Some(Some(0x7f)),
        [b'\\', b'^', letter] | [b'^', letter] => Some(Some(letter & 0x1f)),
        [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7'] => {
            Some(Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0')))
        }
        _ => None,
    }
}

/// Parses a list of paths that `ssh -G` joins with spaces although paths may contain some.
///
/// ssh has made the user's files absolute, and names of system files are absolute in practice: a word that begins
/// neither at the root nor at a home directory continues the path before it. A list that begins with a relative path
/// has one path per word. Quoted words, should a later ssh print them, are taken as a whole.
pub(crate) fn paths(value: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    if value.contains('"') {
        return value
            .split('"')
            .enumerate()
            .flat_map(|(number, part)| match number % 2 {
                1 => vec![part.to_owned()],
                _ => part.split_whitespace().map(str::to_owned).collect(),
            })
            .collect();
    }
    let rooted = |word: &str| word.starts_with(['/', '~']);
    for word in value.split(' ') {
        match found.last_mut() {
            Some(previous) if !rooted(word) && rooted(previous) => {
                previous.push(' ');
                previous.push_str(word);
            }
            _ if word.is_empty() => {}
            _ => found.push(word.into()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_add_up() {
        let seconds = |text: &str| duration(text).map(|time| time.as_secs());
        assert_eq!(seconds("2m30s"), Some(150));
        assert_eq!(seconds("1w2d3h"), Some(7 * 86_400 + 2 * 86_400 + 3 * 3600));
        assert_eq!(seconds("90"), Some(90));
        for bad in ["", "m", "5x", "-1", "99999999999999999999w"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn type_of_service_names_are_those_of_the_system() {
        let qos = |text: &str| IpQos::parse(text).map(|qos| (qos.interactive, qos.bulk));
        assert_eq!(qos("af21 cs1"), Some((Some(0x48), Some(0x20))));
        assert_eq!(qos("ef none"), Some((Some(0xb8), None)));
        assert_eq!(qos("lowdelay throughput"), Some((Some(0x10), Some(0x08))));
        assert_eq!(qos("0x0d"), Some((Some(13), Some(13))));
        assert_eq!(qos("af44"), None);
    }

    #[test]
    fn an_escape_character_reads_as_vis_writes_it() {
        assert_eq!(escape_char("~"), Some(Some(b'~')));
        assert_eq!(escape_char("\\^A"), Some(Some(1)));
        assert_eq!(escape_char("\\^]"), Some(Some(0x1d)));
        assert_eq!(escape_char("\\\\"), Some(Some(b'\\')));
        assert_eq!(escape_char("none"), Some(None));
    }

    #[test]
    fn a_path_with_a_space_stays_one_path() {
        assert_eq!(paths("/root/kh /root/sp ace"), ["/root/kh", "/root/sp ace"]);
        assert_eq!(paths("one two"), ["one", "two"]);
        assert_eq!(paths("\"/a b\" /c"), ["/a b", "/c"]);
    }

    proptest! {
        #[test]
        fn no_value_panics(text in any::<String>()) {
            let _ = (duration(&text), AddKeysToAgent::parse(&text), ControlPersist::parse(&text));
            let _ = (RekeyLimit::parse(&text), IpQos::parse(&text), Forward::parse(&text), Listen::parse(&text));
            let _ = (PermitRemoteOpen::parse(&text), escape_char(&text), paths(&text), flag(&text));
        }

        #[test]
        fn near_values_do_not_panic(text in "[0-9a-z\\[\\]: /~\\\\^.\"]{0,24}") {
            let _ = (Forward::parse(&text), Listen::parse(&text), escape_char(&text), IpQos::parse(&text), paths(&text));
        }
    }
}
