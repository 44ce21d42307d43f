//! A node's metrics for Prometheus.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::client::Statistics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit as OfUnit};

use crate::state::{Action, Fate, Intent, Key, Lease, Node, Observed, Time, Token, Unit, Value, Written};

/// Counters by a label with few values.
type Counts = Family<[(&'static str, &'static str); 1], Counter>;

/// The metrics of a node's process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    gained: Counts,
    lost: Counts,
    renewals: Counts,
    renewal_time: Histogram,
    claims: Counts,
    hosts: Counts,
    execution_time: Histogram,
    start_delay: Histogram,
    output_messages: Counter,
    output_bytes: Counter,
    output_lost: Counter,
    present: Arc<Mutex<Present>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let [gained, lost, renewals, claims, hosts] = [(); 5].map(|()| Counts::default());
        let [output_messages, output_bytes, output_lost] = [(); 3].map(|()| Counter::default());
        // 1 ms to 16 s. The limit for an answer of NATS is 3 s.
        let renewal_time = Histogram::new(exponential_buckets(0.001, 2.0, 15));
        // 10 ms to 11 h.
        let [execution_time, start_delay] =
            [(); 2].map(|()| Histogram::new(exponential_buckets(0.01, 2.0, 22)));
        let present = Arc::new(Mutex::new(Present::default()));
        let mut registry = Registry::with_prefix("trunkline_fleet");
        for (name, help, metric) in [
            (
                "shards_gained",
                "Shards that this node has taken, by what became of their former owner",
                &gained,
            ),
            (
                "shards_lost",
                "Shards that this node has given away or lost",
                &lost,
            ),
            (
                "lease_renewals",
                "Leases of this node's name and shards that were to be renewed",
                &renewals,
            ),
            (
                "claims",
                "Claims of hosts that this node has made, or tried to",
                &claims,
            ),
            (
                "hosts",
                "Hosts of jobs whose fate this node has told the fleet",
                &hosts,
            ),
        ] {
            registry.register(name, help, metric.clone());
        }
        for (name, help, metric) in [
            (
                "lease_renewal_duration",
                "Until NATS has answered a renewal",
                &renewal_time,
            ),
            (
                "execution_duration",
                "What commands took on their hosts, with making the connection",
                &execution_time,
            ),
            (
                "start_delay",
                "From a job's submission, by its submitter's clock, until a command of it was started here",
                &start_delay,
            ),
        ] {
            registry.register_with_unit(name, help, OfUnit::Seconds, metric.clone());
        }
        registry.register(
            "output_messages",
            "Messages with output that NATS has",
            output_messages.clone(),
        );
        registry.register_with_unit(
            "output",
            "Output that NATS has",
            OfUnit::Bytes,
            output_bytes.clone(),
        );
        registry.register(
            "output_lost_messages",
            "Messages with output that NATS did not take",
            output_lost.clone(),
        );
        registry.register_collector(Box::new(Collected(present.clone())));
        Self {
            registry,
            gained,
            lost,
            renewals,
            renewal_time,
            claims,
            hosts,
            execution_time,
            start_delay,
            output_messages,
            output_bytes,
            output_lost,
            present,
        }
    }
}

impl trunkline_http::metrics::Metrics for Metrics {
    fn registry(&self) -> &Registry {
        &self.registry
    }
}

impl Metrics {
    /// Counts a piece of output.
    pub(crate) fn output(&self, bytes: usize, is_taken: bool) {
        if !is_taken {
            self.output_lost.inc();
            return;
        }
        self.output_messages.inc();
        self.output_bytes.inc_by(bytes as u64);
    }
}

/// A counted write to the bucket.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Renewal,
    Claim,
    /// The fate of a host.
    Fate(&'static str),
}

/// Counts a node's work from outside of its loop.
#[derive(Debug)]
pub(crate) struct Observer {
    metrics: Arc<Metrics>,
    sent: HashMap<Token, (Sent, Time)>,
    started: HashMap<(String, u32), Time>,
    /// The units that the node held at the last look.
    held: BTreeSet<Unit>,
    /// The units that it is taking, with the reason; those that it gives away, with the reason.
    taking: HashMap<Unit, &'static str>,
    giving: HashMap<Unit, &'static str>,
}

