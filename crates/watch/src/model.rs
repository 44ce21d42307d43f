//! The known state of the daemon, built from its updates, with rates and histories.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trunkline_control::protocol::{
    Activity, ActivityKind, ConnectionReport, FailureReport, HostReport, Pulse, Starts, Update,
};

use crate::feed::News;

/// The number of moments in a history.
pub(crate) const HISTORY: usize = 40;

/// The number of failures that are kept.
const FAILURES: usize = 100;

/// The daemon's last known state.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// The time of the last update, on the daemon's clock.
    pub(crate) at: Duration,
    pub(crate) pulse: Option<Pulse>,
    /// The hosts, by sharing key.
    pub(crate) hosts: BTreeMap<String, Host>,
    pub(crate) activities: BTreeMap<u64, Activity>,
    /// Oldest first.
    pub(crate) failures: VecDeque<FailureReport>,
    pub(crate) starts: Starts,
    /// The reason why there are no updates; `None` while there are.
    pub(crate) lost: Option<String>,
    /// For each copy: the previous moment, the bytes moved by then, and the rate.
    copies: BTreeMap<u64, (Duration, u64, f64)>,
    /// The time of the previous moment.
    before: Duration,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) report: HostReport,
    /// The time of the last report, from which the time until connections close counts.
    pub(crate) told: Duration,
    /// The rate sent and received, in bytes per second.
    pub(crate) sent_rate: f64,
    pub(crate) received_rate: f64,
    /// Round-trip times in microseconds, oldest first; 0 if unknown.
    pub(crate) rtts: VecDeque<u64>,
    /// The bytes sent and received at the previous moment.
    before: (u64, u64),
}

/// The totals of all hosts.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) hosts: usize,
    pub(crate) connections: usize,
    pub(crate) sessions: u32,
    pub(crate) tunnels: u32,
    pub(crate) copies: usize,
    pub(crate) sent_rate: f64,
    pub(crate) received_rate: f64,
}

impl Model {
    /// Returns the state before the daemon has answered.
    pub(crate) fn of_nobody_yet() -> Self {
        Self {
            lost: Some("asking the daemon".into()),
            ..Self::default()
        }
    }

    /// Applies news from the daemon.
    pub(crate) fn learn(&mut self, news: News<Update>) {
        match news {
            News::Connected => *self = Self::default(),
            News::Lost(why) => self.lost = Some(why),
            News::Update(update) => self.update(*update),
        }
    }

    fn update(&mut self, update: Update) {
        self.lost = None;
        self.at = update.at;
        for report in update.hosts {
            let at = self.at;
            match self.hosts.get_mut(&report.sharing) {
                Some(host) => (host.report, host.told) = (report, at),
                None => {
                    let before = bytes_moved(&report);
                    let host = Host {
                        told: at,
                        sent_rate: 0.0,
                        received_rate: 0.0,
                        rtts: VecDeque::with_capacity(HISTORY),
                        before,
                        report,
                    };
                    self.hosts.insert(host.report.sharing.clone(), host);
                }
            }
        }
        for gone in update.hosts_gone {
            self.hosts.remove(&gone);
        }
        for activity in update.activities {
            self.activities.insert(activity.id, activity);
        }
        for gone in update.activities_gone {
            self.activities.remove(&gone);
            self.copies.remove(&gone);
        }
        self.failures.extend(update.failures);
        self.failures
            .drain(..self.failures.len().saturating_sub(FAILURES));
        if let Some(starts) = update.starts {
            self.starts = starts;
        }
        if update.pulse.is_some() {
            self.pulse = update.pulse;
            self.end_moment();
        }
    }

