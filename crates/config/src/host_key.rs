//! The decision about a server, by the host key it showed (sshconnect.c, `check_host_key`).
//!
//! [`Policy`] has the settings of ssh_config, [`Trust`] the contents of the files, [`Server`] the requested server.
//! [`decide`] combines them without any I/O: accept, accept and remember, ask, or reject. To remember or ask is a value
//! with a method that does it.
//!
//! [`KeyUpdate`] is the other half, UpdateHostKeys: it learns from a server that lists its keys.

#[cfg(test)]
mod as_ssh;
mod update;

pub use update::{KeyUpdate, ProvenUpdate, UnprovenKeys};

use crate::keys;
use crate::known_hosts::{
    self, Appended, CertificateRefusal, CertificateVerdict, KnownHosts, KnownHostsError, Location,
    RevokedKeys, Verdict, lookup_name,
};
use crate::prompt::{Prompt, PromptKind, Prompter};
use crate::ssh_config::{NameList, StrictHostKeyChecking, UpdateHostKeys};
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use std::net::IpAddr;
use std::path::PathBuf;
use trunkline_proto::certificate::{Certificate, CertificateError};
use trunkline_proto::signature::{self, fingerprint};

/// The settings of ssh_config for host keys.
#[derive(Debug, Clone)]
pub struct Policy {
    /// `StrictHostKeyChecking`.
    pub strict: StrictHostKeyChecking,
    /// `UpdateHostKeys`.
    pub update: UpdateHostKeys,
    /// `CheckHostIP`.
    pub check_host_ip: bool,
    /// `NoHostAuthenticationForLocalhost`.
    pub no_host_authentication_for_localhost: bool,
    /// `HashKnownHosts`.
    pub hash_known_hosts: bool,
    /// `UserKnownHostsFile`, expanded; new keys go to the first. Empty if set to `none`.
    pub user_files: Vec<PathBuf>,
    /// `GlobalKnownHostsFile`, expanded; never written.
    pub global_files: Vec<PathBuf>,
    /// `RevokedHostKeys`, expanded.
    pub revoked_file: Option<PathBuf>,
    /// `CASignatureAlgorithms`: the algorithms that certificates may be signed with.
    pub ca_signature_algorithms: NameList,
    /// `RequiredRSASize` in bits. The protocol core verifies nothing below 1024.
    pub required_rsa_bits: usize,
}

impl Policy {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// Only for [`revoked_file`](Self::revoked_file): without it nothing can be trusted.
    pub fn load(&self) -> Result<Trust, KnownHostsError> {
        let files: Vec<_> = self.user_files.iter().chain(&self.global_files).collect();
        let revoked = self
            .revoked_file
            .as_deref()
            .map(RevokedKeys::load)
            .transpose()?
            .unwrap_or_default();
        Ok(Trust {
            known: KnownHosts::load(&files),
            revoked,
        })
    }

    fn is_user_file(&self, at: &Location) -> bool {
        self.user_files.iter().any(|file| **file == *at.file)
    }
}

/// The contents of the files.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// The known_hosts files, the user's first.
    pub known: KnownHosts,
    /// The revoked keys.
    pub revoked: RevokedKeys,
}

/// The requested server.
#[derive(Debug, Clone, Copy)]
pub struct Server<'a> {
    /// The host name connected to (`HostName`), not its address.
    pub name: &'a str,
    /// Its port.
    pub port: u16,
    /// `HostKeyAlias`.
    pub alias: Option<&'a str>,
    /// The address connected to; `None` behind a proxy or jump host.
    pub address: Option<IpAddr>,
}

impl Server<'_> {
    /// Returns the host's name in known_hosts.
    pub fn lookup_name(&self) -> String {
        lookup_name(self.name, self.port, self.alias)
    }

    fn is_local(&self) -> bool {
        self.address.is_some_and(|address| address.is_loopback())
    }

    /// Returns the name of the address, if CheckHostIP applies: not to localhost, behind a proxy, or if the address is
    /// the name.
    fn address_name(&self, policy: &Policy) -> Option<String> {
        let address = self
            .address
            .filter(|_| policy.check_host_ip && !self.is_local())?
            .to_string();
        (!address.eq_ignore_ascii_case(self.name)).then(|| lookup_name(&address, self.port, None))
    }
}

