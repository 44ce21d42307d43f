//! What the daemon tells of itself.

use std::time::{SystemTime, UNIX_EPOCH};

use trunkline::Engine;

use crate::mux;
use crate::place::Place;
use crate::protocol::{DaemonLoad, DaemonStatus, SettingReport, VERSION};

/// The status of this process, which has been serving `since` then.
pub(crate) fn of_this_process(
    engine: &Engine,
    place: &Place,
    mux: Option<&mux::Sockets>,
    since: SystemTime,
) -> DaemonStatus {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut load = DaemonLoad::default();
    for host in engine.status() {
        load.hosts += usize::from(!host.lanes.is_empty());
        load.connections += host.lanes.len();
        load.sessions += host.lanes.iter().map(|lane| lane.report.sessions).sum::<u32>();
        load.tunnels += host.lanes.iter().map(|lane| lane.report.tunnels).sum::<u32>();
    }
    let listening = mux.map(mux::Sockets::listening).unwrap_or_default();
    DaemonStatus {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: VERSION,
        since: since.as_secs(),
        memory: memory(),
        descriptors: descriptors(),
        descriptor_limit: descriptor_limit(),
        socket: place.socket(),
        mux_sockets: listening.into_iter().map(|socket| socket.path).collect(),
        log: place.log(),
        config: place.config.clone(),
        load,
        settings: settings(engine),
    }
}

fn settings(engine: &Engine) -> Vec<SettingReport> {
    let all = engine.settings().all().into_iter();
    all.map(|setting| SettingReport {
        key: setting.key.to_owned(),
        value: setting.value,
        default: setting.default,
        meaning: setting.meaning.to_owned(),
    })
    .collect()
}

/// Bytes of memory in use, by proc(5)'s VmRSS.
pub(crate) fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Open descriptors.
pub(crate) fn descriptors() -> usize {
    // One of them reads the folder.
    std::fs::read_dir("/proc/self/fd").map_or(0, |folder| folder.count().saturating_sub(1))
}

fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_memory_and_descriptors() {
        assert!(memory().is_some_and(|bytes| bytes > 100 * 1024));
        let open = descriptors();
        assert!(open > 2 && descriptor_limit().is_none_or(|limit| limit >= open as u64));
    }
}
