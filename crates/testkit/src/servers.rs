//! Real servers on loopback.

mod dropbear;
#[cfg(feature = "russh")]
mod light;
mod sshd;

pub use dropbear::{Dropbear, DropbearBuilder};
#[cfg(feature = "russh")]
pub use light::{Ended, Execution, LightServer};
pub use sshd::{LogLevel, Sshd, SshdBuilder, make_privilege_separation_folder};
