//! A user's terminal with prediction and one without it, in front of the same session.

mod programs;
mod recorded;
mod world;
