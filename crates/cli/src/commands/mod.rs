//! One file for each command.

pub(crate) mod audit;
pub(crate) mod complete;
pub(crate) mod cp;
pub(crate) mod daemon;
pub(crate) mod fleet;
pub(crate) mod generate;
pub(crate) mod hosts;
pub(crate) mod mcp;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod ssh;
pub(crate) mod stream;
pub(crate) mod tune;
pub(crate) mod up;
pub(crate) mod watch;