impl Observer {
    /// Returns the observer of a node with this NATS client.
    pub(crate) fn new(metrics: Arc<Metrics>, nats: Arc<Statistics>) -> Self {
        metrics
            .present
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .nats = Some(nats);
        Self {
            metrics,
            sent: HashMap::new(),
            started: HashMap::new(),
            held: BTreeSet::new(),
            taking: HashMap::new(),
            giving: HashMap::new(),
        }
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Notes an action of the node.
    pub(crate) fn acts(&mut self, now: Time, node: &Node, action: &Action) {
        let Action::Write {
            token, key, value, ..
        } = action
        else {
            return;
        };
        let sent = match (key, value) {
            (Key::Lease(unit), Value::Lease(Lease { holder: None })) => {
                let why = if node.is_draining() { "drained" } else { "divided" };
                self.giving.insert(unit.clone(), why);
                return;
            }
            (Key::Lease(unit), _) if !node.owns(unit, now) => {
                let from = match node.holder_of(unit) {
                    None => "new",
                    Some(None) => "given_back",
                    Some(Some(holder)) if holder.node == node.name() => "own",
                    Some(Some(_)) => "lost_node",
                };
                self.taking.insert(unit.clone(), from);
                return;
            }
            (Key::Lease(_) | Key::Member(_), _) => Sent::Renewal,
            (Key::Fate(..), Value::Fate(fate)) => match fate {
                Fate::Claimed(_) => Sent::Claim,
                Fate::Ended { returned, .. } if returned.exit.is_success() => Sent::Fate("succeeded"),
                Fate::Ended { .. } => Sent::Fate("failed"),
                Fate::NotStarted { .. } => Sent::Fate("did_not_start"),
                Fate::Unknown { .. } => Sent::Fate("may_have_started"),
            },
            _ => return,
        };
        self.sent.insert(*token, (sent, now));
    }

    /// Notes the outcome of a write.
    pub(crate) fn note_write(&mut self, now: Time, token: Token, written: &Written) {
        let Some((sent, at)) = self.sent.remove(&token) else {
            return;
        };
        let outcome = match written {
            Written::Done(_) => "ok",
            Written::Refused(_) => "refused",
            Written::Lost => "unanswered",
        };
        match sent {
            Sent::Renewal => {
                self.metrics.renewals.get_or_create(&[("outcome", outcome)]).inc();
                self.metrics
                    .renewal_time
                    .observe(now.saturating_sub(at).as_secs_f64());
            }
            Sent::Claim => {
                self.metrics.claims.get_or_create(&[("outcome", outcome)]).inc();
            }
            Sent::Fate(fate) if outcome == "ok" => {
                self.metrics.hosts.get_or_create(&[("fate", fate)]).inc();
            }
            Sent::Fate(_) => {}
        }
    }

    /// Notes the start of a command, whose job was submitted at that time (seconds since 1970).
    pub(crate) fn note_start(&mut self, now: Time, intent: &Intent, submitted: u64) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let delay = since.saturating_sub(Duration::from_secs(submitted));
        self.metrics.start_delay.observe(delay.as_secs_f64());
        self.started.insert((intent.job.0.clone(), intent.host), now);
    }

    /// Notes the end of a command.
    pub(crate) fn note_end(&mut self, now: Time, intent: &Intent) {
        if let Some(since) = self.started.remove(&(intent.job.0.clone(), intent.host)) {
            let took = now.saturating_sub(since);
            self.metrics.execution_time.observe(took.as_secs_f64());
        }
    }

    /// Updates the metrics from the node's current state.
    pub(crate) fn look(&mut self, now: Time, node: &Node, is_connected: bool) {
        let observed = node.observe(now);
        for unit in observed.held.difference(&self.held) {
            let from = self.taking.remove(unit).unwrap_or("new");
            self.metrics.gained.get_or_create(&[("from", from)]).inc();
        }
        for unit in self.held.difference(&observed.held) {
            let why = self.giving.remove(unit).unwrap_or("expired");
            self.metrics.lost.get_or_create(&[("reason", why)]).inc();
        }
        self.held.clone_from(&observed.held);
        // Attempts that came to nothing.
        self.taking.retain(|unit, _| !observed.held.contains(unit));
        self.giving.retain(|unit, _| observed.held.contains(unit));
        let mut present = self
            .metrics
            .present
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        present.observed = observed;
        present.is_connected = is_connected;
    }
}

/// The current state.
#[derive(Debug)]
struct Present {
    since: SystemTime,
    observed: Observed,
    is_connected: bool,
    nats: Option<Arc<Statistics>>,
}

impl Default for Present {
    fn default() -> Self {
        Self {
            since: SystemTime::now(),
            observed: Observed::default(),
            is_connected: false,
            nats: None,
        }
    }
}

