//! Timers: decisions on simulated time, which the driver carries out.

pub(crate) mod idle;
pub(crate) mod keepalive;
pub(crate) mod keystrokes;
