//! Lists of hosts: aliases of ssh_config, and inventories.

use std::ffi::OsStr;
use std::path::PathBuf;

use trunkline::Error;
use trunkline::config::{World, user_config_file};
use trunkline::hosts::{Inventory, matching_aliases};

use crate::protocol::{InventoryRequest, Reply};

/// Returns the aliases that match a pattern.
pub(crate) fn aliases(pattern: &str, world: &World, config_file: Option<&OsStr>) -> Result<Reply, Error> {
    let names = matching_aliases(pattern, world, config_file)?;
    Ok(Reply::Aliases(names))
}

/// Returns the selected hosts of inventories.
pub(crate) async fn inventory(request: &InventoryRequest) -> Result<Reply, Error> {
    let sources: Vec<PathBuf> = request.sources.iter().map(PathBuf::from).collect();
    let inventory = Inventory::load(&sources, &request.world).await?;
    let selection = inventory.select(&request.pattern, request.limit.as_deref());
    Ok(Reply::Selection(selection?))
}

/// Returns the user's own ssh_config.
pub(crate) fn config_file() -> Result<Reply, Error> {
    Ok(Reply::ConfigFile(user_config_file()?))
}
