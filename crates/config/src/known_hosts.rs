//! The known_hosts files: which keys a host may show, and which never (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT).
//!
//! [`KnownHosts`] contains several files, read once. It answers three questions without I/O:
//! [`key_types_for`](KnownHosts::key_types_for) and [`order_algorithms`](KnownHosts::order_algorithms) before the key
//! exchange, [`check`](KnownHosts::check) for a plain key and [`check_certificate`](KnownHosts::check_certificate) for
//! a certificate after it. [`append`] and [`update`] change a file. [`RevokedKeys`] is a `RevokedHostKeys` file.
//!
//! A line that cannot be parsed is skipped, as in OpenSSH, and listed in [`KnownHosts::problems`].

mod edit;

pub use edit::{Appended, append, update};

use crate::keys::{self, PublicKey};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trunkline_proto::certificate::{CertType, Certificate};
use trunkline_proto::wire::Reader;

/// The largest file that is read, in bytes: some 100,000 hosts.
const MAX_FILE: u64 = 64 << 20;

/// The longest line that is read, in bytes. The largest RSA key takes 2,800; the rest is for host names.
const MAX_LINE: usize = 64 << 10;

/// The contents of the known_hosts files.
///
/// ```
/// use trunkline_config::known_hosts::{KnownHosts, Verdict};
///
/// let line = b"*.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti\n";
/// let mut known = KnownHosts::default();
/// known.add_file("known_hosts".as_ref(), line);
///
/// assert_eq!(known.key_types_for("db.example").plain, ["ssh-ed25519"]);
/// let offered = ["rsa-sha2-512", "ssh-ed25519"];
/// assert_eq!(known.order_algorithms("db.example", &offered), ["ssh-ed25519", "rsa-sha2-512"]);
/// let shown = b"a key that the server showed";
/// assert!(matches!(known.check("db.example", 22, None, shown), Verdict::Changed { at, .. } if at.line == 1));
/// ```
#[derive(Debug, Clone, Default)]
pub struct KnownHosts {
    entries: Vec<Entry>,
    problems: Vec<Arc<Problem>>,
}

impl KnownHosts {
    /// Reads `files` in order. A missing file is empty. An unreadable one is a [problem](Self::problems), not an error,
    /// as in ssh: its hosts are unknown. Blocks.
    pub fn load<P: AsRef<Path>>(files: &[P]) -> Self {
        let mut known = Self::default();
        for file in files {
            match read_bounded(file.as_ref()) {
                Ok(content) => known.add_file(file.as_ref(), &content),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => known.problems.push(Arc::new(Problem::Unreadable {
                    file: file.as_ref().to_owned(),
                    source,
                })),
            }
        }
        known
    }

    /// Adds `content` as that of a file named `file`.
    pub fn add_file(&mut self, file: &Path, content: &[u8]) {
        let file: Arc<Path> = file.into();
        for (index, line) in content.split(|&b| b == b'\n').enumerate() {
            let at = Location {
                file: file.clone(),
                line: index + 1,
            };
            match Line::parse(line) {
                Ok(None) => {}
                Ok(Some(line)) => self.entries.push(Entry { at, line }),
                Err(why) => self.problems.push(Arc::new(Problem::BadLine { at, why })),
            }
        }
    }

    /// Returns the names of the hosts whose keys are known, except names that are hashed, patterns, or with a port.
    pub fn names(&self) -> Vec<String> {
        let plain = |name: &&str| !name.contains(['*', '?', '!', '[']) && !name.is_empty();
        self.entries
            .iter()
            .filter(|entry| entry.line.marker == Marker::Plain)
            .filter_map(|entry| match &entry.line.hosts {
                Hosts::Patterns(patterns) => std::str::from_utf8(patterns).ok(),
                Hosts::Hashed { .. } => None,
            })
            .flat_map(|patterns| patterns.split(',').filter(plain))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the files and lines that were skipped, for messages: a host may be unknown because of one.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().map(AsRef::as_ref)
    }

