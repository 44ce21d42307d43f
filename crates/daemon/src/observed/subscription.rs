//! Updates for those who watch the daemon: the whole state first, then the changes at each interval.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::process;
use crate::observed::activities::{Activities, Present};
use crate::protocol::{Activity, HostReport, Pulse, Starts, Update};
use trunkline_audit::asker;

/// The shortest and the longest interval that a client can choose.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Connections in one update, or hosts without any. Even with the longest greetings of servers (4 KiB each), an update
/// is far smaller than a frame may be.
const CONNECTIONS: usize = 256;

/// Activities in one update. Their texts are at most 512 characters each.
const ACTIVITIES: usize = 256;

/// Returns the ticks for a client that wants this interval.
pub(crate) fn ticks(wanted: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(wanted.clamp(INTERVALS.0, INTERVALS.1));
    // A client that reads slowly gets fewer updates; none are queued.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The state that one client was told.
#[derive(Default)]
pub(crate) struct ClientView {
    /// The hosts, by sharing key.
    hosts: HashMap<String, HostReport>,
    activities: BTreeMap<u64, Activity>,
    failures: u64,
    starts: Option<Starts>,
}

impl ClientView {
    pub(crate) fn moment(&mut self, hosts: Vec<HostReport>, activities: &Activities) -> Vec<Update> {
        let mut update = Update {
            at: activities.now(),
            pulse: Some(pulse()),
            ..Update::default()
        };
        self.hosts(hosts, &mut update);
        self.activities(activities.present(self.failures), &mut update);
        split(update)
    }

    fn hosts(&mut self, hosts: Vec<HostReport>, update: &mut Update) {
        let mut there = HashSet::with_capacity(hosts.len());
        for host in hosts {
            there.insert(host.sharing.clone());
            let known = self.hosts.get(&host.sharing);
            if known.is_none_or(|known| is_changed(known, &host)) {
                self.hosts.insert(host.sharing.clone(), host.clone());
                update.hosts.push(host);
            }
        }
        let gone = self.hosts.extract_if(|sharing, _| !there.contains(sharing));
        update.hosts_gone = gone.map(|(sharing, _)| sharing).collect();
    }

    fn activities(&mut self, present: Present, update: &mut Update) {
        let Present {
            running,
            failures,
            failed,
            starts,
        } = present;
        let mut told = BTreeMap::new();
        for (id, mut activity) in running {
            match self.activities.remove(&id) {
                Some(known) => {
                    activity.asker.clone_from(&known.asker);
                    if known != activity {
                        update.activities.push(activity.clone());
                    }
                }
                // Only looked up for those who watch, and once: finding a process's name is too expensive for a command
                // that takes a millisecond.
                None => {
                    activity.asker.programs = asker::names(activity.asker.pid);
                    update.activities.push(activity.clone());
                }
            }
            told.insert(id, activity);
        }
        let gone = std::mem::replace(&mut self.activities, told);
        update.activities_gone = gone.into_keys().collect();
        update.failures = failures;
        self.failures = failed;
        if self.starts.as_ref() != Some(&starts) {
            update.starts = Some(starts.clone());
            self.starts = Some(starts);
        }
    }
}

/// Returns true if a host's report has changed. The time until a connection closes does not count: it falls by itself,
/// and if it is reset, the use that reset it shows elsewhere.
fn is_changed(known: &HostReport, now: &HostReport) -> bool {
    if known.connections.len() != now.connections.len() {
        return true;
    }
    let same = known
        .connections
        .iter()
        .zip(&now.connections)
        .all(|(known, now)| {
            known.closes_in.is_some() == now.closes_in.is_some()
                && (known.sent, known.received, known.rtt) == (now.sent, now.received, now.rtt)
                && (known.sessions, known.tunnels, known.spares) == (now.sessions, now.tunnels, now.spares)
                && (known.busy, known.silent, known.closing, known.rate)
                    == (now.busy, now.silent, now.closing, now.rate)
                && known.handshake == now.handshake
        });
    !same
        || (known.pinned, known.transport) != (now.pinned, now.transport)
        || known.mux_sockets != now.mux_sockets
        || known.master != now.master
        || (&known.name, &known.address) != (&now.name, &now.address)
}

/// Splits an update into ones that fit into a frame. The last one has the daemon itself.
fn split(mut update: Update) -> Vec<Update> {
    let mut updates = Vec::new();
    loop {
        let hosts = fitting(&update.hosts);
        let activities = update.activities.len().min(ACTIVITIES);
        if (hosts, activities) == (update.hosts.len(), update.activities.len()) {
            break;
        }
        updates.push(Update {
            at: update.at,
            hosts: update.hosts.drain(..hosts).collect(),
            activities: update.activities.drain(..activities).collect(),
            ..Update::default()
        });
    }
    updates.push(update);
    updates
}

/// Returns how many of these hosts fit into one update: at least one, if there is any.
fn fitting(hosts: &[HostReport]) -> usize {
    let mut connections = 0;
    let fit = hosts.iter().take_while(|host| {
        connections += host.connections.len().max(1);
        connections <= CONNECTIONS
    });
    fit.count().max(hosts.len().min(1))
}

fn pulse() -> Pulse {
    Pulse {
        pid: std::process::id(),
        memory: process::memory(),
        descriptors: process::descriptors(),
        descriptor_limit: process::descriptor_limit(),
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::{ActivityKind, Asker, ConnectionReport, Handshake, MAX_FRAME, Transport};

    use super::*;

    fn host(name: &str, closes_in: u64, sent: u64) -> HostReport {
        HostReport {
            sharing: name.into(),
            connections: vec![ConnectionReport {
                sent,
                closes_in: Some(Duration::from_secs(closes_in)),
                ..ConnectionReport::default()
            }],
            ..HostReport::new(name, format!("admin@{name}:22"), Transport::Native)
        }
    }

    #[test]
    fn a_client_is_told_everything_once_and_then_what_has_changed() {
        let activities = Activities::new();
        let mut told = ClientView::default();
        let first = told.moment(vec![host("a", 9, 1), host("b", 9, 1)], &activities);
        assert_eq!((first.len(), first[0].hosts.len()), (1, 2));
        assert!(first[0].starts.is_some() && first[0].pulse.is_some());
        let idle = told.moment(vec![host("a", 8, 1), host("b", 8, 1)], &activities);
        assert!(idle[0].hosts.is_empty() && idle[0].starts.is_none(), "{idle:?}");
        let used = told.moment(vec![host("a", 9, 2)], &activities);
        assert_eq!(used[0].hosts, [host("a", 9, 2)]);
        assert_eq!(used[0].hosts_gone, ["b"]);
    }

    #[test]
    fn whatever_servers_and_users_say_fits_into_frames() {
        let mut hosts: Vec<_> = (0..600).map(|number| host(&format!("h{number}"), 9, 1)).collect();
        for host in &mut hosts {
            let connection = &mut host.connections[0];
            connection.handshake = Some(Handshake {
                since: 1,
                server: "x".repeat(255),
                kex: String::new(),
                host_key: String::new(),
                cipher: String::new(),
                mac: None,
                compressed: false,
                greeting: "x".repeat(4096),
                log_in: "x".repeat(256),
                host_key_check: "x".repeat(256),
            });
            host.differs = vec![("x".repeat(32), "x".repeat(100)); 12];
            host.connections = vec![connection.clone(); 3];
        }
        let activity = |id| Activity {
            id,
            kind: ActivityKind::Copy,
            host: "é".repeat(512),
            runs: "é".repeat(512),
            asker: Asker::default(),
            since: Duration::ZERO,
            started: None,
            transfer: None,
            resumed: 0,
            on_behalf: String::new(),
        };
        let updates = split(Update {
            hosts,
            activities: (0..600).map(activity).collect(),
            pulse: Some(pulse()),
            ..Update::default()
        });
        assert_eq!(
            updates.iter().map(|update| update.hosts.len()).sum::<usize>(),
            600
        );
        assert_eq!(
            updates
                .iter()
                .map(|update| update.activities.len())
                .sum::<usize>(),
            600
        );
        for update in &updates {
            assert!(rmp_serde::to_vec_named(update).unwrap().len() < MAX_FRAME / 2);
        }
        let last = updates.iter().position(|update| update.pulse.is_some());
        assert_eq!(last, Some(updates.len() - 1));
    }

    #[test]
    fn a_host_with_more_connections_than_an_update_has_is_told() {
        let mut large = host("large", 9, 1);
        large.connections = vec![large.connections[0].clone(); CONNECTIONS + 1];
        let updates =
            ClientView::default().moment(vec![host("a", 9, 1), large, host("b", 9, 1)], &Activities::new());
        assert_eq!(
            updates
                .iter()
                .map(|update| update.hosts.len())
                .collect::<Vec<_>>(),
            [1, 1, 1]
        );
    }
}
