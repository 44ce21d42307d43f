//! The program against real servers: every command as a user types it, each test with a daemon of its own.

mod at_terminal;
mod audit;
mod closed_pipe;
mod cp;
mod daemon;
mod first_steps;
mod generate;
mod hosts;
mod many_hosts;
mod questions;
mod run;
mod ssh;
mod steering;
mod stream;
mod trouble;
mod tune;
