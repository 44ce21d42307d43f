//! The program against real servers: every command as a user types it, each test with a daemon of its own.

mod as_ssh;
mod authentication;
mod connecting;
mod cp;
mod cp_full_disk;
mod cp_targets;
mod execution;
mod forwards;
mod generate;
mod hosts;
mod inherited;
mod lifecycle;
mod questions;
mod run;
mod sharing;
mod ssh;
mod steering;
mod stream;
mod streams;
mod terminal;
mod trouble;
mod tune;
mod two_programs;
mod unverified;
