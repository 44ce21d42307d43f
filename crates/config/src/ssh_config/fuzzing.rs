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

/// Parses the output of `ssh -G`.
#[must_use]
pub fn dump(output: &[u8]) -> Vec<Directive> {
    dump::parse(output)
}

/// Creates a host from the output of `ssh -G`, if it is valid.
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

/// Checks whether a value may be an argument of `-o`.
///
/// # Errors
/// [`ConfigError::ControlCharacter`].
pub fn option(value: &[u8]) -> Result<(), ConfigError> {
    resolver::check_arguments(&["-o".into(), OsString::from_vec(value.to_vec())])
}