    /// Returns the key types that are known for a host under `name` (see [`lookup_name`]), in the files' order.
    pub fn key_types_for(&self, name: &str) -> KnownTypes {
        let mut known = KnownTypes::default();
        for entry in self.entries_for(name) {
            match entry.line.marker {
                Marker::CertAuthority => known.cert_authority = true,
                Marker::Revoked => {}
                Marker::Plain => {
                    // A revoked key or a certificate must not draw the negotiation to its type.
                    let listed = known.plain.contains(&entry.line.key_type);
                    let is_plain = keys::key_type(&entry.line.key).is_some();
                    if is_plain && !listed && self.revocation(name, &entry.line.key).is_none() {
                        known.plain.push(entry.line.key_type);
                    }
                }
            }
        }
        known
    }

    /// Returns `algorithms` (a client's HostKeyAlgorithms, best first) with those first that can verify the host under
    /// `name`, so that a host with several keys shows a known one.
    ///
    /// This is OpenSSH's `order_hostkeyalgs`: the list is unchanged if a key of the first algorithm's type is known;
    /// with a `@cert-authority` line every certificate algorithm is preferred. Apply it unless the user set
    /// HostKeyAlgorithms to a full list.
    pub fn order_algorithms<S: AsRef<str>>(&self, name: &str, algorithms: &[S]) -> Vec<String> {
        let known = self.key_types_for(name);
        let is_known = |algorithm: &str| {
            keys::key_type_of_algorithm(algorithm).is_some_and(|kind| known.plain.contains(&kind))
        };
        let all = algorithms.iter().map(|algorithm| algorithm.as_ref().to_owned());
        if algorithms.first().is_some_and(|best| is_known(best.as_ref())) {
            return all.collect();
        }
        let (mut first, last): (Vec<_>, Vec<_>) = all.partition(|algorithm| {
            (known.cert_authority && keys::is_certificate_algorithm(algorithm)) || is_known(algorithm)
        });
        first.extend(last);
        first
    }

    /// Checks a plain host key that `host` showed on `port`; `alias` is HostKeyAlias, used instead of both.
    ///
    /// As in OpenSSH, a host on another port than 22 that is unknown as `[host]:port` is also looked up as `host`,
    /// where only a match counts.
    pub fn check(&self, host: &str, port: u16, alias: Option<&str>, key: &[u8]) -> Verdict {
        let verdict = self.check_name(&lookup_name(host, port, alias), key);
        if verdict != Verdict::Unknown || alias.is_some() || port == DEFAULT_PORT {
            return verdict;
        }
        match self.check_name(&lookup_name(host, DEFAULT_PORT, None), key) {
            Verdict::Trusted { at, .. } => Verdict::Trusted {
                at,
                without_port: true,
            },
            // Stricter than OpenSSH, which continues with the unknown host: a revoked key is never offered.
            Verdict::Revoked { at } => Verdict::Revoked { at },
            Verdict::Unknown | Verdict::Changed { .. } => Verdict::Unknown,
        }
    }

    /// Checks a plain key under exactly the name `name`.
    pub fn check_name(&self, name: &str, key: &[u8]) -> Verdict {
        if let Some(at) = self.revocation(name, key) {
            return Verdict::Revoked { at };
        }
        let mut other: Option<&Entry> = None;
        for entry in self
            .entries_for(name)
            .filter(|entry| entry.line.marker == Marker::Plain)
        {
            if entry.line.key == key {
                return Verdict::Trusted {
                    at: entry.at.clone(),
                    without_port: false,
                };
            }
            // Among several other keys, one of the same type explains the most.
            let better = other.is_none_or(|_| Some(entry.line.key_type) == keys::key_type(key));
            if better {
                other = Some(entry);
            }
        }
        other.map_or(Verdict::Unknown, |entry| Verdict::Changed {
            at: entry.at.clone(),
            known_type: entry.line.key_type,
        })
    }

