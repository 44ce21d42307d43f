//! The state machine: against a model and a server on simulated time, and against real and hostile servers over a socket.

mod channels;
mod hostile;
mod interop;
mod pair;
mod socket;
mod sshd;
