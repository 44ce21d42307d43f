//! The program against real servers: every command as a user types it, each test with a daemon of its own.

mod home;
mod ssh;
mod streams;
