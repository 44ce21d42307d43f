//! `trunkline setup` and `trunkline up`, with the stock programs that they are for.

mod files;
#[path = "../program/home.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the program, which use other parts of it"
)]
mod home;
mod masters;
mod prompts;
mod sharing;
mod stanza;
#[path = "../program/tty.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the program, which use other parts of it"
)]
mod tty;
mod up;
