//! The `trunkline` program.

mod ssh_args;
mod terminal;

fn main() {}
