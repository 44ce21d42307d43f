//! Counters of what an engine and its connections have done. They are always on, because they are cheap. `trunkline ls`
//! reads them, and Prometheus can. Each engine has its own; nothing is global.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio_util::sync::CancellationToken;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The number of current waiters.
#[derive(Debug, Default)]
pub struct Queue(AtomicU64);

impl Queue {
    /// Counts one more until the returned value is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Returns the number of waiters.
    pub fn length(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A waiter.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of a connection.
#[derive(Debug, Default)]
pub struct ConnectionMetrics {
    /// The round-trip time in nanoseconds; 0 if unknown.
    rtt: AtomicU64,
    /// The number of round trips that were measured by answers that take the server no work.
    rtt_measurements: AtomicU32,
    /// The time of the server's last bytes, in milliseconds of a clock that continues while the machine sleeps.
    heard: AtomicU64,
    /// Bytes sent through its socket.
    pub bytes_sent: Counter,
    /// Bytes received through its socket.
    pub bytes_received: Counter,
    /// Requested channels.
    pub channels_opened: Counter,
    /// Sessions with a command; unused channels opened ahead do not count.
    pub sessions: Counter,
    /// Cancelled when the server has left something unanswered for so long that the connection should get nothing new.
    pub(crate) doubted: CancellationToken,
}

impl ConnectionMetrics {
    /// Sets the measured round-trip time.
    pub(crate) fn set_rtt(&self, rtt: Option<Duration>, measurements: u32) {
        self.rtt_measurements.store(measurements, Ordering::Relaxed);
        let nanos = rtt.map_or(0, |rtt| u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX));
        self.rtt.store(nanos, Ordering::Relaxed);
    }

    /// Notes that the server has sent something.
    pub(crate) fn note_heard(&self) {
        self.heard.store(since_boot(), Ordering::Relaxed);
    }

    /// Returns how long the server has been silent, including the time that the machine slept.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(since_boot().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Returns how many round trips were measured by answers that take the server no work.
    pub(crate) fn rtt_measurements(&self) -> u32 {
        self.rtt_measurements.load(Ordering::Relaxed)
    }

    /// Returns the connection's round-trip time, if an answer of its server has shown it.
    pub fn rtt(&self) -> Option<Duration> {
        match self.rtt.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

/// Returns milliseconds since boot, including sleep. Only Linux has a clock that counts sleep.
fn since_boot() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    let since = Duration::try_from(now).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The way in which a session got its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Opening {
    /// It was opened ahead: the command was sent at once.
    Spare,
    /// A channel was opened on an existing connection, or on a further one.
    Open,
    /// The first connection to the host was made for it.
    Cold,
}

impl Opening {
    fn as_str(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::Open => "open",
            Self::Cold => "cold",
        }
    }
}

/// A stage of making a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The lookup of the name, and connecting.
    Dial,
    /// From there to the server's host key.
    KeyExchange,
    /// The check of that key, and the user's authentication.
    Authentication,
}

impl Stage {
    fn as_str(self) -> &'static str {
        match self {
            Self::Dial => "dial",
            Self::KeyExchange => "key_exchange",
            Self::Authentication => "authentication",
        }
    }
}

/// Defines the counters that are one number, each with its description for Prometheus.
macro_rules! counters {
    ($($counter:ident: $help:literal,)+) => {
        /// Numbers that only grow.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = concat!($help, ".")] pub $counter: Counter,)+
        }

        impl Counters {
            /// Returns their names, descriptions and values.
            fn all(&self) -> impl IntoIterator<Item = (&'static str, &'static str, &Counter)> {
                [$((stringify!($counter), $help, &self.$counter)),+]
            }
        }
    };
}

counters! {
    connections_started: "Connections that were begun",
    connections_authenticated: "Connections that were authenticated",
    further_connections: "Connections that were made beside the first to a host, for more sessions or for traffic",
    session_overflows: "Times that a server did not take a session on a connection, so that it went to another",
    reconnects: "Connections that were begun in the place of one that was lost",
    sftp_resumed: "Times that an SFTP session was carried over to a new connection",
    sftp_given_up: "SFTP sessions that were lost and could not be carried over",
}

