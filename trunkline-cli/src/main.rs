//! The `trunkline` program.

mod ssh_args;

fn main() {}
