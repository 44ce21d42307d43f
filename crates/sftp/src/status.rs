//! SSH_FXP_STATUS: the outcome of a request (draft-ietf-secsh-filexfer-02 section 7).

use std::fmt;

use trunkline_text::Printable;

use crate::packet::{Reader, Truncated};

/// The code of an SSH_FXP_STATUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u32);

impl StatusCode {
    /// SSH_FX_OK
    pub const OK: Self = Self(0);
    /// SSH_FX_EOF: a read at or behind the end of a file, or the end of a directory.
    pub const EOF: Self = Self(1);
    /// SSH_FX_NO_SUCH_FILE
    pub const NO_SUCH_FILE: Self = Self(2);
    /// SSH_FX_PERMISSION_DENIED
    pub const PERMISSION_DENIED: Self = Self(3);
    /// SSH_FX_FAILURE: any error without its own code, such as a full disk.
    pub const FAILURE: Self = Self(4);
    /// SSH_FX_BAD_MESSAGE; sftp-server also sends it for a name that is too long or an invalid argument.
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
    /// The code; never [`StatusCode::OK`] in a failure.
    pub code: StatusCode,
    /// The server's words, which may be empty.
    pub message: Printable,
}

impl Status {
    /// Makes a status of this side, without the server.
    pub(crate) fn local(code: StatusCode, message: impl Into<Printable>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Returns whether the server's words say more than the code.
    pub fn has_own_words(&self) -> bool {
        !self.message.is_empty() && !self.message.eq_ignore_ascii_case(self.code.meaning())
    }

    /// Returns the status for an fsync that failed after all data was written.
    pub(crate) fn of_syncing(&self) -> Self {
        Self::local(
            self.code,
            format!("the server could not write it to its disk ({self})"),
        )
    }

    /// Returns the status for a failed CLOSE, by which some file systems report that written data is lost.
    pub(crate) fn of_closing(&self) -> Self {
        Self::local(self.code, format!("the server could not close it ({self})"))
    }

    /// Returns whether the status may mean that a new name is taken, for which version 3 has no code.
    pub(crate) fn may_be_taken(&self) -> bool {
        /// SSH_FX_FILE_ALREADY_EXISTS of later drafts, which some servers of version 3 send.
        const ALREADY_EXISTS: StatusCode = StatusCode(11);
        matches!(self.code, StatusCode::FAILURE | ALREADY_EXISTS)
    }

    /// Decodes a status. Servers of drafts before the second send only the code, so the message is optional.
    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, Truncated> {
        let code = StatusCode(reader.u32()?);
        let message = reader.string().map(Printable::line).unwrap_or_default();
        Ok(Self { code, message })
    }
}

impl fmt::Display for Status {
    /// Writes the code's meaning, and the server's words if they say more.
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
