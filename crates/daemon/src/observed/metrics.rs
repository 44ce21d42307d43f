//! The daemon's metrics for Prometheus: through `trunkline metrics`, the socket `metrics.sock`, and a loopback port if
//! config.toml names one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use trunkline::metrics::host_label;
use trunkline::{Engine, ErrorKind, HostStatus};

use super::process;
use crate::observed::recording::Recordings;
use crate::protocol::{Program, Reply};
use trunkline_audit::Audit;

/// The daemon's own counters, and the engine's state, which is collected on demand.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    sessions: Counts,
    copies: Counts,
    mux_declined: Declines,
}

/// Counters by a label with few values.
type Counts = Family<[(&'static str, &'static str); 1], Counter>;

/// Counters by two labels.
type Declines = Family<[(&'static str, &'static str); 2], Counter>;

/// A request of stock ssh to a mux socket, or of `trunkline up` before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stock {
    /// The socket itself.
    Up,
    /// The connection behind the socket, once a client has connected.
    Hello,
    Session,
    Tunnel,
    Forwarding,
    Proxy,
    /// A request to end the connection or the socket.
    Control,
    /// A request that is not known here.
    Unknown,
}

impl Stock {
    fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Hello => "hello",
            Self::Session => "session",
            Self::Tunnel => "tunnel",
            Self::Forwarding => "forwarding",
            Self::Proxy => "proxy",
            Self::Control => "control",
            Self::Unknown => "unknown",
        }
    }
}

/// The reason why stock ssh was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decline {
    Failed(ErrorKind),
    /// The user was asked and did not allow it.
    NotAllowed,
    /// The client might mean another host of the same name.
    AnotherHost,
    Unsupported,
}