/// The decision about a server.
#[derive(Debug)]
pub enum Decision {
    /// Accept the key.
    Accept(Accepted),
    /// Accept the key, and add it to the user's file. A failure to write is only worth a warning.
    AcceptAndRemember(Accepted, Remember),
    /// Ask the user; see [`Question::put_to`].
    Ask(Box<Question>),
    /// Close the connection.
    Reject(HostKeyError),
}

/// A host key that is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The plain key, without its certificate.
    pub key: Bytes,
    /// The key changed or is revoked, and only `StrictHostKeyChecking no` accepted it. Everything that an impostor
    /// could exploit is forbidden: password and keyboard-interactive authentication, forwarding of agent, X11, ports or
    /// tunnels (ssh_config(5)).
    pub is_unverified: bool,
    /// The server's list of its keys may change the user's files (UpdateHostKeys).
    pub may_update: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The place where the key, or the authority that certified it, is listed; `None` if it was unknown.
    pub known_at: Option<Location>,
}

/// A key to add to the user's first file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remember {
    /// The file.
    pub file: PathBuf,
    /// The names to add it for.
    pub names: Vec<String>,
    /// The key's blob.
    pub key: Bytes,
    /// The names are hashed.
    pub hash: bool,
}

impl Remember {
    /// Adds the key. Blocks.
    ///
    /// # Errors
    /// As [`known_hosts::append`].
    pub fn write(&self) -> Result<Appended, KnownHostsError> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        known_hosts::append(&self.file, &names, &self.key, self.hash)
    }

    /// Returns ssh's message to the user about it.
    pub fn notice(&self) -> String {
        let kind = shown_type(&self.key);
        format!(
            "Permanently added '{}' ({kind}) to the list of known hosts.",
            self.names.join(",")
        )
    }
}

/// A question about a host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The text to show.
    pub text: String,
    /// The fingerprint, which also counts as a yes.
    pub fingerprint: String,
    host: String,
    accepted: Accepted,
    remember: Option<Remember>,
}

/// The user's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Accept the key.
    Yes,
    /// Close the connection.
    No,
    /// Something else; ask again.
    Unclear,
}

/// The number of times that a question is repeated after an unclear answer. ssh repeats it forever, even for a script
/// that always gives the same wrong answer.
const MAX_ATTEMPTS: usize = 5;

impl Question {
    /// Parses an answer: `yes` or the fingerprint, `no` or nothing (sshconnect.c, `confirm`).
    pub fn understand(&self, answer: &str) -> Reply {
        let answer = answer.trim();
        if answer.is_empty() || answer.eq_ignore_ascii_case("no") {
            Reply::No
        } else if answer.eq_ignore_ascii_case("yes") || answer == self.fingerprint {
            Reply::Yes
        } else {
            Reply::Unclear
        }
    }

    /// Asks until the answer is clear, and decides: never another [`Decision::Ask`].
    pub async fn put_to(self, prompter: &dyn Prompter) -> Decision {
        let mut prompt = Prompt::new(PromptKind::HostKey, self.text.clone(), true);
        for _ in 0..MAX_ATTEMPTS {
            let reply = match prompter.ask(&prompt).await {
                Some(answer) => self.understand(&answer),
                None => Reply::No,
            };
            match reply {
                Reply::Yes => return self.accept(),
                Reply::No => break,
                Reply::Unclear => "Please type 'yes', 'no' or the fingerprint: ".clone_into(&mut prompt.text),
            }
        }
        Decision::Reject(HostKeyError::NotConfirmed {
            host: self.host,
            fingerprint: self.fingerprint,
        })
    }

    /// Returns the decision after a yes.
    fn accept(self) -> Decision {
        match self.remember {
            Some(remember) => Decision::AcceptAndRemember(self.accepted, remember),
            None => Decision::Accept(self.accepted),
        }
    }
}

