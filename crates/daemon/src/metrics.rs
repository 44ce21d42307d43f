//! What Prometheus reads of the daemon: by `trunkline metrics`, from the socket `metrics.sock`, and from a loopback port where
//! config.toml names one.

mod http;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use trunkline::metrics::host_label;
use trunkline::{Engine, ErrorKind, HostStatus};

use crate::protocol::{Program, Reply};
use crate::status;

pub(crate) use http::serve;

/// What the daemon counts itself, and all that is collected from its engine.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    sessions: Counts,
    copies: Counts,
    mux_declined: Counts,
}

/// Numbers that only grow, by a label with few values.
type Counts = Family<[(&'static str, &'static str); 1], Counter>;

impl Metrics {
    pub(crate) fn new(engine: &Engine, since: SystemTime) -> Self {
        let mut registry = Registry::with_prefix("trunkline");
        let [sessions, copies, mux_declined] = [(); 3].map(|()| Counts::default());
        registry.register(
            "sessions",
            "Sessions that clients have asked for",
            sessions.clone(),
        );
        registry.register("copies", "Copies that have ended", copies.clone());
        registry.register(
            "mux_declined",
            "Hosts that stock ssh was left to connect to by itself",
            mux_declined.clone(),
        );
        engine.metrics().register(&mut registry);
        registry.register_collector(Box::new(Present {
            engine: engine.clone(),
            since,
        }));
        Self {
            registry,
            sessions,
            copies,
            mux_declined,
        }
    }

    /// A client has asked for a session.
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

    /// A copy has ended.
    pub(crate) fn copy(&self, end: &Reply) {
        let outcome = match end {
            Reply::Copied(end) if end.progress.failed == 0 => "ok",
            Reply::Copied(_) => "incomplete",
            Reply::Failed(failure) => failure.kind.as_str(),
            _ => return,
        };
        self.copies.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Stock ssh was not served, for this.
    pub(crate) fn decline_mux(&self, reason: ErrorKind) {
        self.mux_declined
            .get_or_create(&[("reason", reason.as_str())])
            .inc();
    }

    /// All of it, as OpenMetrics text.
    pub(crate) fn open_metrics(&self) -> String {
        let mut text = String::new();
        // Writing to a String fails only where an encoder does, which is a mistake of ours: what was written is right.
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::warn!("metrics: {error}");
        }
        text
    }

    /// All of it, as Prometheus' own text, which node_exporter reads from files.
    pub(crate) fn text(&self) -> String {
        prometheus_text(&self.open_metrics())
    }
}

/// OpenMetrics names a counter without the `_total` of its samples, and has lines that the older format has not.
fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    for line in open_metrics.lines() {
        let about = line
            .strip_prefix("# HELP ")
            .or_else(|| line.strip_prefix("# TYPE "));
        match about.and_then(|about| about.split_once(' ')) {
            Some((name, rest)) if counters.contains(&name) => {
                let _ = writeln!(text, "{} {name}_total {rest}", &line[..6]);
            }
            None if line.starts_with("# ") => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// What there is at the moment.
#[derive(Debug)]
struct Present {
    engine: Engine,
    since: SystemTime,
}

/// What is added up for a host's label.
#[derive(Debug, Default)]
struct Host {
    connecting: u64,
    connected: u64,
    sessions: u64,
    tunnels: u64,
    spares: u64,
    /// Seconds, of the quickest of its connections.
    rtt: Option<f64>,
}

impl Host {
    fn add(&mut self, status: &HostStatus) {
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
        let numbers: [(&str, &str, Number); 3] = [
            ("running_sessions", "Sessions that run", |host| host.sessions),
            ("open_tunnels", "Forwarded connections that are open", |host| {
                host.tunnels
            }),
            (
                "spare_sessions",
                "Sessions that were opened ahead for the next commands",
                |host| host.spares,
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
        let mut build = encoder.encode_descriptor(
            "build_info",
            "The daemon's version; always 1",
            None,
            MetricType::Gauge,
        )?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        gauge(1).encode(build.encode_family(&labels)?)?;
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let memory = status::memory().unwrap_or_default();
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
                "open_descriptors",
                "File descriptors that the daemon has open",
                None,
                status::descriptors() as u64,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            gauge(value).encode(metric)?;
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Failure;

    #[test]
    fn counters_have_one_name_in_prometheus_own_text() {
        let open = "# HELP a_b Help.\n# TYPE a_b counter\n# UNIT a_b bytes\na_b_total{x=\"# TYPE\"} 1\n# HELP c C.\n\
                    # TYPE c gauge\nc 2\n# EOF\n";
        let text = "# HELP a_b_total Help.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE\"} 1\n# HELP c C.\n\
                    # TYPE c gauge\nc 2\n";
        assert_eq!(prometheus_text(open), text);
    }

    #[tokio::test]
    async fn what_nobody_has_asked_for_yet_is_told_too() {
        let engine = Engine::new(trunkline::Settings::default(), trunkline::MemoryPlace::Process);
        let metrics = Metrics::new(&engine, SystemTime::now());
        metrics.session(&Program::Configured);
        metrics.copy(&Reply::Failed(Failure::new(ErrorKind::File, "it is full")));
        metrics.decline_mux(ErrorKind::Configuration);
        let text = metrics.text();
        for line in [
            "trunkline_connections_started_total 0\n",
            "trunkline_sessions_total{kind=\"command\"} 1\n",
            "trunkline_copies_total{outcome=\"file\"} 1\n",
            "trunkline_mux_declined_total{reason=\"configuration\"} 1\n",
            "# TYPE trunkline_resident_memory_bytes gauge\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