    /// Ends a moment, once all its updates have arrived.
    fn end_moment(&mut self) {
        let seconds = self.at.saturating_sub(self.before).as_secs_f64();
        self.before = self.at;
        for host in self.hosts.values_mut() {
            let now = bytes_moved(&host.report);
            // When a connection ends, its bytes no longer count in the sum.
            let rate = |before: u64, now: u64| match seconds > 0.0 {
                true => now.saturating_sub(before) as f64 / seconds,
                false => 0.0,
            };
            host.sent_rate = rate(host.before.0, now.0);
            host.received_rate = rate(host.before.1, now.1);
            host.before = now;
            if host.rtts.len() == HISTORY {
                host.rtts.pop_front();
            }
            let rtt = host.rtt().unwrap_or_default().as_micros();
            host.rtts.push_back(u64::try_from(rtt).unwrap_or(u64::MAX));
        }
        for activity in self.activities.values() {
            let Some(transfer) = &activity.transfer else {
                continue;
            };
            let known = self
                .copies
                .entry(activity.id)
                .or_insert((self.at, transfer.bytes, 0.0));
            let seconds = self.at.saturating_sub(known.0).as_secs_f64();
            if seconds > 0.0 {
                let rate = transfer.bytes.saturating_sub(known.1) as f64 / seconds;
                *known = (self.at, transfer.bytes, rate);
            }
        }
    }

    /// Returns a copy's rate in bytes per second.
    pub(crate) fn copy_rate(&self, id: u64) -> f64 {
        self.copies.get(&id).map_or(0.0, |(_, _, rate)| *rate)
    }

    /// Returns the time since something began.
    pub(crate) fn age(&self, since: Duration) -> Duration {
        self.at.saturating_sub(since)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for host in self.hosts.values() {
            totals.hosts += usize::from(host.is_connected());
            totals.connections += host.report.connections.len();
            totals.sessions += host.sessions();
            totals.tunnels += host.tunnels();
            totals.sent_rate += host.sent_rate;
            totals.received_rate += host.received_rate;
        }
        let copies = self.activities.values();
        totals.copies = copies
            .filter(|activity| activity.kind == ActivityKind::Copy)
            .count();
        totals
    }
}

impl Host {
    fn is_connected(&self) -> bool {
        !self.report.connections.is_empty() || self.report.master.is_some()
    }

    fn sum(&self, of: impl Fn(&ConnectionReport) -> u32) -> u32 {
        self.report.connections.iter().map(of).sum()
    }

    pub(crate) fn sessions(&self) -> u32 {
        let of_master = self.report.master.as_ref().and_then(|master| master.sessions);
        self.sum(|connection| connection.sessions) + of_master.map_or(0, |count| count as u32)
    }

    pub(crate) fn tunnels(&self) -> u32 {
        self.sum(|connection| connection.tunnels)
    }

    /// Returns the round-trip time of the quickest connection.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        let rtts = self
            .report
            .connections
            .iter()
            .filter_map(|connection| connection.rtt);
        rtts.min()
    }

    /// Returns the bytes sent and received by the open connections.
    pub(crate) fn moved_bytes(&self) -> (u64, u64) {
        bytes_moved(&self.report)
    }

    /// Returns the age of its oldest connection.
    pub(crate) fn up(&self) -> Option<Duration> {
        let handshakes = self
            .report
            .connections
            .iter()
            .filter_map(|connection| connection.handshake.as_ref());
        let of_master = self.report.master.as_ref().and_then(|master| master.since);
        let since = handshakes
            .map(|handshake| handshake.since)
            .chain(of_master)
            .min()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(
            now.saturating_sub(Duration::from_secs(since))
                .max(Duration::from_secs(1)),
        )
    }

    /// Returns the most important state of its connections, in a word.
    pub(crate) fn state(&self) -> &'static str {
        let connections = &self.report.connections;
        if let Some(master) = &self.report.master {
            return master.state.as_str();
        }
        match () {
            () if connections.is_empty() && self.report.pinned => "pinned",
            () if connections.is_empty() => "listening",
            () if connections
                .iter()
                .all(|connection| connection.handshake.is_none()) =>
            {
                "connecting"
            }
            () if connections.iter().all(|connection| connection.closing) => "closing",
            () if connections.iter().any(|connection| connection.silent) => "silent",
            () if connections.iter().any(|connection| connection.busy) => "busy",
            () if self.sessions() + self.tunnels() > 0 => "used",
            () if self.report.pinned => "pinned",
            () => "warm",
        }
    }
}