/// The reason why a host key is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names say it")]
pub enum HostKeyError {
    /// The host is known by another key.
    #[error(
        "THE HOST KEY OF {host} HAS CHANGED. Someone may be impersonating the server (a man in the middle), or \
         its key was replaced. It showed the {key_type} key {fingerprint}; {at} holds another {known_type} key. \
         Compare the fingerprint with what the server's administrator says. If it is right, remove the old \
         key with: ssh-keygen -f \"{}\" -R \"{host}\"", at.file.display()
    )]
    Changed {
        /// The host's name in known_hosts.
        host: String,
        /// The type of the key shown, as ssh names it.
        key_type: String,
        fingerprint: String,
        /// The type of the known key.
        known_type: String,
        /// The place of the known key.
        at: Location,
    },
    /// The host name's address is known by another key (CheckHostIP).
    #[error(
        "the address {address} of {host} is known by another key, at {at}: its DNS record may be forged, or the \
         address was given to another machine. If that is right, remove the old key with: \
         ssh-keygen -f \"{}\" -R \"{address}\"", at.file.display()
    )]
    AddressChanged {
        /// The host's name in known_hosts.
        host: String,
        /// The address's name there.
        address: String,
        /// The place of the other key.
        at: Location,
    },
    /// The key, or the authority that certified it, is revoked.
    #[error(
        "THE HOST KEY OF {host} IS REVOKED by {at}: a stolen key may be in use to impersonate the server \
         (it showed the {key_type} key {fingerprint})"
    )]
    Revoked {
        /// The host's name in known_hosts.
        host: String,
        /// The type of the key shown.
        key_type: String,
        fingerprint: String,
        /// The place of the line that revokes it.
        at: Location,
    },
    /// The host is unknown, and unknown hosts are not accepted.
    #[error(
        "{host} is not a known host, and StrictHostKeyChecking is on (it showed the {key_type} key {fingerprint}){}",
        hint(refusal.as_ref())
    )]
    Unknown {
        /// The host's name in known_hosts.
        host: String,
        /// The type of the key shown.
        key_type: String,
        fingerprint: String,
        /// The reason why its certificate was not accepted.
        refusal: Option<CertificateRefusal>,
    },
    /// The host is unknown, and there is no file to remember it in (`UserKnownHostsFile none`).
    #[error("{host} is not a known host, and with UserKnownHostsFile none it cannot become one")]
    NowhereToRemember {
        /// The host's name in known_hosts.
        host: String,
    },
    /// The user did not confirm the key, or there was nobody to ask.
    #[error("the key of the unknown host {host} was not confirmed ({fingerprint})")]
    NotConfirmed {
        /// The host's name in known_hosts.
        host: String,
        /// The fingerprint of the key shown.
        fingerprint: String,
    },
    /// The program's own verification refused the key (`Login::verify_host_key`).
    #[error("the host key of {host} was refused by the program's own verification ({fingerprint})")]
    RefusedByProgram {
        /// The host's name in known_hosts.
        host: String,
        /// The fingerprint of the key shown.
        fingerprint: String,
    },
    /// The server's RSA key is too short.
    #[error("{host} has an RSA host key of {bits} bits; RequiredRSASize requires {required}")]
    RsaSize {
        /// The host's name in known_hosts.
        host: String,
        /// The size of its modulus in bits.
        bits: usize,
        /// The required size.
        required: usize,
    },
    /// The server's host certificate cannot be parsed.
    #[error("{host} showed a damaged host certificate: {source}")]
    BadCertificate {
        /// The host's name in known_hosts.
        host: String,
        source: CertificateError,
    },
    /// The key changed or is revoked and StrictHostKeyChecking no accepted it, which forbids everything that relies on
    /// the server's identity ([`Accepted::is_unverified`]).
    #[error(
        "{what} is disabled to avoid man-in-the-middle attacks: the host key of {host} could not be verified"
    )]
    Disabled {
        host: String,
        /// The requested feature, by ssh's name: "Port forwarding".
        what: &'static str,
    },
    /// The same, and ExitOnForwardFailure makes that an error of the connection.
    #[error("{host}: forwarding disabled due to host key check failure, and ExitOnForwardFailure is set")]
    ForwardingDisabled { host: String },
    /// The server did not prove that it has the keys it lists (UpdateHostKeys). Nothing was learned.
    #[error("{host} could not prove that it has the host keys it lists: {reason}")]
    NotProven {
        /// The host's name in known_hosts.
        host: String,
        /// The problem with the proof.
        reason: String,
    },
}

fn hint(refusal: Option<&CertificateRefusal>) -> String {
    refusal
        .map(|refusal| format!("; its certificate is not accepted: {refusal}"))
        .unwrap_or_default()
}

