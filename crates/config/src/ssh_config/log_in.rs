//! The log-in of a connection, and the requests that would have logged in the same way.
//!
//! Requests that reach the same account of the same server, and trust the same files, may still differ in the methods
//! that they allow and in how strictly they check a host key. These need not be equal: a request is compared with the
//! actual log-in ([`LogIn`]), and may use a connection that it could have made itself.

use std::fmt;

use super::values::{PubkeyAuthentication, StrictHostKeyChecking};
use super::{HostConfig, Role};

/// An authentication method of the engine, in the order of OpenSSH's client (sshconnect2.c, `authmethods`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// `publickey`.
    PublicKey,
    /// `keyboard-interactive`.
    KeyboardInteractive,
    /// `password`.
    Password,
}

impl Method {
    const ALL: [Self; 3] = [Self::PublicKey, Self::KeyboardInteractive, Self::Password];

    /// Returns its name on the wire (RFC 4252, 4256).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PublicKey => "publickey",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::Password => "password",
        }
    }

    /// Returns the method with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// The log-in of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogIn {
    /// The methods that the server accepted, in order: several if it required several, none if it required nothing.
    pub methods: Vec<Method>,
    /// The methods that failed before.
    pub refused: Vec<Method>,
    /// The key, if one was used.
    pub key: Option<KeyUsed>,
    /// The check of the host key.
    pub host_key: HostKeyCheck,
}

/// The key of a successful log-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUsed {
    /// The SHA-256 digest of its public half, or of its certificate.
    pub digest: [u8; 32],
    /// Its type, fingerprint, and whether a file or the agent has it, for display.
    pub shown: String,
}

/// The check of a host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKeyCheck {
    /// The `StrictHostKeyChecking` that was applied.
    pub rule: StrictHostKeyChecking,
    /// The strictest value that would also accept the key.
    pub passes: StrictHostKeyChecking,
    /// The place where the key, or its authority, was known before; `None` for a new one.
    pub known_at: Option<String>,
    /// It was accepted although it had changed or is revoked.
    pub is_unverified: bool,
}

impl fmt::Display for HostKeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule.as_str();
        match &self.known_at {
            _ if self.is_unverified => write!(f, "not verified, as StrictHostKeyChecking {rule} allows"),
            Some(at) => write!(f, "known from {at}"),
            None => write!(f, "new, as StrictHostKeyChecking {rule} allows"),
        }
    }
}

/// Formats as "publickey ED25519 SHA256:… agent", or "password", or "none".
impl fmt::Display for LogIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.methods.is_empty() {
            return f.write_str("none");
        }
        for (number, method) in self.methods.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{}", method.name())?;
            if let (Method::PublicKey, Some(key)) = (method, &self.key) {
                write!(f, " {}", key.shown)?;
            }
        }
        Ok(())
    }
}

/// The log-ins that a request accepts as its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogInTerms {
    /// The methods that it would try, in its order.
    pub methods: Vec<Method>,
    /// `StrictHostKeyChecking`.
    pub host_key: StrictHostKeyChecking,
}

/// The reason why a request does not use a connection to its own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection {
    /// It forbids a method that was used.
    Forbidden(Method),
    /// It would have tried another method first, which was not tried.
    Untried(Method),
    /// It checks host keys more strictly than the connection's was checked.
    Unchecked(StrictHostKeyChecking),
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(method) => write!(
                f,
                "it was logged in to with {}, which is not allowed here",
                method.name()
            ),
            Self::Untried(method) => write!(
                f,
                "it was logged in to without trying {}, which comes first here",
                method.name()
            ),
            Self::Unchecked(rule) => write!(
                f,
                "its host key passes StrictHostKeyChecking {} only, which is looser than here",
                rule.as_str()
            ),
        }
    }
}

impl LogInTerms {
    /// Returns why the request could not have made a connection with this log-in.
    ///
    /// Account, way, identities and files are not compared: the [keys](super::SharingKey::may_meet) decide about those.
    #[must_use]
    pub fn objection(&self, made: &LogIn) -> Option<Objection> {
        if let Some(forbidden) = made.methods.iter().find(|method| !self.methods.contains(method)) {
            return Some(Objection::Forbidden(*forbidden));
        }
        // A server may give an account other rights by another key or method.
        let ahead = self
            .methods
            .iter()
            .take_while(|method| !made.methods.contains(method));
        if !made.methods.is_empty()
            && let Some(untried) = ahead.clone().find(|method| !made.refused.contains(method))
        {
            return Some(Objection::Untried(*untried));
        }
        let is_looser = made.host_key.passes.strictness() < self.host_key.strictness();
        is_looser.then_some(Objection::Unchecked(made.host_key.passes))
    }
}

