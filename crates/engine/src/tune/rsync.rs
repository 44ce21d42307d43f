//! rsync over plain ssh, run for real: how much its options gain on a path.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use trunkline_local::program::local_program;

use super::sample::Samples;
use crate::config::{Request, ssh_program};
use crate::sftp::Sftp;
use trunkline_request::tuning::RsyncRow;

const PAGE: usize = 4096;
const FIRST: &str = "first";
const CHANGED: &str = "changed";

/// Runs of each variant; the median counts.
pub(super) const RUNS: usize = 3;

/// The means to run rsync, and its files.
pub(super) struct Rsync {
    request: Request,
    /// The remote shell, as rsync's `-e` takes it.
    shell: String,
    /// The local directory: a log file, and the same with changes.
    directory: tempfile::TempDir,
    bytes: u64,
    sftp: Sftp,
    /// The path on the server, and which of the files is there.
    target: String,
    there: Option<&'static str>,
}

/// The task of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The target does not exist.
    New,
    /// The target exists, and a sixteenth of it differs.
    Changed,
}

impl Work {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::New => "new file",
            Self::Changed => "changed file",
        }
    }
}

/// A run's specific options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) work: Work,
    /// Options of ssh.
    pub(super) ssh: Vec<String>,
    /// Options of rsync.
    pub(super) rsync: Vec<String>,
}

impl Variant {
    /// Returns all variants. The first of each work has no options. `ssh` are the best options found for plain ssh.
    pub(super) fn all(ssh: &[String]) -> Vec<Self> {
        let variant = |work, ssh: &[String], rsync: &[&str]| Self {
            work,
            ssh: ssh.to_vec(),
            rsync: rsync.iter().map(|&option| option.to_owned()).collect(),
        };
        let mut all = vec![variant(Work::New, &[], &[]), variant(Work::New, &[], &["-z"])];
        if !ssh.is_empty() {
            all.push(variant(Work::New, ssh, &[]));
        }
        all.push(variant(Work::Changed, &[], &[]));
        all.push(variant(Work::Changed, &[], &["-W"]));
        // rsync's default is about the square root of the length; 128 KiB is its largest.
        all.push(variant(Work::Changed, &[], &["--block-size=131072"]));
        all
    }

    pub(super) fn row(&self, bytes: u64) -> RsyncRow {
        let mut options = self.rsync.clone();
        if !self.ssh.is_empty() {
            options.extend(["-e".into(), format!("ssh {}", self.ssh.join(" "))]);
        }
        RsyncRow {
            work: self.work.as_str().into(),
            options,
            bytes,
            seconds: Vec::new(),
        }
    }
}

impl Rsync {
    /// Prepares the runs. Returns `Err(why)` if rsync cannot be run. `target` is an unused path on the server.
    pub(super) fn prepare(
        request: &Request,
        sftp: &Sftp,
        target: String,
        samples: &Samples,
        bytes: u64,
    ) -> Result<Self, String> {
        let program = ssh_program(&request.world).map_err(|error| error.to_string())?;
        let mut words = vec![program.into_os_string()];
        words.extend(request.ssh_args.iter().cloned());
        // No prompts and no sharing: each run logs in separately, as it would without trunkline.
        for option in ["BatchMode=yes", "ControlPath=none", "ClearAllForwardings=yes"] {
            words.extend(["-o".into(), option.into()]);
        }
        let destination = &request.destination;
        if let Some(user) = &destination.user {
            words.extend(["-l".into(), user.into()]);
        }
        if let Some(port) = destination.port {
            words.extend(["-p".into(), port.to_string().into()]);
        }
        let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
        let shell = words
            .and_then(|words| shlex::try_join(words).ok())
            .ok_or("ssh's options are not valid UTF-8")?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        write_files(directory.path(), samples, bytes).map_err(|error| error.to_string())?;
        Ok(Self {
            request: request.clone(),
            shell,
            directory,
            bytes,
            sftp: sftp.clone(),
            target,
            there: None,
        })
    }

    /// Returns how long one run takes, or `Err(why)` if it fails.
    pub(super) async fn run(&mut self, variant: &Variant) -> Result<Duration, String> {
        let source = match variant.work {
            Work::New => {
                // The first run finds none.
                let _ = self.sftp.remove(&self.target).await;
                FIRST
            }
            Work::Changed => {
                if self.there.is_none() {
                    self.transfer(FIRST, &[], &[]).await?;
                }
                if self.there == Some(CHANGED) {
                    FIRST
                } else {
                    CHANGED
                }
            }
        };
        self.transfer(source, &variant.ssh, &variant.rsync).await
    }

    async fn transfer(
        &mut self,
        source: &'static str,
        ssh: &[String],
        options: &[String],
    ) -> Result<Duration, String> {
        let mut shell = self.shell.clone();
        for option in ssh {
            shell.push(' ');
            shell.push_str(option);
        }
        let host = &self.request.destination.host;
        // Without brackets, an address with colons would be taken for a path.
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.clone()
        };
        let world = &self.request.world;
        let mut command = local_program("rsync", world);
        // -I: the files differ despite equal length and time.
        command
            .args(["-tI", "-e", &shell])
            .args(options)
            .arg("--")
            .arg(self.directory.path().join(source))
            .arg(format!("{host}:{}", self.target))
            .env("TRUNKLINE_OFF", "1")
            .env_remove("RSYNC_RSH")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let begun = Instant::now();
        let child = command.spawn().map_err(|error| format!("running it: {error}"))?;
        let output = child
            .wait_with_output()
            .await
            .map_err(|error| error.to_string())?;
        let elapsed = begun.elapsed();
        if output.status.success() {
            self.there = Some(source);
            return Ok(elapsed);
        }
        let words = String::from_utf8_lossy(&output.stderr).replace(char::is_control, " ");
        Err(words.trim().chars().take(200).collect())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Returns whether rsync is installed here.
pub(super) fn is_here(request: &Request) -> bool {
    let path = request.world.var("PATH").unwrap_or(OsStr::new("/usr/bin:/bin"));
    std::env::split_paths(path).any(|directory| directory.join("rsync").is_file())
}

fn write_files(directory: &Path, samples: &Samples, bytes: u64) -> std::io::Result<()> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut file: Vec<u8> = samples.text.iter().copied().cycle().take(length).collect();
    // Make all pages different, or rsync would find one in another.
    for (number, page) in file.chunks_exact_mut(PAGE).enumerate() {
        page[..8].copy_from_slice(&number.to_be_bytes());
    }
    std::fs::write(directory.join(FIRST), &file)?;
    for page in file.chunks_exact_mut(PAGE).step_by(16) {
        page[..64].reverse();
    }
    std::fs::write(directory.join(CHANGED), &file)
}