    /// Checks a host certificate that `host` showed on `port`, at the time `now` (seconds since 1970).
    ///
    /// A `@cert-authority` line for the host must have the certificate's authority. The certificate must be for hosts,
    /// list the host (or its `alias`) among its principals, which may be patterns, be within its time, have no critical
    /// options, and be signed with one of `ca_algorithms` (CASignatureAlgorithms). Neither its key nor its authority
    /// may be `@revoked` (sshkey.c, `sshkey_cert_check_host`).
    pub fn check_certificate<S: AsRef<str>>(
        &self,
        host: &str,
        port: u16,
        alias: Option<&str>,
        certificate: &Certificate,
        now: u64,
        ca_algorithms: &[S],
    ) -> CertificateVerdict {
        let mut names = vec![lookup_name(host, port, alias)];
        if alias.is_none() && port != DEFAULT_PORT {
            names.push(lookup_name(host, DEFAULT_PORT, None));
        }
        for name in &names {
            let revoked = self.revocation(name, certificate.key_blob());
            if let Some(at) = revoked.or_else(|| self.revocation(name, certificate.ca_key())) {
                return CertificateVerdict::Revoked { at };
            }
        }
        let authority = names.iter().find_map(|name| {
            self.entries_for(name).find(|entry| {
                entry.line.marker == Marker::CertAuthority && entry.line.key == certificate.ca_key()
            })
        });
        let Some(authority) = authority else {
            return CertificateVerdict::NoAuthority;
        };
        let principal = alias.unwrap_or(host).to_ascii_lowercase();
        match refusal(certificate, &principal, now, ca_algorithms) {
            Some(refusal) => CertificateVerdict::Refused(refusal),
            None => CertificateVerdict::Trusted {
                at: authority.at.clone(),
            },
        }
    }

    /// Returns the other places of a plain key, with its names there; `[hashed]` stands for a hashed name.
    pub fn names_of(&self, key: &[u8]) -> Vec<(Location, String)> {
        self.entries
            .iter()
            .filter(|entry| entry.line.marker == Marker::Plain && entry.line.key == key)
            .map(|entry| (entry.at.clone(), entry.line.hosts.to_string()))
            .collect()
    }

    /// Returns every line, for decisions that look beyond one host's lines (UpdateHostKeys).
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&Location, &Line)> {
        self.entries.iter().map(|entry| (&entry.at, &entry.line))
    }

    fn entries_for(&self, name: &str) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.line.hosts.matches(name))
    }

    /// Returns the place where `key` is marked `@revoked` for the host under `name`.
    fn revocation(&self, name: &str, key: &[u8]) -> Option<Location> {
        self.entries
            .iter()
            .filter(|entry| entry.line.marker == Marker::Revoked && entry.line.key == key)
            .find(|entry| entry.line.hosts.matches(name))
            .map(|entry| entry.at.clone())
    }
}

/// The verdict about a plain host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The host is known by this key.
    Trusted {
        /// The line with the key.
        at: Location,
        /// That line names the host without the port.
        without_port: bool,
    },
    /// Nothing is known of the host.
    Unknown,
    /// The host is known by another key, of the same or another type.
    Changed {
        /// The line with the other key, preferably of the shown key's type.
        at: Location,
        /// The type of the other key.
        known_type: &'static str,
    },
    /// The key is marked as revoked.
    Revoked {
        /// The `@revoked` line.
        at: Location,
    },
}

/// The verdict about a host certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateVerdict {
    /// The certificate's authority is trusted for the host, and the certificate is valid.
    Trusted {
        /// The `@cert-authority` line.
        at: Location,
    },
    /// The certificate's authority is not trusted for the host. The key in it may be known as a plain key.
    NoAuthority,
    /// The authority is trusted but the certificate is not valid. The key in it may be known as a plain key.
    Refused(CertificateRefusal),
    /// The certificate's key or its authority is revoked.
    Revoked {
        /// The `@revoked` line.
        at: Location,
    },
}

