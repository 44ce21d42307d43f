//! `fleet.toml`, beside `config.toml`: this machine's access to its fleet, and the work that it accepts from others.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail, ensure};
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};
use trunkline_control::place::Place;

use crate::paths;
use trunkline_fleet::allow::{AllowList, AllowSource, Rule};
use trunkline_fleet::bucket::{Access, is_plain};
use trunkline_request::own;
use trunkline_text::line_number;

/// The content of the file. Relative paths are relative to its directory.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// NATS: `nats://HOST:4222` or `tls://HOST:4222`, several with commas between them.
    #[serde(default)]
    pub(crate) url: String,
    /// The fleet's name: the prefix of all its names in NATS.
    #[serde(default = "prefix")]
    pub(crate) prefix: String,
    /// The file with the seed of this machine's nkey, which logs in to NATS and signs jobs. By default `fleet.nk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nkey: Option<PathBuf>,
    /// A file of NATS credentials to log in with instead. Jobs are still signed with the nkey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<PathBuf>,
    /// Certificates of authorities to trust as well as the system's, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// The ssh_config that the node uses to reach its hosts; by default the user's and the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ssh_config: Option<PathBuf>,
    /// The node's name; by default the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) site: Option<String>,
    /// The number of hosts on which the node runs something at the same time.
    #[serde(default = "at_once")]
    pub(crate) at_once: usize,
    /// The port on 127.0.0.1 where the node serves its metrics; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) metrics_port: u16,
    /// The work that the node accepts, and the submitters that it accepts it from.
    #[serde(default)]
    pub(crate) allow: Vec<Rule>,
    /// Public keys of people who may cancel here the work of other submitters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancel: Vec<String>,
}

/// The node's allow list, with the current content of the file.
#[derive(Debug)]
pub(crate) struct AllowFile {
    file: PathBuf,
    /// The rules that were also given on the command line.
    given: Vec<Rule>,
    /// The file's text when it was last read, and the list in it.
    last: Mutex<(String, Arc<AllowList>)>,
}

impl AllowFile {
    pub(crate) fn new(place: &Place, given: Vec<Rule>) -> Self {
        Self {
            file: paths::settings(place),
            given,
            last: Mutex::default(),
        }
    }
}

impl AllowSource for AllowFile {
    /// Reads the file, which has only a few lines: that costs less than reliably detecting a change.
    fn current(&self) -> Result<Arc<AllowList>, String> {
        let file = self.file.display();
        let text = fs::read_to_string(&self.file).map_err(|error| format!("{file}: {error}"))?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != text {
            let settings = Settings::parse(&self.file, &text)?;
            let allow = settings.allow.into_iter().chain(self.given.iter().cloned());
            let list = AllowList {
                allow: allow.collect(),
                cancel: settings.cancel,
            };
            *last = (text, Arc::new(list));
        }
        Ok(last.1.clone())
    }
}

