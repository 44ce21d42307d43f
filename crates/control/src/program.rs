//! Where the program `trunklined` is, which is the daemon and has the engine in it.

use std::path::{Path, PathBuf};

/// The variable that names it.
pub const VARIABLE: &str = "TRUNKLINED";

const NAME: &str = "trunklined";

/// Why there is no `trunklined` to run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramError {
    /// The variable is set, and wrong.
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
        /// Beside the program that looks for it.
        beside: PathBuf,
        /// In the folder for programs that are run by programs.
        libexec: PathBuf,
    },
    /// This program does not know its own path.
    #[error("cannot find this program's own path ({0}): set TRUNKLINED to the path of trunklined")]
    NoPath(String),
}

/// The program's path: what `TRUNKLINED` says; else beside this program, wherever links to it are; else
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
    let ourselves = std::env::current_exe().and_then(|path| path.canonicalize());
    let ourselves = ourselves.map_err(|error| ProgramError::NoPath(error.to_string()))?;
    near(ourselves.parent().unwrap_or(Path::new("/")))
}

fn near(folder: &Path) -> Result<PathBuf, ProgramError> {
    let beside = folder.join(NAME);
    let libexec = folder
        .parent()
        .unwrap_or(folder)
        .join("libexec/trunkline")
        .join(NAME);
    if beside.is_file() {
        return Ok(beside);
    }
    if libexec.is_file() {
        return Ok(libexec);
    }
    Err(ProgramError::Missing { beside, libexec })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_beside_the_program_or_in_libexec() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, libexec) = (dir.path().join("bin"), dir.path().join("libexec/trunkline"));
        for folder in [&bin, &libexec] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let missing = near(&bin).unwrap_err();
        for place in [&bin, &libexec] {
            assert!(missing.to_string().contains(place.to_str().unwrap()), "{missing}");
        }
        std::fs::write(libexec.join(NAME), "").unwrap();
        assert_eq!(near(&bin).unwrap(), libexec.join(NAME));
        std::fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(near(&bin).unwrap(), bin.join(NAME));
    }
}