/// The counters of an engine.
pub struct Metrics {
    /// Numbers that only grow.
    pub counters: Counters,
    /// Handshakes that wait because of the limit for their server.
    pub waiting_for_server: Queue,
    /// Handshakes that wait because of the limit for all servers.
    pub waiting_for_turn: Queue,
    handshakes: Times,
    stages: StageTimes,
    sessions: Times,
    hosts: Mutex<Hosts>,
}

/// Times by a label with few values.
type Times = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

type StageTimes = Family<[(&'static str, &'static str); 2], Histogram, fn() -> Histogram>;

/// Buckets from 1 ms to 131 s, each bound twice the one before: from a nearby session on an open connection to a log-in
/// for which somebody types a password.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

type Hosts = BTreeMap<Arc<str>, HostTraffic>;

/// The bytes that the connections to a host have moved.
#[derive(Debug, Default)]
struct HostTraffic {
    /// Its open connections.
    open: Vec<Arc<ConnectionMetrics>>,
    /// Bytes of ended connections.
    sent: u64,
    received: u64,
}

/// The most hosts with their own label; the others share the label `other`.
const MOST_HOSTS: usize = 200;

/// Returns the label of a host in `counted`: its name, or the shared one if there are many hosts.
pub fn host_label<'a, L: Borrow<str> + Ord, T>(host: &'a str, counted: &BTreeMap<L, T>) -> &'a str {
    if counted.len() < MOST_HOSTS || counted.contains_key(host) {
        host
    } else {
        "other"
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            counters: Counters::default(),
            waiting_for_server: Queue::default(),
            waiting_for_turn: Queue::default(),
            handshakes: Family::new_with_constructor(times),
            stages: Family::new_with_constructor(times),
            sessions: Family::new_with_constructor(times),
            hosts: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Locks the table of hosts for a look-up.
    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new connection's bytes for its host.
    pub(crate) fn count(self: &Arc<Self>, host: &str, connection: &Arc<ConnectionMetrics>) -> Counted {
        let mut hosts = self.hosts();
        let label: Arc<str> = host_label(host, &hosts).into();
        let traffic = hosts.entry(label.clone()).or_default();
        traffic.open.push(connection.clone());
        drop(hosts);
        Counted {
            metrics: self.clone(),
            label,
            connection: connection.clone(),
        }
    }

    /// Records a finished handshake; `outcome` is "ok", or the kind of its error.
    pub(crate) fn handshake(&self, outcome: &'static str, took: Duration) {
        let times = self.handshakes.get_or_create(&[("outcome", outcome)]);
        times.observe(took.as_secs_f64());
    }

    /// Records a finished stage of a handshake; `outcome` as for [`Self::handshake`].
    pub(crate) fn stage(&self, stage: Stage, outcome: &'static str, took: Duration) {
        let labels = [("stage", stage.as_str()), ("outcome", outcome)];
        self.stages.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Records how long a session took to start.
    pub(crate) fn session(&self, opening: Opening, took: Duration) {
        let times = self.sessions.get_or_create(&[("path", opening.as_str())]);
        times.observe(took.as_secs_f64());
    }

    /// Registers these counters.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        registry.register_with_unit(
            "handshake_duration",
            "Time of making a connection, from its beginning to authentication or failure",
            Unit::Seconds,
            self.handshakes.clone(),
        );
        registry.register_with_unit(
            "handshake_stage_duration",
            "Time of a stage of making a connection",
            Unit::Seconds,
            self.stages.clone(),
        );
        registry.register_with_unit(
            "session_start_duration",
            "Time until the server has started a session",
            Unit::Seconds,
            self.sessions.clone(),
        );
        registry.register_collector(Box::new(Totals(self.clone())));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// A counted connection. On drop, its bytes move to those of ended connections.
pub(crate) struct Counted {
    metrics: Arc<Metrics>,
    label: Arc<str>,
    connection: Arc<ConnectionMetrics>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut hosts = self.metrics.hosts();
        if let Some(traffic) = hosts.get_mut(&self.label) {
            traffic.open.retain(|open| !Arc::ptr_eq(open, &self.connection));
            traffic.sent += self.connection.bytes_sent.value();
            traffic.received += self.connection.bytes_received.value();
        }
    }
}

