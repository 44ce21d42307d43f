//! Real servers on loopback.

mod dropbear;
#[cfg(feature = "russh")]
mod light;
mod sftp_faults;
mod sshd;

pub use dropbear::{Dropbear, DropbearBuilder};
#[cfg(feature = "russh")]
pub use light::{Ended, Execution, LightServer};
pub use sftp_faults::SftpFaults;
pub use sshd::{LogLevel, Sshd, SshdBuilder, make_privilege_separation_directory};