/// Decides about `presented`, the host key or certificate blob of the key exchange, whose signature has been verified.
///
/// `now` is the time in seconds since 1970, for certificates.
///
/// ```no_run
/// # async fn example(policy: trunkline_config::host_key::Policy, key: &[u8], now: u64) -> Result<(), Box<dyn std::error::Error>> {
/// use trunkline_config::host_key::{Decision, Server, decide};
/// use trunkline_config::prompt::Standard;
///
/// let trust = policy.load()?;
/// let server = Server { name: "db.example", port: 22, alias: None, address: None };
/// let decision = match decide(&policy, &trust, &server, key, now) {
///     Decision::Ask(question) => question.put_to(&Standard::from_env(std::env::vars_os())).await,
///     decision => decision,
/// };
/// match decision {
///     Decision::Accept(accepted) => println!("warnings: {:?}", accepted.warnings),
///     Decision::AcceptAndRemember(_, remember) => drop(remember.write()?),
///     Decision::Reject(error) => return Err(error.into()),
///     Decision::Ask(_) => unreachable!("put_to decides"),
/// }
/// # Ok(())
/// # }
/// ```
pub fn decide(policy: &Policy, trust: &Trust, server: &Server<'_>, presented: &[u8], now: u64) -> Decision {
    let host = server.lookup_name();
    let certificate = match parse_certificate(presented) {
        Ok(certificate) => certificate,
        Err(source) => return Decision::Reject(HostKeyError::BadCertificate { host, source }),
    };
    let key = certificate.as_ref().map_or(presented, Certificate::key_blob);
    let case = Case {
        policy,
        trust,
        server,
        host,
        key,
    };

    if let Ok(Some(bits)) = signature::rsa_bits(key)
        && bits < policy.required_rsa_bits
    {
        return Decision::Reject(HostKeyError::RsaSize {
            host: case.host,
            bits,
            required: policy.required_rsa_bits,
        });
    }
    let authority = certificate.as_ref().map(Certificate::ca_key);
    let revoked = trust
        .revoked
        .location_of(key)
        .or_else(|| trust.revoked.location_of(authority?));
    if let Some(at) = revoked {
        // Not even StrictHostKeyChecking no accepts these.
        return Decision::Reject(case.revoked_error(at.clone()));
    }
    // Machines that are all called localhost may share home directories; NoHostAuthenticationForLocalhost disables the
    // comparison of their keys.
    if policy.no_host_authentication_for_localhost && server.is_local() && server.alias.is_none() {
        return Decision::Accept(case.acceptance());
    }
    match &certificate {
        Some(certificate) => case.decide_certificate(certificate, now),
        None => case.decide_key(None),
    }
}

/// Returns the strictest `StrictHostKeyChecking` that accepts the key without asking, or the policy's own.
pub fn strictest_that_passes(
    policy: &Policy,
    trust: &Trust,
    server: &Server<'_>,
    presented: &[u8],
    now: u64,
) -> StrictHostKeyChecking {
    let passes = |strict: &StrictHostKeyChecking| {
        let policy = Policy {
            strict: *strict,
            ..policy.clone()
        };
        match decide(&policy, trust, server, presented, now) {
            Decision::Accept(accepted) | Decision::AcceptAndRemember(accepted, _) => !accepted.is_unverified,
            Decision::Ask(_) | Decision::Reject(_) => false,
        }
    };
    StrictHostKeyChecking::ALL
        .into_iter()
        .find(|strict| *strict == policy.strict || passes(strict))
        .unwrap_or(policy.strict)
}

fn parse_certificate(presented: &[u8]) -> Result<Option<Certificate>, CertificateError> {
    let is_certificate = signature::key_type(presented).is_ok_and(keys::is_certificate_algorithm);
    if is_certificate {
        Certificate::parse(presented).map(Some)
    } else {
        Ok(None)
    }
}

/// A host key to decide about.
struct Case<'a> {
    policy: &'a Policy,
    trust: &'a Trust,
    server: &'a Server<'a>,
    host: String,
    key: &'a [u8],
}