/// The reason why a certificate of a trusted authority is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateRefusal {
    /// It is a user certificate.
    #[error("it is a user certificate")]
    NotForHosts,
    /// It is for other hosts.
    #[error("it is for {}, not for {host}", principals.join(", "))]
    OtherHost {
        /// The expected name.
        host: String,
        /// The certificate's names.
        principals: Vec<String>,
    },
    /// It has no principals.
    #[error("it names no host (its list of principals is empty)")]
    NoPrincipals,
    /// It is not valid yet.
    #[error("it is not valid yet")]
    NotYetValid {
        /// The beginning of its validity, in seconds since 1970.
        from: u64,
    },
    /// It has expired.
    #[error("it has expired")]
    Expired {
        /// The end of its validity, in seconds since 1970.
        at: u64,
    },
    /// It has a critical option; none is defined for hosts.
    #[error("it has the unknown critical option {name:?}")]
    CriticalOption {
        /// The option.
        name: String,
    },
    /// It is signed with a forbidden algorithm.
    #[error("it is signed with {algorithm}, which CASignatureAlgorithms does not allow")]
    Algorithm {
        /// The algorithm.
        algorithm: String,
    },
    /// Its signature is wrong.
    #[error("its signature is wrong: {0}")]
    Signature(String),
}

/// Returns why `certificate`, whose authority is trusted, is not valid for `host`.
fn refusal<S: AsRef<str>>(
    certificate: &Certificate,
    host: &str,
    now: u64,
    ca_algorithms: &[S],
) -> Option<CertificateRefusal> {
    // All other fields only count if the authority has signed them.
    if let Err(error) = certificate.verify_ca_signature() {
        return Some(CertificateRefusal::Signature(error.to_string()));
    }
    if certificate.cert_type() != CertType::Host {
        return Some(CertificateRefusal::NotForHosts);
    }
    let algorithm = certificate.ca_signature_algorithm();
    if !ca_algorithms.iter().any(|allowed| allowed.as_ref() == algorithm) {
        return Some(CertificateRefusal::Algorithm {
            algorithm: algorithm.to_owned(),
        });
    }
    if now < certificate.valid_after() {
        return Some(CertificateRefusal::NotYetValid {
            from: certificate.valid_after(),
        });
    }
    if now >= certificate.valid_before() {
        return Some(CertificateRefusal::Expired {
            at: certificate.valid_before(),
        });
    }
    // As in OpenSSH 10.3 and later: a principal may be a pattern, and a certificate without any is for nobody
    // (PROTOCOL.certkeys once said for everybody).
    let principals = certificate.principals();
    let is_ours = |principal: &String| {
        // Unlike a line's pattern, it is case-sensitive.
        !principal.bytes().any(|byte| byte.is_ascii_uppercase())
            && matches_pattern(host.as_bytes(), principal.as_bytes())
    };
    if principals.is_empty() {
        return Some(CertificateRefusal::NoPrincipals);
    }
    if !principals.iter().any(is_ours) {
        return Some(CertificateRefusal::OtherHost {
            host: host.to_owned(),
            principals: principals.to_vec(),
        });
    }
    let option = certificate.critical_options().first();
    option.map(|(name, _)| CertificateRefusal::CriticalOption { name: name.clone() })
}

/// The types of keys known for one host; see [`KnownHosts::key_types_for`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownTypes {
    /// The types of plain keys, without repetition, in the files' order.
    pub plain: Vec<&'static str>,
    /// A certificate authority is trusted for the host.
    pub cert_authority: bool,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file's path, as given.
    pub file: Arc<Path>,
    /// The line's number, from 1.
    pub line: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A file or line that could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file exists but could not be read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The line is not in the format of known_hosts, or has an unknown type of key.
    #[error("{at}: {why}")]
    BadLine {
        /// The line.
        at: Location,
        /// The problem.
        why: &'static str,
    },
}

/// The reason why a known_hosts or revocation file could not be changed or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum KnownHostsError {
    /// Reading, locking or writing failed.
    #[error("cannot {action} {}: {source}", file.display())]
    Io {
        /// The attempted action: "read", "lock", "write" …
        action: &'static str,
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A key to be written has no type that known_hosts supports.
    #[error("a key of an unknown type cannot be written to {}", file.display())]
    UnknownKeyType { file: PathBuf },
    /// A host name contains characters that would break the file's lines.
    #[error("{name:?} cannot be written as a host name in known_hosts")]
    BadName { name: String },
    /// The revocation file is a binary key revocation list, or has a line that is not a key.
    #[error(
        "{at} is not a public key; trunkline reads RevokedHostKeys as a list of keys, so a host that needs a binary \
         revocation list has to be reached through the OpenSSH transport"
    )]
    NotAKeyList { at: Location },
}

