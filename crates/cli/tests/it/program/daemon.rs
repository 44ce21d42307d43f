//! The daemon, as the program starts it, finds it, looks at it and loses it.

mod inherited;
mod lifecycle;
mod metrics;
mod two_programs;