/// Returns the bytes sent to and received from a host.
fn bytes_moved(report: &HostReport) -> (u64, u64) {
    let connections = &report.connections;
    (
        connections.iter().map(|connection| connection.sent).sum(),
        connections.iter().map(|connection| connection.received).sum(),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use trunkline_control::protocol::{Asker, Handshake, TransferReport, Transport};
    use trunkline_request::failure::{ErrorKind, Execution};

    use super::*;

    /// Returns a host with one connection that has sent this many bytes.
    pub(crate) fn host(name: &str, sent: u64) -> HostReport {
        let address = format!("admin@{name}.example.com:22");
        HostReport {
            sharing: name.into(),
            connections: vec![ConnectionReport {
                handshake: Some(Handshake {
                    since: u64::MAX,
                    server: "SSH-2.0-OpenSSH_9.2".into(),
                    kex: "curve25519-sha256".into(),
                    host_key: "ssh-ed25519".into(),
                    cipher: "aes128-gcm@openssh.com".into(),
                    mac: None,
                    compressed: false,
                    greeting: String::new(),
                    log_in: "publickey ED25519 SHA256:x (agent)".into(),
                    host_key_check: "known from /k:1".into(),
                }),
                rtt: Some(Duration::from_micros(1540)),
                sessions: 1,
                spares: 1,
                sent,
                received: 2 * sent,
                ..ConnectionReport::default()
            }],
            ..HostReport::new(name, address, Transport::Native)
        }
    }

    pub(crate) fn activity(id: u64, kind: ActivityKind, host: &str, runs: &str) -> Activity {
        Activity {
            id,
            kind,
            host: host.into(),
            runs: runs.into(),
            asker: Asker {
                pid: Some(4711),
                programs: vec!["ssh".into(), "git".into()],
                stock_ssh: true,
            },
            since: Duration::from_secs(1),
            started: Some(Duration::from_millis(2)),
            transfer: (kind == ActivityKind::Copy).then(|| TransferReport {
                bytes: 30 << 20,
                total_bytes: 40 << 20,
                files: 3,
                total_files: 12,
                failed: 0,
                counted: true,
                current: "/data/a".into(),
            }),
            resumed: 0,
            on_behalf: String::new(),
        }
    }

    pub(crate) fn failure(host: &str, message: &str) -> FailureReport {
        FailureReport {
            at: 1_700_000_000,
            activity: ActivityKind::Command,
            host: host.into(),
            kind: ErrorKind::Network,
            execution: Execution::DidNotStart,
            message: message.into(),
        }
    }

    /// Returns the update that ends a moment.
    pub(crate) fn moment(seconds: u64, hosts: Vec<HostReport>) -> Update {
        Update {
            at: Duration::from_secs(seconds),
            pulse: Some(Pulse {
                pid: 1234,
                memory: Some(45 << 20),
                descriptors: 80,
                descriptor_limit: Some(1024),
            }),
            hosts,
            ..Update::default()
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_moments_and_end_with_the_traffic() {
        let mut model = Model::default();
        model.update(moment(10, vec![host("a", 1_000)]));
        assert_eq!(model.totals().sent_rate, 0.0, "it was never seen before");
        model.update(moment(12, vec![host("a", 5_000)]));
        assert_eq!(
            (model.totals().sent_rate, model.totals().received_rate),
            (2_000.0, 4_000.0)
        );
        model.update(moment(13, Vec::new()));
        assert_eq!(model.totals().sent_rate, 0.0);
        assert_eq!(model.hosts["a"].rtts, [1540, 1540, 1540]);
    }

    #[test]
    fn what_has_gone_is_known_no_more_and_a_new_daemon_begins_anew() {
        let mut model = Model::default();
        let mut first = moment(1, vec![host("a", 1), host("b", 1)]);
        first.activities = vec![activity(1, ActivityKind::Copy, "a", "x → a:y")];
        first.failures = (0..150).map(|n| failure("c", &n.to_string())).collect();
        model.update(first);
        assert_eq!((model.totals().copies, model.failures.len()), (1, FAILURES));
        assert_eq!(model.failures[FAILURES - 1].message, "149");
        let mut second = moment(2, Vec::new());
        (second.hosts_gone, second.activities_gone) = (vec!["a".into()], vec![1]);
        model.update(second);
        assert_eq!((model.totals().hosts, model.totals().copies), (1, 0));
        model.learn(News::Lost("it ended".into()));
        assert_eq!(
            (model.totals().hosts, model.lost.as_deref()),
            (1, Some("it ended"))
        );
        model.learn(News::Connected);
        assert!(model.hosts.is_empty() && model.lost.is_none());
    }
}