impl HostConfig {
    /// Returns the log-ins that it accepts.
    #[must_use]
    pub fn log_in_terms(&self) -> LogInTerms {
        let allowed = |method: &Method| match method {
            Method::PublicKey => self.pubkey_authentication != PubkeyAuthentication::No,
            Method::KeyboardInteractive => self.kbd_interactive_authentication,
            Method::Password => self.password_authentication,
        };
        let methods: Vec<Method> = match &self.preferred_authentications[..] {
            [] => Method::ALL.into(),
            preferred => preferred
                .iter()
                .filter_map(|name| Method::from_name(name))
                .collect(),
        };
        LogInTerms {
            methods: methods.into_iter().filter(allowed).collect(),
            host_key: self.strict_host_key_checking,
        }
    }

    /// Returns the settings behind [`Self::log_in_terms`], for people to compare.
    #[must_use]
    pub fn explain_log_in(&self) -> Vec<(&'static str, String)> {
        self.explain_rows(Role::LogIn).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::tests::config_of;
    use super::*;
    use Method::{KeyboardInteractive, Password, PublicKey};
    use StrictHostKeyChecking::{AcceptNew, Ask, No, Yes};

    fn terms(lines: &str) -> LogInTerms {
        config_of(&format!("host h\nhostname h\nuser u\nport 22\n{lines}\n")).log_in_terms()
    }

    fn log_in(methods: &[Method], refused: &[Method], passes: StrictHostKeyChecking) -> LogIn {
        LogIn {
            methods: methods.into(),
            refused: refused.into(),
            key: None,
            host_key: HostKeyCheck {
                rule: passes,
                passes,
                known_at: None,
                is_unverified: false,
            },
        }
    }

    #[test]
    fn a_request_accepts_the_log_ins_that_it_would_have_made_itself() {
        let by_key = log_in(&[PublicKey], &[], Yes);
        let by_password = log_in(&[Password], &[PublicKey, KeyboardInteractive], Yes);
        let by_two = log_in(&[PublicKey, KeyboardInteractive], &[], Yes);
        let by_none = log_in(&[], &[], Yes);
        // Like core Ansible's ssh plugin without a password.
        let ansible = "kbdinteractiveauthentication no\npasswordauthentication no\n\
                       preferredauthentications gssapi-with-mic,gssapi-keyex,hostbased,publickey";
        for (lines, log_in, objection) in [
            ("", &by_key, None),
            ("", &by_password, None),
            ("", &by_two, None),
            (ansible, &by_key, None),
            (ansible, &by_password, Some(Objection::Forbidden(Password))),
            (ansible, &by_two, Some(Objection::Forbidden(KeyboardInteractive))),
            (ansible, &by_none, None),
            (
                "passwordauthentication no",
                &by_password,
                Some(Objection::Forbidden(Password)),
            ),
            ("preferredauthentications password", &by_password, None),
            (
                "preferredauthentications password",
                &by_key,
                Some(Objection::Forbidden(PublicKey)),
            ),
            (
                "pubkeyauthentication no",
                &by_key,
                Some(Objection::Forbidden(PublicKey)),
            ),
            // A key may give an account fewer rights than its password does.
            (
                "preferredauthentications password,publickey",
                &by_key,
                Some(Objection::Untried(Password)),
            ),
            (
                "preferredauthentications publickey,password",
                &log_in(&[Password], &[], Yes),
                Some(Objection::Untried(PublicKey)),
            ),
            ("batchmode yes", &by_password, None),
        ] {
            assert_eq!(terms(lines).objection(log_in), objection, "{lines:?} {log_in}");
        }
    }

    #[test]
    fn a_stricter_check_of_the_host_key_serves_a_looser_one_and_not_the_other_way() {
        let rules = [No, AcceptNew, Ask, Yes];
        for (asked, rule) in rules.iter().enumerate() {
            let terms = terms(&format!("stricthostkeychecking {}", rule.as_str()));
            for (checked, passes) in rules.iter().enumerate() {
                let objection = terms.objection(&log_in(&[PublicKey], &[], *passes));
                let expected = (checked < asked).then_some(Objection::Unchecked(*passes));
                assert_eq!(objection, expected, "{rule:?} {passes:?}");
            }
        }
    }
}