const DEFAULT_PORT: u16 = 22;

/// Returns the name of a host in known_hosts, in lower case: `alias`, else `host`, as `[host]:port` if the port is not
/// 22 (sshd(8)).
pub fn lookup_name(host: &str, port: u16, alias: Option<&str>) -> String {
    match alias {
        // Patterns ignore case, but hashes are of the name in lower case (hostfile.c).
        Some(alias) => alias.to_ascii_lowercase(),
        None if port == DEFAULT_PORT || port == 0 => host.to_ascii_lowercase(),
        None => format!("[{}]:{port}", host.to_ascii_lowercase()),
    }
}

/// The keys of a `RevokedHostKeys` file: one public key per line. Binary revocation lists (KRL) are refused.
#[derive(Debug, Clone, Default)]
pub struct RevokedKeys {
    keys: Vec<(Location, Bytes)>,
}

impl RevokedKeys {
    /// Reads the file. Unlike with known_hosts, every failure is an error: OpenSSH refuses to connect to any host if it
    /// does not know the revoked keys (ssh_config(5)). Blocks.
    pub fn load(file: &Path) -> Result<Self, KnownHostsError> {
        let content = read_bounded(file).map_err(|source| KnownHostsError::Io {
            action: "read",
            file: file.to_owned(),
            source,
        })?;
        let file: Arc<Path> = file.into();
        let mut revoked = Vec::new();
        for (index, line) in content.split(|&b| b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let at = Location {
                file: file.clone(),
                line: index + 1,
            };
            // A certificate stands for the key in it (authfile.c, `sshkey_check_revoked`).
            match PublicKey::parse(line).and_then(|key| keys::without_certificate(key.blob)) {
                Some(key) => revoked.push((at, key)),
                None => return Err(KnownHostsError::NotAKeyList { at }),
            }
        }
        Ok(Self { keys: revoked })
    }

    /// Returns the place where `key` is listed as revoked, if it is. Also check a certificate's key and its CA's.
    pub fn location_of(&self, key: &[u8]) -> Option<&Location> {
        self.keys
            .iter()
            .find(|(_, revoked)| revoked == key)
            .map(|(at, _)| at)
    }
}

#[derive(Debug, Clone)]
struct Entry {
    at: Location,
    line: Line,
}

/// One line with a key.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) marker: Marker,
    pub(crate) hosts: Hosts,
    /// The type of the plain key, even if the line has a certificate.
    pub(crate) key_type: &'static str,
    /// Hosts do not show a certificate as a plain key, so that an unmarked line with one never matches.
    pub(crate) key: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marker {
    Plain,
    CertAuthority,
    Revoked,
}

impl Line {
    /// Parses a line without its line feed; `None` for an empty line or a comment.
    pub(crate) fn parse(line: &[u8]) -> Result<Option<Self>, &'static str> {
        if line.len() > MAX_LINE {
            return Err("the line is longer than 64 KiB");
        }
        let mut fields = Fields(line.trim_ascii());
        if fields.0.is_empty() || fields.0.starts_with(b"#") {
            return Ok(None);
        }
        let marker = match fields.0.first() {
            Some(b'@') => match fields.next() {
                b"@cert-authority" => Marker::CertAuthority,
                b"@revoked" => Marker::Revoked,
                _ => return Err("the marker is neither @cert-authority nor @revoked"),
            },
            _ => Marker::Plain,
        };
        let hosts = Hosts::parse(fields.next()).ok_or("the hashed host name is malformed")?;
        let name = fields.next();
        let encoded = fields.next();
        if encoded.is_empty() {
            return Err("the line ends before the key");
        }
        let key = STANDARD
            .decode(encoded)
            .map_err(|_| "the key is not valid base64")?;
        if Reader::new(&key).name().map(str::as_bytes) != Ok(name) {
            return Err("the key is not of the type that the line says");
        }
        let key = Bytes::from(key);
        let plain = keys::without_certificate(key.clone()).ok_or("the certificate cannot be read")?;
        let key_type = keys::key_type(&plain).ok_or("unknown key type")?;
        Ok(Some(Self {
            marker,
            hosts,
            key_type,
            // hostfile.c compares marked lines by the key in a certificate (`sshkey_equal_public`), and unmarked ones
            // unchanged.
            key: if marker == Marker::Plain { key } else { plain },
        }))
    }
}

