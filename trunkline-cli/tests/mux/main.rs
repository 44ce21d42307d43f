//! Stock ssh and what runs it, unmodified, against the daemon's mux sockets and a real server.

#[path = "../program/home.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the program, which use other parts of it"
)]
mod home;
mod session;
mod stock;
