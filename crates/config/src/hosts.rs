//! Lists of hosts: expressions such as `db[01-20],web1`, aliases of ssh_config, and Ansible inventories.
//!
//! ```
//! use trunkline_config::hosts::expand;
//!
//! assert_eq!(expand("db[08-10],web1,!db09", "/".as_ref())?, ["db08", "db10", "web1"]);
//! # Ok::<(), trunkline_config::hosts::HostListError>(())
//! ```

mod aliases;
mod expression;
mod inventory;

pub use aliases::in_list;
pub use aliases::matching_aliases;
pub use expression::{HostListError, expand};
pub use inventory::{Inventory, InventoryError, Selection, Skipped};

use std::ffi::OsString;

use crate::destination::{Destination, DestinationError};

/// The most hosts that one list may name.
pub const MOST_HOSTS: usize = 1_000_000;

/// One host of a list: its name there, and what to hand to the [`Resolver`](crate::ssh_config::Resolver).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name in the list, for people.
    pub name: String,
    /// Where it is.
    pub destination: Destination,
    /// Arguments as for ssh(1).
    pub ssh_args: Vec<OsString>,
}

impl Target {
    /// The target that `name` means as a destination.
    ///
    /// # Errors
    /// Where `name` is no destination.
    pub fn named(name: &str) -> Result<Self, DestinationError> {
        Ok(Self {
            name: name.into(),
            destination: name.parse()?,
            ssh_args: Vec::new(),
        })
    }
}