/// The rest of a line, taken word by word.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Takes the next word; empty at the end of the line.
    fn next(&mut self) -> &'a [u8] {
        let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
        let start = self.0.iter().position(|b| !is_blank(b)).unwrap_or(self.0.len());
        let rest = &self.0[start..];
        let end = rest.iter().position(is_blank).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.0 = rest;
        word
    }
}

/// The first field of a line: its hosts.
#[derive(Debug, Clone)]
pub(crate) enum Hosts {
    /// Comma-separated patterns.
    Patterns(Box<[u8]>),
    /// HMAC-SHA1 of one name with a salt (HashKnownHosts).
    Hashed {
        salt: [u8; HASH_LEN],
        hash: [u8; HASH_LEN],
    },
}

const HASH_LEN: usize = 20;

impl Hosts {
    fn parse(field: &[u8]) -> Option<Self> {
        if !field.starts_with(b"|") {
            return Some(Self::Patterns(field.into()));
        }
        let (salt, hash) = std::str::from_utf8(field)
            .ok()?
            .strip_prefix("|1|")?
            .split_once('|')?;
        let decode = |text: &str| STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        Some(Self::Hashed {
            salt: decode(salt)?,
            hash: decode(hash)?,
        })
    }

    /// Returns whether the line is about the host known as `name`.
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Patterns(patterns) => matches_patterns(name.as_bytes(), patterns),
            Self::Hashed { salt, hash } => {
                constant_time::verify_slices_are_equal(&hash_name(salt, name), hash).is_ok()
            }
        }
    }

    /// Returns whether the field names more than one host.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::Patterns(patterns) if patterns.contains(&b','))
    }

    /// Returns whether the field has a form that ssh never writes: a wildcard, or more than `host,address`.
    pub(crate) fn is_complex(&self) -> bool {
        match self {
            Self::Hashed { .. } => false,
            Self::Patterns(patterns) => {
                patterns.iter().any(|b| matches!(b, b'*' | b'?' | b'!'))
                    || patterns.iter().filter(|b| **b == b',').count() > 1
            }
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Patterns(patterns) => f.write_str(&String::from_utf8_lossy(patterns)),
            Self::Hashed { .. } => f.write_str("[hashed]"),
        }
    }
}

/// Returns the HMAC-SHA1 of a host's name, keyed with the salt (hostfile.c, `host_hash`).
fn hash_name(salt: &[u8; HASH_LEN], name: &str) -> [u8; HASH_LEN] {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
    let tag = hmac::sign(&key, name.as_bytes());
    let mut hash = [0; HASH_LEN];
    hash.copy_from_slice(tag.as_ref());
    hash
}

/// Matches like OpenSSH's `match_hostname`: one pattern has to match and no negated one may; case is ignored.
fn matches_patterns(name: &[u8], patterns: &[u8]) -> bool {
    let mut found = false;
    for pattern in patterns.split(|&b| b == b',') {
        match pattern.strip_prefix(b"!") {
            Some(negated) if matches_pattern(name, negated) => return false,
            Some(_) => {}
            None => found |= matches_pattern(name, pattern),
        }
    }
    found
}

/// Matches `*` with any characters and `?` with one. Linear in practice: only the last `*` is ever retried.
pub(crate) fn matches_pattern(name: &[u8], pattern: &[u8]) -> bool {
    let (mut n, mut p) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || c.eq_ignore_ascii_case(&name[n]) => {
                n += 1;
                p += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    n = taken + 1;
                    p = at + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the file is larger than 64 MiB",
        ));
    }
    Ok(content)
}

#[cfg(test)]
mod tests;
