//! The kit's servers and programs, tried with the stock client.

mod hostile;
mod light;
mod programs;
mod russh;
mod sshd;
