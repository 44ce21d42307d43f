//! The engine against stock servers.

mod engine;
mod error;
mod execution;
mod forward;
mod further_log_in;
mod odd_servers;
mod other_sftp;
mod private_host;
mod sftp;
mod site;
mod transfer;
mod tune;
