//! Finding and running the programs that fixtures consist of.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::Error;

/// Directories of servers: an ordinary user's PATH does not have `sbin`.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/openssh"];

/// Returns the absolute path of a program. sshd must be started by its absolute path, because it executes itself again
/// for each connection.
pub(crate) fn find(program: &'static str, package: &'static str) -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or(Error::MissingProgram { program, package })
}

/// Returns the path of a shared library to preload.
pub(crate) fn find_library(library: &'static str, package: &'static str) -> Result<PathBuf, Error> {
    // Debian and its derivatives have a directory for each architecture, others have lib or lib64.
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

/// Runs a program until it ends. If it does not succeed, the error has its standard error.
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

/// Returns the name of the user who runs the tests.
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
