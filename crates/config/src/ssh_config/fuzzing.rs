//! The entry points of the fuzz targets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::HostConfig;
use super::account::Account;
use super::dump::{self, Directive};
use super::readers::Surroundings;
use super::tokens::VersionTokens;
use super::{ConfigError, World, resolver};

/// Reads what `ssh -G` printed.
#[must_use]
pub fn dump(output: &[u8]) -> Vec<Directive> {
    dump::parse(output)
}

/// Makes a host of what `ssh -G` printed, if it is one.
pub fn host(output: &[u8]) -> Option<HostConfig> {
    let world = World::from_parts("/".into(), BTreeMap::new());
    let account = Account {
        uid: 0,
        name: "user".into(),
        home: "/home/user".into(),
    };
    let around = Surroundings {
        world: &world,
        account: &account,
        local_host: "localhost",
        original_host: "host",
        config_file: None,
        asked: VersionTokens::default(),
        default_algorithms: &Default::default(),
    };
    HostConfig::read(dump::parse(output), &around).ok()
}

/// Whether a value may stand behind `-o`.
///
/// # Errors
/// [`ConfigError::ControlCharacter`].
pub fn option(value: &[u8]) -> Result<(), ConfigError> {
    resolver::check_arguments(&["-o".into(), OsString::from_vec(value.to_vec())])
}
