//! Stock ssh and what runs it, unmodified, against the daemon's mux sockets and a real server.

mod control;
mod forwards;
#[path = "../program/home.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the program, which use other parts of it"
)]
mod home;
mod proxy;
mod rude;
mod session;
mod stock;
mod terminal;
mod tools;

#[path = "../program/tty.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the program, which use other parts of it"
)]
mod tty;
