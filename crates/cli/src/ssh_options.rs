//! ssh's options in our own commands.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use rustix::fs::makedev;
use trunkline_request::ssh_options::NO_FORWARDINGS;

/// The heading of `--help` for options about hosts and connecting.
pub(crate) const HOSTS: &str = "Hosts";

/// Returns true if a configuration is a pipe or similar, which only the first reader can read. Several processes read
/// it, and an alias that is not found would be taken for a host name.
pub(crate) fn can_be_read_once_only(config: &OsStr) -> bool {
    std::fs::metadata(config).is_ok_and(|found| {
        let kind = found.file_type();
        let is_null = kind.is_char_device() && found.rdev() == makedev(1, 3);
        !(kind.is_file() || kind.is_dir() || is_null)
    })
}

fn config_file(typed: OsString) -> Result<OsString, &'static str> {
    if can_be_read_once_only(&typed) {
        return Err("a configuration from a pipe can be read only once: write it to a file");
    }
    Ok(typed)
}

/// Options that decide what a destination means, but for its user.
#[derive(Debug, clap::Args)]
pub(crate) struct HostOptions {
    /// Use this ssh_config file instead of the user's and the system's.
    #[arg(help_heading = HOSTS, short = 'F', value_name = "FILE", value_parser = OsStringValueParser::new().try_map(config_file))]
    config: Option<OsString>,
    /// The port.
    #[arg(help_heading = HOSTS, short = 'p', value_name = "PORT")]
    port: Option<OsString>,
    /// An option of ssh_config.
    #[arg(help_heading = HOSTS, short = 'o', value_name = "KEY=VALUE")]
    option: Vec<OsString>,
}

impl HostOptions {
    /// Returns the file of `-F`.
    pub(crate) fn config_file(&self) -> Option<&OsStr> {
        self.config.as_deref()
    }

    /// Returns the options for a connection.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let single = [("-F", &self.config), ("-p", &self.port)];
        let single = single.map(|(flag, value)| Some([flag.into(), value.clone()?]));
        let options = self.option.iter().map(|option| ["-o".into(), option.clone()]);
        single.into_iter().flatten().chain(options).flatten().collect()
    }

    /// Returns the options for a session, without forwardings.
    pub(crate) fn to_session_args(&self) -> Vec<OsString> {
        without_forwardings(self.to_args())
    }
}

/// Options that decide what a destination means.
#[derive(Debug, clap::Args)]
pub(crate) struct SshOptions {
    #[command(flatten)]
    host: HostOptions,
    /// The user to log in as.
    #[arg(help_heading = HOSTS, short = 'l', value_name = "USER")]
    user: Option<OsString>,
}

impl SshOptions {
    /// Returns the file of `-F`.
    pub(crate) fn config_file(&self) -> Option<&OsStr> {
        self.host.config_file()
    }

    /// Returns the options for a connection.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        // Before `-o User`, since the first one wins.
        if let Some(user) = &self.user {
            args.extend(["-l".into(), user.clone()]);
        }
        args.extend(self.host.to_args());
        args
    }

    /// Returns the options for a session on one of many hosts, which may have its own.
    pub(crate) fn to_session_args(&self, of_the_host: &[OsString]) -> Vec<OsString> {
        let mut args = self.to_args();
        args.extend_from_slice(of_the_host);
        without_forwardings(args)
    }
}

fn without_forwardings(mut args: Vec<OsString>) -> Vec<OsString> {
    args.extend(NO_FORWARDINGS.map(OsString::from));
    args
}
