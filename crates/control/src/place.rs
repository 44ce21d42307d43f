//! The paths of the daemon's sockets, state and settings.

use std::path::{Path, PathBuf};

use trunkline_request::own::{self, OwnError};

/// The directories of one user's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Sockets and the lock; gone after a restart of the machine.
    pub runtime: PathBuf,
    /// Host memory and the log.
    pub state: PathBuf,
    /// `config.toml`, which may not exist.
    pub config: PathBuf,
}

/// The reason why there is no usable directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Neither TRUNKLINE_DIR nor a home is set.
    #[error("no directory is available for trunkline's sockets: set TRUNKLINE_DIR, XDG_RUNTIME_DIR or HOME")]
    Nowhere,
    /// TRUNKLINE_DIR is relative, and would change with the working directory.
    #[error("TRUNKLINE_DIR is {0}: it must be an absolute path")]
    Relative(PathBuf),
    /// A directory belongs to another user, or cannot be created.
    #[error(transparent)]
    NotOwn(#[from] OwnError),
    /// The path of the socket is longer than 107 bytes.
    #[error("{0} is too long for a socket's path: set TRUNKLINE_DIR to a shorter one")]
    TooLong(PathBuf),
}

impl Place {
    /// Finds the directories from the environment: `TRUNKLINE_DIR` sets all of them; else XDG's variables, and without
    /// a login session /run/user/UID or ~/.cache.
    ///
    /// # Errors
    /// [`PlaceError::Nowhere`], [`PlaceError::Relative`].
    pub fn find(var: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, PlaceError> {
        if let Some(dir) = var("TRUNKLINE_DIR").filter(|dir| !dir.as_os_str().is_empty()) {
            if dir.is_relative() {
                return Err(PlaceError::Relative(dir));
            }
            return Ok(Self {
                state: dir.join("state"),
                config: dir.join("config.toml"),
                runtime: dir,
            });
        }
        // Relative paths must be ignored (XDG Base Directory Specification).
        let var = |name: &str| var(name).filter(|path| path.is_absolute());
        let home = var("HOME");
        let under_home = |path: &str| home.as_ref().map(|home| home.join(path));
        let run_user = || {
            let directory = PathBuf::from(format!("/run/user/{}", rustix::process::getuid().as_raw()));
            directory.is_dir().then_some(directory)
        };
        let runtime = var("XDG_RUNTIME_DIR")
            .filter(|directory| directory.is_dir())
            .or_else(run_user)
            .or_else(|| var("XDG_CACHE_HOME"))
            .or_else(|| under_home(".cache"))
            .ok_or(PlaceError::Nowhere)?;
        let state = var("XDG_STATE_HOME")
            .or_else(|| under_home(".local/state"))
            .unwrap_or_else(|| runtime.clone());
        let config = var("XDG_CONFIG_HOME")
            .or_else(|| under_home(".config"))
            .unwrap_or_else(|| runtime.clone());
        Ok(Self {
            runtime: runtime.join("trunkline"),
            state: state.join("trunkline"),
            config: config.join("trunkline/config.toml"),
        })
    }

    /// Returns the control socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("control.sock")
    }

    /// Returns the socket of the daemon's metrics.
    pub fn metrics(&self) -> PathBuf {
        self.runtime.join("metrics.sock")
    }

    /// Returns the directory of the mux sockets for stock ssh.
    pub fn mux(&self) -> PathBuf {
        self.runtime.join("mux")
    }

    /// Returns the directory of the masters of the system's ssh.
    pub fn masters(&self) -> PathBuf {
        self.runtime.join("ssh")
    }

    /// Returns the lock that the daemon holds while it owns the socket.
    pub fn lock(&self) -> PathBuf {
        self.runtime.join("daemon.lock")
    }

    /// Returns the daemon's log.
    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    /// Returns the directory of the audit trail.
    pub fn audit(&self) -> PathBuf {
        self.state.join("audit")
    }

    /// Returns the directory of the sessions' recordings.
    pub fn recordings(&self) -> PathBuf {
        self.state.join("recordings")
    }

    /// Creates the directory of the sockets with mode 0700, and checks that only this user can access it.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn make(&self) -> Result<(), PlaceError> {
        // sun_path has 108 bytes, the last for a NUL.
        if self.socket().as_os_str().len() > 107 {
            return Err(PlaceError::TooLong(self.socket()));
        }
        make_private(&self.runtime)
    }

    /// Creates the directory of host memory and the log with mode 0700. The daemon works without it, unlike that of
    /// [`Self::make`].
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn make_state(&self) -> Result<(), PlaceError> {
        make_private(&self.state)
    }
}

/// Creates a directory with mode 0700. An existing one must be this user's own ([`own`]).
///
/// # Errors
/// It is not this user's own, or cannot be created.
pub fn make_private(directory: &Path) -> Result<(), PlaceError> {
    own::make_directory(directory)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(vars: &[(&str, &str)]) -> Result<Place, PlaceError> {
        Place::find(|name| {
            vars.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        })
    }

    #[test]
    fn trunkline_dir_moves_everything() {
        let place = find(&[("TRUNKLINE_DIR", "/x"), ("HOME", "/home/jo")]).unwrap();
        assert_eq!(place.socket(), Path::new("/x/control.sock"));
        assert_eq!(place.state, Path::new("/x/state"));
    }

    #[test]
    fn relative_directories_are_not_used() {
        let place = find(&[
            ("XDG_CONFIG_HOME", "x"),
            ("XDG_STATE_HOME", "/s"),
            ("HOME", "/home/jo"),
        ])
        .unwrap();
        assert_eq!(place.state, Path::new("/s/trunkline"));
        assert_eq!(place.config, Path::new("/home/jo/.config/trunkline/config.toml"));
        // A user who sets it wants a separate daemon.
        let named = find(&[("TRUNKLINE_DIR", "x"), ("HOME", "/home/jo")]);
        assert!(matches!(named, Err(PlaceError::Relative(_))), "{named:?}");
    }

    #[test]
    fn paths_too_long_for_a_socket_are_refused() {
        let dir = PathBuf::from(format!("/tmp/{}", "x".repeat(110)));
        let place = Place {
            state: dir.join("state"),
            config: dir.join("c"),
            runtime: dir,
        };
        assert!(matches!(place.make(), Err(PlaceError::TooLong(_))));
    }
}
