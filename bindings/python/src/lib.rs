//! The native part of the Python package `trunkline`: private, and thin. The package's own modules, in
//! `python/trunkline`, are its only users and give it its face; `_native.pyi` types it.
//!
//! Everything that may take time is an [`Operation`](operation::Operation), which is either waited for (`trunkline`) or
//! begun (`trunkline.aio`, `trunkline.Group`), when its outcome goes to a [`Completions`](completions::Completions).

mod completions;
mod course;
mod data;
mod error;
mod fleet;
mod forward;
mod hosts;
mod log;
mod operation;
mod private;
mod process;
mod prompt;
mod reach;
mod session;
mod sftp;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::fleet::FleetJob;
    #[pymodule_export]
    use crate::forward::Forward;
    #[pymodule_export]
    use crate::hosts::{expand, inventory};
    #[pymodule_export]
    use crate::log::log_to;
    #[pymodule_export]
    use crate::operation::{Operation, Running};
    #[pymodule_export]
    use crate::private::{Handover, Key, Listener, Opened, PrivateHost, algorithms};
    #[pymodule_export]
    use crate::process::{Engine, shut_down};
    #[pymodule_export]
    use crate::reach::{Host, Surroundings};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::sftp::{RemoteFile, Sftp};

    use super::*;

    /// The version of the engine.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::log::install();
        Ok(())
    }
}
