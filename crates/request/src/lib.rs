//! The words of a request, which every other crate says the same things with: where to ([`destination`], [`hosts`]), from which
//! surroundings ([`World`], [`Vantage`]), how much to tell
//! ([`LogLevel`]), how to copy ([`copy`]), what was measured for a path ([`tuning`]), and what a
//! failure means ([`failure`]). They travel over the control socket, so that a program needs no engine to say them.

pub mod copy;
pub mod destination;
pub mod failure;
pub mod hosts;
mod log_level;
pub mod os_bytes;
pub mod tuning;
mod vantage;
mod world;

pub use log_level::LogLevel;
pub use vantage::{Difference, Vantage};
pub use world::{Limits, World, current_umask};

/// Set in the environment of every `ssh -G`. `trunkline up` run by a `Match exec` must succeed at once, and do nothing
/// else, where it sees this variable: the engine would otherwise ask itself for ever. It succeeds so that the answer is
/// the configuration as it is when a mux socket is there, with the ControlPath that ssh would then use.
pub const RESOLVING: &str = "TRUNKLINE_RESOLVING";
