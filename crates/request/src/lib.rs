//! The words of a request, which every other crate says the same things with: where to ([`destination`]), from which
//! surroundings ([`World`], [`Vantage`]), how much to tell
//! ([`LogLevel`]), how to copy ([`copy`]), what was measured for a path ([`tuning`]), and what a
//! failure means ([`failure`]). They travel over the control socket, so that a program needs no engine to say them.

pub mod copy;
pub mod destination;
pub mod failure;
mod log_level;
pub mod os_bytes;
pub mod tuning;
mod vantage;
mod world;

pub use log_level::LogLevel;
pub use vantage::{Difference, Vantage};
pub use world::{Limits, World, current_umask};
