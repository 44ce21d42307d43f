//! Lists of hosts beyond what an expression names: aliases of ssh_config, and Ansible inventories.

mod aliases;
mod inventory;

pub use aliases::in_list;
pub use aliases::matching_aliases;
pub use inventory::{Inventory, InventoryError};
pub use trunkline_request::hosts::{HostListError, MOST_HOSTS, Selection, Skipped, Target, expand};
