//! Stock ssh and what runs it, unmodified, against the daemon's mux sockets and a real server.

mod control;
pub(crate) mod forwards;
mod proxy;
mod rude;
mod session;
pub(crate) mod stock;
mod terminal;
mod tools;
