//! The engine's reports, in the types that all programs share.

use std::time::UNIX_EPOCH;
use trunkline_text::Printable;

use trunkline_request::connection::Handshake;
use trunkline_request::failure::{AlgorithmKind, Cause, Failure};
use trunkline_request::words_of;

use crate::connection::ConnectionInfo;
use crate::error::Error;

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let (without_clause, was_under_way) = match error {
            Error::Lost { cause, .. } => (&**cause, true),
            error => (error, false),
        };
        let cause = match error.root() {
            _ if error.long_text().is_some() => Cause::LongText,
            Error::OtherSettings(_) => Cause::OtherSettings,
            Error::SystemSsh { unattended: true, .. } => Cause::Unattended,
            Error::NotConnected { why, .. } => Cause::NotConnected(*why),
            Error::Invalid(invalid) => Cause::Invalid(invalid.clone()),
            Error::Lookup { .. } => Cause::Lookup,
            Error::Network { address, .. } => Cause::Network { address: *address },
            Error::ClosedByPeer { .. } => Cause::ClosedByPeer,
            Error::Authentication { allowed, partial, .. } => Cause::Authentication {
                allowed: allowed.clone(),
                partial: *partial,
            },
            Error::Refused {
                reason, description, ..
            } => Cause::Refused {
                reason: *reason,
                words: description.to_string(),
            },
            Error::SftpUnstarted { status, signal, .. } => Cause::SftpUnstarted {
                status: *status,
                signal: signal.clone(),
            },
            Error::File { status, .. } => Cause::File {
                status: status.code.0,
                words: status.message.to_string(),
            },
            Error::Protocol {
                source: trunkline_proto::Error::NothingInCommon { what, .. },
                ..
            } => Cause::NothingInCommon(kind_of(*what)),
            _ => match error.disconnect() {
                Some((reason, words)) => Cause::Disconnected {
                    reason,
                    words: words.to_string(),
                },
                None => Cause::Other,
            },
        };
        Self {
            kind: error.kind(),
            execution: error.execution(),
            message: words_of(without_clause),
            was_under_way,
            errno: error.errno(),
            cause,
            in_words_of_ssh: None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

fn kind_of(algorithm: trunkline_proto::AlgorithmKind) -> AlgorithmKind {
    use trunkline_proto::AlgorithmKind as Proto;
    match algorithm {
        Proto::Kex => AlgorithmKind::Kex,
        Proto::HostKey => AlgorithmKind::HostKey,
        Proto::Cipher => AlgorithmKind::Cipher,
        Proto::Mac => AlgorithmKind::Mac,
        Proto::Compression => AlgorithmKind::Compression,
    }
}

/// Shortens a text that may contain a long path: it is reported once a second for each of thousands of connections.
fn short(text: &str) -> String {
    Printable::short_line(text, 256).into_string()
}

impl From<&ConnectionInfo> for Handshake {
    fn from(info: &ConnectionInfo) -> Self {
        let since = info.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            since: since.as_secs(),
            server: info.server.clone(),
            kex: info.kex.name().to_owned(),
            host_key: info.host_key_algorithm.clone(),
            cipher: info.cipher.to_owned(),
            mac: info.mac.map(str::to_owned),
            compressed: info.compressed,
            greeting: info.greeting.clone(),
            log_in: short(&info.log_in.to_string()),
            host_key_check: short(&info.log_in.host_key.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::AlgorithmKind as Proto;

    use super::*;

    #[test]
    fn an_algorithm_that_is_lacking_is_told_by_its_kind() {
        for (what, kind) in [
            (Proto::Kex, AlgorithmKind::Kex),
            (Proto::HostKey, AlgorithmKind::HostKey),
            (Proto::Cipher, AlgorithmKind::Cipher),
            (Proto::Mac, AlgorithmKind::Mac),
            (Proto::Compression, AlgorithmKind::Compression),
        ] {
            let error = Error::Protocol {
                host: "db1".into(),
                source: trunkline_proto::Error::NothingInCommon {
                    what,
                    ours: "a".into(),
                    theirs: "b".to_owned().into(),
                },
            };
            assert_eq!(Failure::from(error).cause, Cause::NothingInCommon(kind));
        }
    }
}
