//! Real servers, a faulty network and hostile peers, for tests and benchmarks.
//!
//! | for | use |
//! |---|---|
//! | a stock OpenSSH or dropbear server on loopback | [`Sshd`], [`Dropbear`] |
//! | an agent with keys in it | [`Agent`] |
//! | delay, a narrow link, a stall, a cut, a flipped bit | [`Relay`] |
//! | a server that breaks the protocol in a known way | [`hostile::Misbehaviour`] |
//! | a server whose every message comes from the test | [`hostile::RawServer`] |
//! | thousands of hosts in one process, which keep a ledger | [`LightServer`] |
//! | an SFTP server that misbehaves by rules | [`SftpFaults`] |
//! | a second, correct implementation with strange commands | [`hostile::RusshServer`] |
//! | content for files and streams | [`noise`] |
//! | processes of a test that must end with the test program, however that ends | [`directory`] |
//! | a port that refuses connections until a server listens there | [`free_port`] |
//!
//! Every fixture starts on a free loopback port or in its own temporary directory. It is ready for use when its `start`
//! returns. When it is dropped, it ends everything that it started. A fixture in a `static` is never dropped; its
//! processes end when the test program ends, for any reason.
//!
//! `start` blocks for some milliseconds (a key pair is made, a process is started), which is short enough for async
//! tests. Methods that wait for something that the test itself must do are available as `async` methods and as
//! `_blocking` ones.
//!
//! ```no_run
//! use trunkline_testkit::{Relay, Sshd};
//!
//! # fn main() -> Result<(), trunkline_testkit::Error> {
//! let server = Sshd::builder().config("MaxSessions 1").start()?;
//! let relay = Relay::start(server.addr())?;
//! relay.set_rtt(std::time::Duration::from_millis(100));
//! let config = server.ssh_config_via("slow-box", relay.addr())?;
//! let output = trunkline_testkit::ssh(&config).args(["slow-box", "echo hello"]).output()?;
//! assert_eq!(output.stdout, b"hello\n");
//! # Ok(())
//! # }
//! ```

mod agent;
mod background;
mod error;
pub mod hostile;
mod keys;
mod log;
mod noise;
mod port;
mod process;
mod program;
mod relay;
mod servers;
mod ssh_config;

pub use agent::{Agent, KeyConstraints};
pub use error::Error;
pub use keys::{Authority, KeyPair, KeyType};
pub use log::ServerLog;
pub use noise::noise;
pub use port::{free_port, leave_socket};
pub use process::directory;
pub use relay::{Direction, Relay};
pub use servers::{
    Dropbear, DropbearBuilder, LogLevel, SftpFaults, Sshd, SshdBuilder, make_privilege_separation_directory,
};
#[cfg(feature = "russh")]
pub use servers::{Ended, Execution, LightServer};
pub use ssh_config::{HostEntry, ssh, write_ssh_config};