/// The numbers that are kept outside the registry.
#[derive(Debug)]
struct Totals(Arc<Metrics>);

impl Collector for Totals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, counter) in self.0.counters.all() {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(counter.value()).encode(metric)?;
        }
        let mut waiting = encoder.encode_descriptor(
            "waiting_handshakes",
            "Handshakes that wait because as many as may be are under way, with their server or in all",
            None,
            MetricType::Gauge,
        )?;
        for (limit, queue) in [
            ("server", &self.0.waiting_for_server),
            ("all", &self.0.waiting_for_turn),
        ] {
            let length = i64::try_from(queue.length()).unwrap_or(i64::MAX);
            let labels = [("limit", limit)];
            ConstGauge::new(length).encode(waiting.encode_family(&labels)?)?;
        }
        let hosts = self.0.hosts();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for (host, traffic) in &*hosts {
            let open = &traffic.open;
            let now: u64 = open.iter().map(|open| open.bytes_sent.value()).sum();
            sent.push((host.clone(), traffic.sent + now));
            let now: u64 = open.iter().map(|open| open.bytes_received.value()).sum();
            received.push((host.clone(), traffic.received + now));
        }
        drop(hosts);
        let bytes = [
            ("sent", "Bytes that left through sockets to a host", sent),
            (
                "received",
                "Bytes that came in through sockets from a host",
                received,
            ),
        ];
        for (name, help, totals) in bytes {
            let mut metric =
                encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Counter)?;
            for (host, total) in totals {
                let labels = [("host", &*host)];
                ConstCounter::new(total).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(metrics: &Arc<Metrics>) -> String {
        let mut registry = Registry::with_prefix("trunkline");
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn bytes_of_a_connection_count_once_whether_it_is_there_or_has_ended() {
        let metrics = Arc::new(Metrics::default());
        let sent = |bytes| format!("trunkline_sent_bytes_total{{host=\"box\"}} {bytes}\n");
        let one = Arc::new(ConnectionMetrics::default());
        let counted = metrics.count("box", &one);
        one.bytes_sent.add(7);
        assert!(encode(&metrics).contains(&sent(7)));
        drop(counted);
        assert!(encode(&metrics).contains(&sent(7)));
        let two = Arc::new(ConnectionMetrics::default());
        let _counted = metrics.count("box", &two);
        two.bytes_sent.add(1);
        assert!(encode(&metrics).contains(&sent(8)));
    }

    #[test]
    fn more_hosts_than_there_are_labels_for_share_one() {
        let metrics = Arc::new(Metrics::default());
        let counted: Vec<_> = (0..MOST_HOSTS + 50)
            .map(|n| {
                let connection = Arc::new(ConnectionMetrics::default());
                connection.bytes_sent.add(1);
                metrics.count(&format!("box{n}"), &connection)
            })
            .collect();
        assert!(encode(&metrics).contains("trunkline_sent_bytes_total{host=\"other\"} 50\n"));
        drop(counted);
        assert_eq!(metrics.hosts().len(), MOST_HOSTS + 1);
    }

    #[test]
    fn who_waits_is_in_the_queue_until_it_gives_up() {
        let metrics = Arc::new(Metrics::default());
        let length = |n| format!("trunkline_waiting_handshakes{{limit=\"server\"}} {n}\n");
        let waiting = [
            metrics.waiting_for_server.wait(),
            metrics.waiting_for_server.wait(),
        ];
        assert!(encode(&metrics).contains(&length(2)));
        drop(waiting);
        assert!(encode(&metrics).contains(&length(0)));
    }

    #[test]
    fn a_host_cannot_write_lines_of_its_own() {
        let metrics = Arc::new(Metrics::default());
        let _counted = metrics.count("a\"} 1\nevil 2", &Arc::default());
        assert!(!encode(&metrics).contains("\nevil"));
    }
}
