//! The paths of the programs that `trunkline` runs: `trunklined`, which is the daemon with the engine, and the other
//! parts, which are only looked for near this program. PATH is not searched.

use std::path::{Path, PathBuf};

/// The variable with the path of `trunklined`.
pub const VARIABLE: &str = "TRUNKLINED";

const NAME: &str = "trunklined";

/// The reason why there is no `trunklined` to run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramError {
    /// The variable names no file.
    #[error("TRUNKLINED names {0}, which is not a file: unset it, or set it to the path of trunklined")]
    NotThere(PathBuf),
    /// It is in none of its places.
    #[error(
        "trunklined, the part of trunkline that makes connections, is neither {} nor {}: install it there, or set \
         TRUNKLINED to its path",
        beside.display(),
        libexec.display()
    )]
    Missing {
        /// The path beside this program.
        beside: PathBuf,
        /// The path in libexec.
        libexec: PathBuf,
    },
    /// Another part is in none of its places.
    #[error(
        "{name} is not installed: there is neither {} nor {}. Install it there, from the release that this program is of",
        beside.display(),
        libexec.display()
    )]
    MissingPart {
        /// The program.
        name: String,
        /// The path beside this program.
        beside: PathBuf,
        /// The path in libexec.
        libexec: PathBuf,
    },
    /// This program's own path is unknown.
    #[error("cannot find this program's own path ({0}): set TRUNKLINED to the path of trunklined")]
    NoPath(String),
}

/// Returns the path of `trunklined`: the value of `TRUNKLINED`; else beside this program, with links resolved; else in
/// `../libexec/trunkline` from there.
///
/// # Errors
/// [`ProgramError`].
pub fn find() -> Result<PathBuf, ProgramError> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(ProgramError::NotThere(named)),
        };
    }
    near(&our_directory()?, NAME).map_err(|(beside, libexec)| ProgramError::Missing { beside, libexec })
}

/// Returns the path of another part of trunkline: beside this program, or in `../libexec/trunkline`.
///
/// # Errors
/// [`ProgramError`].
pub fn find_part(name: &str) -> Result<PathBuf, ProgramError> {
    near(&our_directory()?, name).map_err(|(beside, libexec)| ProgramError::MissingPart {
        name: name.to_owned(),
        beside,
        libexec,
    })
}

/// Returns the directory of this program, with links resolved.
fn our_directory() -> Result<PathBuf, ProgramError> {
    let ourselves = std::env::current_exe().and_then(|path| path.canonicalize());
    let ourselves = ourselves.map_err(|error| ProgramError::NoPath(error.to_string()))?;
    Ok(ourselves.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Returns a program's path near a directory, or the two places where it should be.
fn near(directory: &Path, name: &str) -> Result<PathBuf, (PathBuf, PathBuf)> {
    let beside = directory.join(name);
    let libexec = directory
        .parent()
        .unwrap_or(directory)
        .join("libexec/trunkline")
        .join(name);
    if beside.is_file() {
        return Ok(beside);
    }
    if libexec.is_file() {
        return Ok(libexec);
    }
    Err((beside, libexec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_beside_the_program_or_in_libexec() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, libexec) = (dir.path().join("bin"), dir.path().join("libexec/trunkline"));
        for directory in [&bin, &libexec] {
            std::fs::create_dir_all(directory).unwrap();
        }
        assert_eq!(near(&bin, NAME), Err((bin.join(NAME), libexec.join(NAME))));
        std::fs::write(libexec.join(NAME), "").unwrap();
        assert_eq!(near(&bin, NAME).unwrap(), libexec.join(NAME));
        std::fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(near(&bin, NAME).unwrap(), bin.join(NAME));
    }
}
