//! Finding and running the programs that fixtures are made of.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::Error;

/// Servers live in `sbin`, which an ordinary user's PATH leaves out.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/openssh"];

/// The absolute path of a program. sshd insists on being started by one, because it executes itself again for
/// each connection.
pub(crate) fn find(program: &'static str, package: &'static str) -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or(Error::MissingProgram { program, package })
}

/// The path of a shared library to preload.
pub(crate) fn find_library(library: &'static str, package: &'static str) -> Result<PathBuf, Error> {
    // Debian and its kin have a directory for each architecture, others lib or lib64.
    let triplets = fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    triplets
        .chain(["/usr/lib", "/usr/lib64"].map(PathBuf::from))
        .map(|directory| directory.join(library))
        .find(|candidate| candidate.is_file())
        .ok_or(Error::MissingProgram {
            program: library,
            package,
        })
}

/// Runs a program to its end; anything but success is an error that carries its standard error.
pub(crate) fn run(command: &mut Command) -> Result<Output, Error> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: name(command),
            source,
        })?;
    if output.status.success() {
        return Ok(output);
    }
    Err(Error::Failed {
        command: format!("{command:?}"),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// The name of the user that runs the tests.
pub(crate) fn current_user() -> Result<String, Error> {
    let output = run(Command::new("id").arg("-un"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn name(command: &Command) -> String {
    Path::new(command.get_program())
        .file_name()
        .unwrap_or(OsStr::new("?"))
        .to_string_lossy()
        .into_owned()
}