impl Decline {
    fn as_str(self) -> &'static str {
        match self {
            Self::Failed(kind) => kind.as_str(),
            Self::NotAllowed => "not_allowed",
            Self::AnotherHost => "another_host",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Metrics {
    pub(crate) fn new(
        engine: &Engine,
        since: SystemTime,
        audit: &Arc<Audit>,
        recordings: &Arc<Recordings>,
    ) -> Self {
        let mut registry = Registry::with_prefix("trunkline");
        let [sessions, copies] = [(); 2].map(|()| Counts::default());
        let mux_declined = Declines::default();
        registry.register(
            "sessions",
            "Sessions that clients have asked for",
            sessions.clone(),
        );
        registry.register("copies", "Copies that have ended", copies.clone());
        registry.register(
            "mux_declined",
            "Requests of stock ssh that were not served, so that it connects by itself or fails",
            mux_declined.clone(),
        );
        engine.metrics().register(&mut registry);
        registry.register_collector(Box::new(Present {
            engine: engine.clone(),
            since,
            audit: audit.clone(),
            recordings: recordings.clone(),
        }));
        Self {
            registry,
            sessions,
            copies,
            mux_declined,
        }
    }

    /// Counts a client's request for a session.
    pub(crate) fn session(&self, program: &Program) {
        let kind = match program {
            Program::Exec(_) | Program::Configured => "command",
            Program::Subsystem(_) => "subsystem",
            Program::Stdio(..) | Program::StdioSocket(_) => "tunnel",
            Program::Listen(..) | Program::ListenSocket(_) | Program::Incoming(_) => "forwarding",
            Program::Nothing => "none",
        };
        self.sessions.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn copy(&self, end: &Reply) {
        let outcome = match end {
            Reply::Copied(end) if end.progress.failed == 0 => "ok",
            Reply::Copied(_) => "incomplete",
            Reply::Failed(failure) => failure.kind.as_str(),
            _ => return,
        };
        self.copies.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a request of stock ssh that was not served.
    pub(crate) fn decline_mux(&self, request: Stock, reason: Decline) {
        let labels = [("request", request.as_str()), ("reason", reason.as_str())];
        self.mux_declined.get_or_create(&labels).inc();
    }
}

impl trunkline_http::metrics::Metrics for Metrics {
    fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// The source of metrics that are read on demand.
struct Present {
    engine: Engine,
    since: SystemTime,
    audit: Arc<Audit>,
    recordings: Arc<Recordings>,
}

/// The sums for a host's label.
#[derive(Debug, Default)]
struct Host {
    connecting: u64,
    connected: u64,
    sessions: u64,
    tunnels: u64,
    spares: u64,
    waiting: u64,
    /// Seconds, of the quickest of its connections.
    rtt: Option<f64>,
}

impl Host {
    fn add(&mut self, status: &HostStatus) {
        self.waiting += status.waiting;
        for lane in &status.lanes {
            match lane.info {
                Some(_) => self.connected += 1,
                None => self.connecting += 1,
            }
            self.sessions += u64::from(lane.report.sessions);
            self.tunnels += u64::from(lane.report.tunnels);
            self.spares += lane.report.spares as u64;
            let rtt = lane.report.rtt.map(|rtt| rtt.as_secs_f64());
            self.rtt = [self.rtt, rtt].into_iter().flatten().reduce(f64::min);
        }
    }
}

impl fmt::Debug for Present {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Present").finish_non_exhaustive()
    }
}

impl Present {
    fn hosts(&self) -> BTreeMap<String, Host> {
        let mut all = self.engine.status();
        all.sort_by(|a, b| a.host.original_host.cmp(&b.host.original_host));
        let mut hosts = BTreeMap::<String, Host>::new();
        for status in all {
            let label = host_label(&status.host.original_host, &hosts);
            hosts.entry(label.to_owned()).or_default().add(&status);
        }
        hosts
    }
}

impl Collector for Present {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let hosts = self.hosts();
        let mut connections = encoder.encode_descriptor(
            "connections",
            "Connections, by host and state",
            None,
            MetricType::Gauge,
        )?;
        for (name, host) in &hosts {
            for (state, count) in [("connecting", host.connecting), ("connected", host.connected)] {
                let labels = [("host", name.as_str()), ("state", state)];
                gauge(count).encode(connections.encode_family(&labels)?)?;
            }
        }
        type Number = fn(&Host) -> u64;
        let numbers: [(&str, &str, Number); 4] = [
            ("running_sessions", "Sessions that run", |host| host.sessions),
            ("open_tunnels", "Forwarded connections that are open", |host| {
                host.tunnels
            }),
            (
                "spare_sessions",
                "Sessions that were opened ahead for the next commands",
                |host| host.spares,
            ),
            (
                "waiting_sessions",
                "Sessions and forwarded connections that wait for a place on a connection",
                |host| host.waiting,
            ),
        ];
        for (name, help, of) in numbers {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (name, host) in &hosts {
                let labels = [("host", name.as_str())];
                gauge(of(host)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut rtt = encoder.encode_descriptor(
            "round_trip",
            "Round-trip time to a host, as its quickest connection showed it last",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        for (name, host) in &hosts {
            if let Some(seconds) = host.rtt {
                let labels = [("host", name.as_str())];
                ConstGauge::new(seconds).encode(rtt.encode_family(&labels)?)?;
            }
        }
        self.encode_daemon(encoder)
    }
}

impl Present {
    /// Encodes the metrics that belong to no host.
    fn encode_daemon(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut build = encoder.encode_descriptor(
            "build_info",
            "The daemon's version; always 1",
            None,
            MetricType::Gauge,
        )?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        gauge(1).encode(build.encode_family(&labels)?)?;
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let memory = process::memory().unwrap_or_default();
        for (name, help, unit, value) in [
            (
                "start_time",
                "When the daemon began, since 1970",
                Some(Unit::Seconds),
                since.as_secs(),
            ),
            (
                "resident_memory",
                "Memory that the daemon has in use",
                Some(Unit::Bytes),
                memory,
            ),
            (
                "receive_windows",
                "What servers may send at most, beyond what every channel's window begins with",
                Some(Unit::Bytes),
                self.engine.window_bytes(),
            ),
            (
                "open_descriptors",
                "File descriptors that the daemon has open",
                None,
                process::descriptors() as u64,
            ),
            (
                "audit_waiting_records",
                "Records of the audit trail that are not written yet",
                None,
                self.audit.waiting(),
            ),
            (
                "recordings_waiting",
                "Output that recordings of sessions have not written yet",
                Some(Unit::Bytes),
                self.recordings.waiting(),
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            gauge(value).encode(metric)?;
        }
        for (name, help, unit, value) in [
            (
                "audit_lost_records",
                "Records of the audit trail that were given up, because they could not be written",
                None,
                self.audit.lost_records(),
            ),
            (
                "recordings_left_out",
                "Output that recordings of sessions lack, because the disk was too slow",
                Some(Unit::Bytes),
                self.recordings.left_out(),
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use trunkline_http::metrics::Metrics as _;

    use super::*;
    use crate::place::Place;
    use crate::protocol::Failure;

    #[tokio::test]
    async fn what_nobody_has_asked_for_yet_is_told_too() {
        let engine = Engine::new(trunkline::Settings::default(), trunkline::MemoryPlace::Process);
        let place = Place {
            runtime: "r".into(),
            state: "s".into(),
            config: "c".into(),
        };
        let recordings = Recordings::start(&place, &engine).unwrap();
        let metrics = Metrics::new(&engine, SystemTime::now(), &Audit::none(), &recordings);
        metrics.session(&Program::Configured);
        metrics.copy(&Reply::Failed(Failure::new(ErrorKind::File, "it is full")));
        metrics.decline_mux(Stock::Up, Decline::Failed(ErrorKind::Configuration));
        metrics.decline_mux(Stock::Session, Decline::NotAllowed);
        let text = metrics.text();
        for line in [
            "trunkline_connections_started_total 0\n",
            "trunkline_sessions_total{kind=\"command\"} 1\n",
            "trunkline_copies_total{outcome=\"file\"} 1\n",
            "trunkline_mux_declined_total{request=\"up\",reason=\"configuration\"} 1\n",
            "trunkline_mux_declined_total{request=\"session\",reason=\"not_allowed\"} 1\n",
            "trunkline_waiting_handshakes{limit=\"all\"} 0\n",
            "trunkline_audit_lost_records_total 0\n",
            "trunkline_recordings_waiting_bytes 0\n",
            "# TYPE trunkline_resident_memory_bytes gauge\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
