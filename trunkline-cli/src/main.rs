//! The `trunkline` program.

mod report;
mod ssh_args;
mod terminal;

fn main() {}