fn prefix() -> String {
    "trunkline".into()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(port: &u16) -> bool {
    *port == 0
}

fn at_once() -> usize {
    100
}

impl Settings {
    /// Makes the settings of a new machine.
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            prefix: prefix(),
            at_once: at_once(),
            ..Self::default()
        }
    }

    /// Adds the authorities in a file that the user named.
    pub(crate) fn trust(&mut self, ca: Option<PathBuf>) -> anyhow::Result<()> {
        if let Some(file) = ca {
            let file = file
                .canonicalize()
                .with_context(|| format!("the file of --ca, {}", file.display()))?;
            self.ca = Some(file);
        }
        Ok(())
    }

    /// Reads the file; `None` if there is none.
    pub(crate) fn read(place: &Place) -> anyhow::Result<Option<Self>> {
        let file = paths::settings(place);
        let text = match own::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
        };
        let mut settings = Self::parse(&file, &text).map_err(anyhow::Error::msg)?;
        ensure!(
            is_plain(&settings.prefix),
            "{}: prefix has letters, digits, - and _ only",
            file.display()
        );
        ensure!(settings.at_once > 0, "{}: at_once is at least 1", file.display());
        let directory = file.parent().unwrap_or(Path::new("/"));
        let paths = [
            &mut settings.nkey,
            &mut settings.credentials,
            &mut settings.ca,
            &mut settings.ssh_config,
        ];
        for path in paths.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        Ok(Some(settings))
    }

    /// Parses the settings. An error names the file, the line and the problem.
    fn parse(file: &Path, text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = line_number(text, error.span().map_or(0, |span| span.start));
            format!("{} line {line}: {}", file.display(), error.message())
        })
    }

    /// Reads the file of a machine that belongs to a fleet.
    pub(crate) fn of_member(place: &Place) -> anyhow::Result<Self> {
        let settings = Self::read(place)?;
        settings.filter(|settings| !settings.url.is_empty()).with_context(|| {
            format!(
                "this machine belongs to no fleet: {} names none; `trunkline fleet init URL` makes a fleet, `trunkline fleet join \
                 URL` joins one",
                paths::settings(place).display()
            )
        })
    }

    /// Returns this machine's settings, or new ones, for the fleet at this address.
    pub(crate) fn for_url(place: &Place, url: String) -> anyhow::Result<Self> {
        let settings = Self::read(place)?.unwrap_or_else(|| Self::new(String::new()));
        Ok(Self { url, ..settings })
    }

    /// Writes the file, which must not exist.
    pub(crate) fn write_new(&self, place: &Place) -> anyhow::Result<()> {
        let file = paths::settings(place);
        let text = toml::to_string(self).context("writing the settings down")?;
        write_private(
            &file,
            &format!("# trunkline's fleet; see docs/guide/fleet.md.\n{text}"),
        )
    }

    fn key_file(&self, place: &Place) -> PathBuf {
        let usual = || paths::settings(place).with_file_name("fleet.nk");
        self.nkey.clone().unwrap_or_else(usual)
    }

    /// Returns this machine's key. It is made if there is none and no file was named.
    pub(crate) fn key(&self, place: &Place) -> anyhow::Result<KeyPair> {
        let file = self.key_file(place);
        let seed = match own::read_to_string(&file) {
            Ok(seed) => seed,
            Err(error) if error.is_missing() && self.nkey.is_none() => {
                let key = KeyPair::new_user();
                write_private(&file, &format!("{}\n", key.seed()?))?;
                return Ok(key);
            }
            Err(error) => return Err(error).with_context(|| format!("reading the nkey {}", file.display())),
        };
        let mode = fs::metadata(&file)?.permissions().mode();
        ensure!(
            mode & 0o077 == 0,
            "{} can be read by others, and is a secret: chmod 600 it",
            file.display()
        );
        match KeyPair::from_seed(seed.trim()) {
            Ok(key) => Ok(key),
            Err(error) => bail!("{} has no seed of an nkey (SU…): {error}", file.display()),
        }
    }

    /// Returns the access to the fleet.
    pub(crate) fn access(&self, place: &Place) -> anyhow::Result<Access> {
        for file in [&self.credentials, &self.ca].into_iter().flatten() {
            ensure!(file.is_file(), "{} is not a file", file.display());
        }
        let by_key = self.credentials.is_none();
        Ok(Access {
            servers: self.url.clone(),
            prefix: self.prefix.clone(),
            nkey: by_key
                .then(|| self.key(place)?.seed().map_err(anyhow::Error::from))
                .transpose()?,
            credentials: self.credentials.clone(),
            authorities: self.ca.clone(),
        })
    }
}

fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    let writing = || format!("writing {}", file.display());
    if let Some(directory) = file.parent() {
        own::make_directory(directory).with_context(writing)?;
    }
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    opened
        .with_context(writing)?
        .write_all(text.as_bytes())
        .with_context(writing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_told_with_its_file_and_line() {
        let problem = |text| Settings::parse(Path::new("/f/fleet.toml"), text).unwrap_err();
        let misspelt = problem("url = \"nats://n\"\n\nat_onze = 3\n");
        assert!(
            misspelt.starts_with("/f/fleet.toml line 3: ") && misspelt.contains("at_onze"),
            "{misspelt}"
        );
        let syntax = problem("url = nats\n");
        assert!(syntax.starts_with("/f/fleet.toml line 1: "), "{syntax}");
    }
}