impl Case<'_> {
    fn decide_certificate(self, certificate: &Certificate, now: u64) -> Decision {
        let Server {
            name, port, alias, ..
        } = *self.server;
        let algorithms = &self.policy.ca_signature_algorithms;
        match self
            .trust
            .known
            .check_certificate(name, port, alias, certificate, now, algorithms)
        {
            CertificateVerdict::Trusted { at } => Decision::Accept(Accepted {
                known_at: Some(at),
                ..self.acceptance()
            }),
            CertificateVerdict::Revoked { at } => self.decide_revoked(at),
            // As if it were a plain key, by which the host may be known.
            CertificateVerdict::NoAuthority => self.decide_key(None),
            CertificateVerdict::Refused(refusal) => self.decide_key(Some(refusal)),
        }
    }

    fn decide_key(self, refusal: Option<CertificateRefusal>) -> Decision {
        let Server {
            name, port, alias, ..
        } = *self.server;
        match self.trust.known.check(name, port, alias, self.key) {
            Verdict::Trusted { at, without_port } => self.decide_trusted(&at, without_port, refusal),
            Verdict::Unknown => self.decide_unknown(refusal),
            Verdict::Changed { at, known_type } => self.decide_changed(at, known_type),
            Verdict::Revoked { at } => self.decide_revoked(at),
        }
    }

    fn decide_trusted(
        self,
        at: &Location,
        without_port: bool,
        refusal: Option<CertificateRefusal>,
    ) -> Decision {
        let mut accepted = self.acceptance();
        // clientloop.c and sshconnect.c: only a key from the user's own file, under the exact name, may vouch for
        // others.
        accepted.may_update =
            self.policy.update != UpdateHostKeys::No && !without_port && self.policy.is_user_file(at);
        accepted.known_at = Some(at.clone());
        if let Some(refusal) = refusal {
            accepted.warnings.push(format!(
                "the host certificate of {} is not accepted: {refusal}",
                self.host
            ));
        }
        match self.address_verdict() {
            Some((address, Verdict::Unknown)) => match self.remember(vec![address]) {
                Some(remember) => Decision::AcceptAndRemember(accepted, remember),
                None => Decision::Accept(accepted),
            },
            Some((_, Verdict::Trusted { at, .. })) => {
                accepted.may_update &= self.policy.is_user_file(&at);
                Decision::Accept(accepted)
            }
            Some((address, Verdict::Changed { at, .. } | Verdict::Revoked { at })) => {
                self.decide_address_changed(accepted, None, address, at)
            }
            None => Decision::Accept(accepted),
        }
    }

    fn decide_unknown(self, refusal: Option<CertificateRefusal>) -> Decision {
        if self.policy.strict == StrictHostKeyChecking::Yes {
            return Decision::Reject(HostKeyError::Unknown {
                key_type: shown_type(self.key),
                fingerprint: fingerprint(self.key),
                host: self.host,
                refusal,
            });
        }
        let address = self.address_verdict();
        let mut names = vec![self.host.clone()];
        if let Some((address, Verdict::Unknown)) = &address {
            names.push(address.clone());
        }
        let Some(remember) = self.remember(names) else {
            return Decision::Reject(HostKeyError::NowhereToRemember { host: self.host });
        };
        let mut accepted = self.acceptance();
        if let Some(refusal) = &refusal {
            accepted.warnings.push(format!(
                "the host certificate of {} is not accepted: {refusal}",
                self.host
            ));
        }
        if let Some((address, Verdict::Changed { at, .. } | Verdict::Revoked { at })) = address {
            return self.decide_address_changed(accepted, Some(remember), address, at);
        }
        if self.policy.strict == StrictHostKeyChecking::Ask {
            let text = self.question();
            // A key that the user has confirmed may vouch for the host's others.
            accepted.may_update = self.policy.update != UpdateHostKeys::No;
            return self.ask(text, accepted, Some(remember));
        }
        Decision::AcceptAndRemember(accepted, remember)
    }

    fn decide_changed(self, at: Location, known_type: &str) -> Decision {
        let error = HostKeyError::Changed {
            key_type: shown_type(self.key),
            fingerprint: fingerprint(self.key),
            known_type: keys::display_name(known_type).to_owned(),
            host: self.host.clone(),
            at,
        };
        self.accept_unverified_or_reject(error)
    }

    fn decide_revoked(self, at: Location) -> Decision {
        let error = self.revoked_error(at);
        self.accept_unverified_or_reject(error)
    }

    fn accept_unverified_or_reject(self, error: HostKeyError) -> Decision {
        if self.policy.strict != StrictHostKeyChecking::No {
            return Decision::Reject(error);
        }
        let mut accepted = self.acceptance();
        accepted.is_unverified = true;
        accepted.warnings.push(error.to_string());
        // ssh names only the enabled features; here other clients share the connection, and may use more.
        accepted.warnings.push(format!(
            "Password authentication, keyboard-interactive authentication, agent forwarding, X11 forwarding, port \
             forwarding and the use as a jump host are disabled for {} to avoid man-in-the-middle attacks.",
            self.host
        ));
        Decision::Accept(accepted)
    }

    /// Decides if the name's key is right but the address belongs to another host.
    fn decide_address_changed(
        self,
        mut accepted: Accepted,
        remember: Option<Remember>,
        address: String,
        at: Location,
    ) -> Decision {
        let error = HostKeyError::AddressChanged {
            host: self.host.clone(),
            address,
            at,
        };
        match self.policy.strict {
            StrictHostKeyChecking::Yes | StrictHostKeyChecking::AcceptNew => Decision::Reject(error),
            StrictHostKeyChecking::Ask => {
                let text = format!("Warning: {error}\n{CONTINUE}");
                self.ask(text, accepted, remember)
            }
            StrictHostKeyChecking::No => {
                accepted.warnings.push(error.to_string());
                match remember {
                    Some(remember) => Decision::AcceptAndRemember(accepted, remember),
                    None => Decision::Accept(accepted),
                }
            }
        }
    }

    fn ask(self, text: String, accepted: Accepted, remember: Option<Remember>) -> Decision {
        let fingerprint = fingerprint(self.key);
        Decision::Ask(Box::new(Question {
            text,
            fingerprint,
            host: self.host,
            accepted,
            remember,
        }))
    }

    /// Returns the name of the address and the verdict about it, if CheckHostIP requires that.
    fn address_verdict(&self) -> Option<(String, Verdict)> {
        let address = self.server.address_name(self.policy)?;
        let verdict = self.trust.known.check_name(&address, self.key);
        Some((address, verdict))
    }

    fn acceptance(&self) -> Accepted {
        Accepted {
            key: Bytes::copy_from_slice(self.key),
            is_unverified: false,
            may_update: false,
            warnings: Vec::new(),
            known_at: None,
        }
    }

    fn revoked_error(&self, at: Location) -> HostKeyError {
        HostKeyError::Revoked {
            host: self.host.clone(),
            key_type: shown_type(self.key),
            fingerprint: fingerprint(self.key),
            at,
        }
    }

    fn remember(&self, names: Vec<String>) -> Option<Remember> {
        Some(Remember {
            file: self.policy.user_files.first()?.clone(),
            names,
            key: Bytes::copy_from_slice(self.key),
            hash: self.policy.hash_known_hosts,
        })
    }

    /// Returns ssh's text, which scripts and askpass programs look for (sshconnect.c, `check_host_key`).
    fn question(&self) -> String {
        /// The most other names that a question lists.
        const MAX_NAMES: usize = 8;
        let at = match self.server.address {
            Some(address) => lookup_name(&address.to_string(), self.server.port, None),
            None => "<no hostip for proxy command>".into(),
        };
        let mut text = format!(
            "The authenticity of host '{} ({at})' can't be established.\n{} key fingerprint is {}.\n",
            self.host,
            shown_type(self.key),
            fingerprint(self.key)
        );
        let others = self.trust.known.names_of(self.key);
        if others.is_empty() {
            text.push_str("This key is not known by any other names.\n");
        } else {
            text.push_str("This host key is known by the following other names/addresses:\n");
            for (at, names) in others.iter().take(MAX_NAMES) {
                text.push_str(&format!("    {at}: {names}\n"));
            }
            if let Some(more @ 1..) = others.len().checked_sub(MAX_NAMES) {
                text.push_str(&format!("    ({more} additional names omitted)\n"));
            }
        }
        text.push_str(CONTINUE);
        text
    }
}

/// The end of every question. Scripts that drive ssh (such as expect) wait for exactly this.
const CONTINUE: &str = "Are you sure you want to continue connecting (yes/no/[fingerprint])? ";

/// Returns the picture of a host key that `VisualHostKey` shows, with its fingerprint (sshkey.c,
/// `fingerprint_randomart`).
pub fn picture(key: &[u8]) -> String {
    let kind = signature::key_type(key).unwrap_or_default();
    let bits = match signature::rsa_bits(key) {
        Ok(Some(bits)) => bits,
        _ if kind.contains("nistp384") => 384,
        _ if kind.contains("nistp521") => 521,
        _ => 256,
    };
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, key).as_ref());
    let art = ssh_key::Fingerprint::Sha256(hash).to_randomart(&format!("[{} {bits}]", shown_type(key)));
    format!("Host key fingerprint is {}\n{art}", fingerprint(key))
}

/// Returns the type of a host key as ssh shows it: `ED25519`.
pub fn shown_type(key: &[u8]) -> String {
    keys::display_name(signature::key_type(key).unwrap_or("unknown")).to_owned()
}

#[cfg(test)]
mod tests;
