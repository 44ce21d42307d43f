//! Lists of hosts: expressions, patterns of ssh_config's aliases, and Ansible inventories.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use trunkline::config::World;
use trunkline::hosts::{Inventory, matching_aliases};

use crate::error::Failure;
use crate::operation::Operation;
use crate::process::Process;

/// The names that an expression such as `db[01-20],web*,!web3` stands for. `config` is the file of ssh_config in which
/// patterns are looked for, instead of the user's.
#[pyfunction]
#[pyo3(signature = (expression, config=None))]
pub(crate) fn expand(expression: &str, config: Option<PathBuf>) -> PyResult<Vec<String>> {
    let invalid = |error: String| PyValueError::new_err(error);
    let world = World::current()?;
    let mut names = Vec::new();
    for name in
        trunkline::hosts::expand(expression, &world.cwd).map_err(|error| invalid(error.to_string()))?
    {
        if !name.contains(['*', '?']) {
            names.push(name);
            continue;
        }
        let found = matching_aliases(&name, &world, config.as_deref().map(Path::as_os_str))
            .map_err(|error| invalid(error.to_string()))?;
        if found.is_empty() {
            return Err(invalid(format!("no Host alias of ssh_config matches {name:?}")));
        }
        names.extend(found);
    }
    Ok(names)
}

/// The hosts that `pattern`, narrowed by `limit`, picks of Ansible inventories: name, destination and ssh's arguments of
/// each; then those that were left out, and why.
#[pyfunction]
#[pyo3(signature = (sources, pattern, limit=None))]
pub(crate) fn inventory(
    py: Python<'_>,
    sources: Vec<PathBuf>,
    pattern: String,
    limit: Option<String>,
) -> PyResult<Operation> {
    let world = World::current()?;
    Ok(Operation::new(&Process::current(py)?, async move {
        let failed = |error: String| Failure::usage(error);
        let inventory = Inventory::load(&sources, &world)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let selection = inventory
            .select(&pattern, limit.as_deref())
            .map_err(|error| failed(error.to_string()))?;
        let targets: Vec<(String, String, Vec<OsString>)> = selection
            .targets
            .into_iter()
            .map(|target| (target.name, target.destination.to_string(), target.ssh_args))
            .collect();
        let skipped: Vec<(String, String)> = selection
            .skipped
            .into_iter()
            .map(|skipped| (skipped.name, skipped.why))
            .collect();
        Ok((targets, skipped))
    }))
}
