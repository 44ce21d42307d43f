//! The common part of the peers that are written in Rust: measuring their own process, and printing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The time that buffers may take to be given back, and rates to be noticed.
pub(crate) const SETTLE: Duration = Duration::from_millis(2500);
/// By then a download has left its start behind.
pub(crate) const WELL_UNDER_WAY: u64 = 64 << 20;

/// 127.0.0.1 for 0, 127.0.0.2 for 1, and so on.
pub(crate) fn address(nth: u32, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from(Ipv4Addr::from(0x7f00_0001 + nth)), port)
}

pub(crate) fn print_times(times: &[Duration]) {
    for time in times {
        println!("{}", time.as_nanos());
    }
}

/// Bytes of memory that the process has in use (`VmRSS`).
pub(crate) fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}

pub(crate) fn raise_file_limit() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
