//! A stock sshd with an SFTP server that misbehaves by rules.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::{Error, Sshd};

/// A stock sshd with an SFTP server that misbehaves by rules: `sftp_faults.py`, which explains the rules in its first
/// lines. Clients do not mistake it for OpenSSH's own sftp-server.
#[derive(Debug)]
pub struct SftpFaults {
    sshd: Sshd,
    dir: TempDir,
}

impl SftpFaults {
    /// Starts one that follows `rules`, which are words such as `status:WRITE:20:4`.
    ///
    /// # Errors
    /// As [`SshdBuilder::start`](crate::SshdBuilder::start).
    pub fn start(rules: &[&str]) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("trunkline-sftp-").tempdir()?;
        let program = dir.path().join("sftp_faults.py");
        fs::write(&program, include_str!("sftp_faults.py"))?;
        fs::write(dir.path().join("rules"), rules.join("\n"))?;
        let subsystem = format!(
            "Subsystem sftp /usr/bin/env python3 {} --log {} --rules {}",
            program.display(),
            dir.path().join("log").display(),
            dir.path().join("rules").display()
        );
        let sshd = Sshd::builder().config(&subsystem).start()?;
        Ok(Self { sshd, dir })
    }

    pub fn sshd(&self) -> &Sshd {
        &self.sshd
    }

    /// Changes the rules for later sessions.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, rules: &[&str]) -> Result<(), Error> {
        Ok(fs::write(self.dir.path().join("rules"), rules.join("\n"))?)
    }

    /// Returns the requests and answers, one JSON object on each line.
    ///
    /// # Errors
    /// When it has written nothing.
    pub fn log(&self) -> Result<String, Error> {
        Ok(fs::read_to_string(self.log_path())?)
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}