#[derive(Debug)]
struct Collected(Arc<Mutex<Present>>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        present.encode_by_label(&mut encoder)?;
        present.encode_numbers(&mut encoder)?;
        present.encode_nats(&mut encoder)
    }
}

impl Present {
    fn encode_by_label(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Observed { members, intents, .. } = &self.observed;
        let labelled = [
            (
                "members",
                "Nodes of the fleet that have been heard of lately",
                "state",
                &[
                    ("up", members.up),
                    ("draining", members.draining),
                    ("in_trouble", members.in_trouble),
                ][..],
            ),
            (
                "jobs",
                "Jobs that this node knows: not read yet, with hosts that are not settled, settled",
                "state",
                &[
                    ("unread", self.observed.jobs_unread),
                    ("open", self.observed.jobs_open),
                    ("settled", self.observed.jobs_done),
                ],
            ),
            (
                "intents",
                "Hosts that this node has begun, by what they wait for",
                "waiting_for",
                &[
                    ("disk", intents.disk),
                    ("claim", intents.claim),
                    ("execution", intents.execution),
                    ("result", intents.result),
                ],
            ),
        ];
        for (name, help, label, values) in labelled {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (value, count) in values {
                let labels = [(label, *value)];
                gauge(*count as u64).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut owned: Vec<(&str, u64)> = vec![("", 0)];
        for unit in &self.observed.held {
            let site = unit.site.as_deref().unwrap_or_default();
            match owned.iter_mut().find(|(known, _)| *known == site) {
                Some((_, count)) => *count += 1,
                None => owned.push((site, 1)),
            }
        }
        let help = "Shards that this node owns; without a site those of hosts that no site claims";
        let mut metric = encoder.encode_descriptor("owned_shards", help, None, MetricType::Gauge)?;
        for (site, count) in owned {
            let labels = [("site", site)];
            gauge(count).encode(metric.encode_family(&labels)?)?;
        }
        let mut build = encoder.encode_descriptor(
            "build_info",
            "The node's version; always 1",
            None,
            MetricType::Gauge,
        )?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        gauge(1).encode(build.encode_family(&labels)?)
    }

    fn encode_numbers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        for (name, help, unit, value) in [
            (
                "running_executions",
                "Commands that this node is executing",
                None,
                self.observed.intents.execution as u64,
            ),
            (
                "bucket_sequence",
                "The highest sequence number that was seen in the fleet's bucket",
                None,
                self.observed.highest,
            ),
            (
                "frozen",
                "1 where nothing is started in the whole fleet, because NATS has gone back",
                None,
                u64::from(self.observed.is_frozen),
            ),
            (
                "in_trouble",
                "1 where this node starts nothing",
                None,
                u64::from(self.observed.is_in_trouble),
            ),
            (
                "draining",
                "1 where this node takes no more hosts",
                None,
                u64::from(self.observed.is_draining),
            ),
            (
                "nats_connected",
                "1 where this node is connected to NATS",
                None,
                u64::from(self.is_connected),
            ),
            (
                "start_time",
                "When the node began, since 1970",
                Some(OfUnit::Seconds),
                since.as_secs(),
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            gauge(value).encode(metric)?;
        }
        let help = "Until the first of the leases that this node holds ends, if it is not renewed; 0 where it holds none";
        let metric =
            encoder.encode_descriptor("lease_remaining", help, Some(&OfUnit::Seconds), MetricType::Gauge)?;
        let rest = self.observed.lease_ends_in.unwrap_or_default();
        ConstGauge::new(rest.as_secs_f64()).encode(metric)
    }

    fn encode_nats(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(nats) = &self.nats else { return Ok(()) };
        for (name, help, unit, value) in [
            (
                "nats_reconnects",
                "Times that a connection to NATS was lost and made anew",
                None,
                nats.connects.load(Relaxed).saturating_sub(1),
            ),
            (
                "nats_sent_messages",
                "Messages to NATS",
                None,
                nats.out_messages.load(Relaxed),
            ),
            (
                "nats_received_messages",
                "Messages of NATS",
                None,
                nats.in_messages.load(Relaxed),
            ),
            (
                "nats_sent",
                "Content of messages to NATS",
                Some(OfUnit::Bytes),
                nats.out_bytes.load(Relaxed),
            ),
            (
                "nats_received",
                "Content of messages of NATS",
                Some(OfUnit::Bytes),
                nats.in_bytes.load(Relaxed),
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
