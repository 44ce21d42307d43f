//! Lists of hosts beyond those in an expression: aliases of ssh_config, and Ansible inventories.

mod aliases;
mod inventory;

pub use aliases::{aliases, in_list, known_host_names, matching_aliases};
pub use inventory::{Inventory, InventoryError};
pub use trunkline_request::hosts::{
    HostListError, MOST_HOSTS, Selection, Skipped, Target, Unmatched, expand,
};
