//! SSH_FXP_STATUS: how a request ended (draft-ietf-secsh-filexfer-02 section 7).

use std::fmt;

use trunkline_text::Printable;

use crate::packet::{Reader, Truncated};

/// The code of an SSH_FXP_STATUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u32);

impl StatusCode {
    /// SSH_FX_OK
    pub const OK: Self = Self(0);
    /// SSH_FX_EOF: a read at or behind the end of a file, or no more names in a directory.
    pub const EOF: Self = Self(1);
    /// SSH_FX_NO_SUCH_FILE
    pub const NO_SUCH_FILE: Self = Self(2);
    /// SSH_FX_PERMISSION_DENIED
    pub const PERMISSION_DENIED: Self = Self(3);
    /// SSH_FX_FAILURE: anything that has no code of its own, a full disk for one.
    pub const FAILURE: Self = Self(4);
    /// SSH_FX_BAD_MESSAGE; what sftp-server also says to a name that is too long or an invalid argument.
    pub const BAD_MESSAGE: Self = Self(5);
    /// SSH_FX_NO_CONNECTION
    pub const NO_CONNECTION: Self = Self(6);
    /// SSH_FX_CONNECTION_LOST
    pub const CONNECTION_LOST: Self = Self(7);
    /// SSH_FX_OP_UNSUPPORTED
    pub const OP_UNSUPPORTED: Self = Self(8);

    /// Returns the meaning of the code, in a few words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::OK => "success",
            Self::EOF => "end of file",
            Self::NO_SUCH_FILE => "no such file",
            Self::PERMISSION_DENIED => "permission denied",
            Self::FAILURE => "failure",
            Self::BAD_MESSAGE => "bad message",
            Self::NO_CONNECTION => "no connection",
            Self::CONNECTION_LOST => "connection lost",
            Self::OP_UNSUPPORTED => "operation unsupported",
            _ => "unknown error",
        }
    }
}

/// The reason why the server refused a request, or the end of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code; never [`StatusCode::OK`] where it stands for a failure.
    pub code: StatusCode,
    /// The server's words; empty if it had none.
    pub message: Printable,
}

impl Status {
    /// A status that this side gives, without having asked the server.
    pub(crate) fn local(code: StatusCode, message: impl Into<Printable>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Returns whether the server says more than what the code means.
    pub fn has_own_words(&self) -> bool {
        !self.message.is_empty() && !self.message.eq_ignore_ascii_case(self.code.meaning())
    }

    /// The answer to fsync: all was written.
    pub(crate) fn of_syncing(&self) -> Self {
        Self::local(
            self.code,
            format!("the server could not write it to its disk ({self})"),
        )
    }

    /// The answer to CLOSE, with which some file systems tell that what was written is lost.
    pub(crate) fn of_closing(&self) -> Self {
        Self::local(self.code, format!("the server could not close it ({self})"))
    }

    /// Returns whether a name that was to be free may be taken, which version 3 has no status for.
    pub(crate) fn may_be_taken(&self) -> bool {
        /// SSH_FX_FILE_ALREADY_EXISTS of later drafts, which some servers of version 3 send.
        const ALREADY_EXISTS: StatusCode = StatusCode(11);
        matches!(self.code, StatusCode::FAILURE | ALREADY_EXISTS)
    }

    /// Servers of the drafts before the second end behind the code, so that a message is optional.
    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, Truncated> {
        let code = StatusCode(reader.u32()?);
        let message = reader.string().map(Printable::line).unwrap_or_default();
        Ok(Self { code, message })
    }
}

impl fmt::Display for Status {
    /// The server's words, or the code's meaning; both where the words are not merely the meaning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = self.code.meaning();
        match self.has_own_words() {
            true => write!(f, "{meaning}: {}", self.message),
            false => f.write_str(meaning),
        }
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_status_without_words_is_understood() {
        let status = Status::decode(&mut Reader::new(Bytes::from_static(&[0, 0, 0, 3]))).unwrap();
        assert_eq!(
            status,
            Status {
                code: StatusCode::PERMISSION_DENIED,
                message: Printable::default()
            }
        );
        assert_eq!(status.to_string(), "permission denied");
    }

    #[test]
    fn the_servers_words_cannot_steer_a_terminal() {
        let packet = Bytes::from_static(b"\0\0\0\x04\0\0\0\x09a\x1b[2Jb\nc\x7f");
        let status = Status::decode(&mut Reader::new(packet)).unwrap();
        assert_eq!(status.to_string(), "failure: a\\033[2Jb\\012c\\177");
    }

    #[test]
    fn the_meaning_is_not_said_twice() {
        assert_eq!(
            Status::local(StatusCode::FAILURE, "Failure").to_string(),
            "failure"
        );
        assert_eq!(
            Status::local(StatusCode::FAILURE, "disk full").to_string(),
            "failure: disk full"
        );
    }
}
