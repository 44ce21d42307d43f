//! A fleet, as the program `trunkline-fleet` tells it.

pub(crate) mod feed;
pub(crate) mod model;
