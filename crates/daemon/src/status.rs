//! The daemon's report on itself.

use std::time::{SystemTime, UNIX_EPOCH};

use trunkline::Engine;

use crate::mux;
use crate::observed::process::{descriptor_limit, descriptors, memory};
use crate::place::Place;
use crate::protocol::{DaemonLoad, DaemonStatus, SettingReport, VERSION};

/// Returns the status of this process, which has been serving `since` then.
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
