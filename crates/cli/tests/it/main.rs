//! The program as its users run it, against real servers; each test with a daemon of its own.

mod home;
mod mux;
mod program;
mod setup;
mod tty;
mod watching;
