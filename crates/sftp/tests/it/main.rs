//! The client and its transfers: against a model server on simulated time, and OpenSSH's own sftp-server over pipes.

mod model;
mod openssh;
mod other_servers;
mod transfer;
