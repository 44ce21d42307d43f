//! Identification strings (RFC 4253 section 4.2): the first line that each side sends.

use trunkline_text::Printable;

use crate::error::Error;

/// This client's identification line, without its CR LF.
///
/// Stock sftp and scp, whose SFTP uses this client's connections, must see the same behaviour as without it. Some
/// servers look for OpenSSH here to decide on the order of SYMLINK's arguments and the largest packet (docs/adr/0020).
/// Like `OpenSSH_for_Windows_9.5`, it has no number where servers look for a version with a bug.
pub const CLIENT_ID: &str = concat!("SSH-2.0-OpenSSH_trunkline_", env!("CARGO_PKG_VERSION"));

/// The most lines before the server's identification, as in OpenSSH's kex_exchange_identification.
const MAX_LINES: usize = 1024;
/// The longest line accepted, as OpenSSH's SSH_MAX_BANNER_LEN; RFC 4253 allows 255 bytes for the identification.
const MAX_LINE: usize = 8192;
/// The most bytes before the identification. A longer text is not from an SSH server.
const MAX_TOTAL: usize = 64 * 1024;

/// A server's identification string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerId {
    /// The line as received, for the exchange hash (RFC 4253 section 8).
    line: String,
    shown: Printable,
}

impl ServerId {
    fn new(line: String) -> Self {
        let shown = Printable::line(&line);
        Self { line, shown }
    }

    /// Returns the whole line, without its line end, safe to display.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// Returns the line as received, without its line end.
    pub(crate) fn raw(&self) -> &[u8] {
        self.line.as_bytes()
    }

    /// Returns the text after `SSH-2.0-`: software name, version and comment.
    pub fn software(&self) -> &str {
        self.shown.as_str().splitn(3, '-').nth(2).unwrap_or_default()
    }

    /// Returns whether the server identifies itself as OpenSSH's sshd, on whose behaviour the early flights rely.
    pub fn is_openssh(&self) -> bool {
        self.software().starts_with("OpenSSH_")
    }
}

/// Finds the identification line at the start of the server's bytes.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    lines: usize,
    total: usize,
    greeting: Printable,
}

impl Finder {
    /// Returns the last line before the identification, possibly empty. A busy server gives its reason in it.
    pub(crate) fn greeting(&self) -> &Printable {
        &self.greeting
    }

    /// Looks for the identification in `received`. Returns it with the number of bytes used, or `None` with the number
    /// of bytes of other lines to discard.
    pub(crate) fn find(&mut self, received: &[u8]) -> Result<(Option<ServerId>, usize), Error> {
        let mut used = 0;
        while let Some(end) = received[used..].iter().position(|&b| b == b'\n') {
            let line = &received[used..used + end];
            used += end + 1;
            self.total += end + 1;
            if line.starts_with(b"SSH-") {
                return Ok((Some(parse(line)?), used));
            }
            self.lines += 1;
            self.greeting = Printable::line(line[..line.len().min(255)].trim_ascii());
            self.check(line.len())?;
        }
        self.check(received.len() - used)?;
        Ok((None, used))
    }

    fn check(&self, line: usize) -> Result<(), Error> {
        if line > MAX_LINE || self.lines > MAX_LINES || self.total > MAX_TOTAL {
            return Err(Error::NotSsh(
                "it sends endless text instead of an SSH identification".into(),
            ));
        }
        Ok(())
    }
}

fn parse(line: &[u8]) -> Result<ServerId, Error> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let shown = Printable::line(&line[..line.len().min(255)]);
    if line.len() > MAX_LINE || line.contains(&0) {
        return Err(Error::NotSsh("its identification line is malformed".into()));
    }
    // RFC 4253 section 5.1: 1.99 is a server that also speaks the old protocol.
    if !line.starts_with(b"SSH-2.0-") && !line.starts_with(b"SSH-1.99-") {
        return Err(Error::NotSsh(
            format!("it introduces itself as \"{shown}\"").into(),
        ));
    }
    // The exchange hash needs the original bytes; in practice they are always UTF-8.
    let line = String::from_utf8(line.to_vec())
        .map_err(|_| Error::NotSsh("its identification line is not text".into()))?;
    Ok(ServerId::new(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_before_the_identification_are_skipped() {
        let mut finder = Finder::default();
        let text = b"welcome\r\nto \x1bthis\r\nSSH-2.0-OpenSSH_9.2p1 Debian\r\nrest";
        let (id, used) = finder.find(text).unwrap();
        assert_eq!(*finder.greeting(), *"to \\033this");
        let id = id.unwrap();
        assert_eq!(id.as_str(), "SSH-2.0-OpenSSH_9.2p1 Debian");
        assert!(id.is_openssh());
        assert_eq!(&text[used..], b"rest");
    }

    #[test]
    fn an_endless_banner_is_refused() {
        let mut finder = Finder::default();
        assert!(finder.find(&[b'x'; MAX_LINE + 1]).is_err());
        let mut finder = Finder::default();
        assert!((0..2000).any(|_| finder.find(b"spam\n").is_err()));
    }

    #[test]
    fn other_protocols_are_named() {
        let error = Finder::default().find(b"SSH-1.5-old\n").unwrap_err();
        assert!(error.to_string().contains("SSH-1.5-old"));
    }
}
