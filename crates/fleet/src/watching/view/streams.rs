//! The streams of a fleet, as a watcher sees them.

use std::collections::{BTreeMap, HashMap};

use crate::report::{StreamNode, StreamReport};
use trunkline_text::Printable;

use crate::bucket::{Charter, decode};
use crate::order;
use crate::order::stream::{StreamOrder, StreamTerms};
use crate::signed::Signed;
use crate::state::{StreamEnd, StreamId, StreamShare};
use crate::streaming::ToldShare;

/// The maximum number of streams that are reported: the newest.
const MOST_STREAMS: usize = 1000;

/// The maximum number of nodes that are reported for a stream: those with the most work.
const MOST_NODES: usize = 20;

/// The maximum length of a reason, in characters.
const LONGEST_REASON: usize = 300;

/// The content of the bucket of streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    told: BTreeMap<StreamId, StreamReport>,
}

#[derive(Debug, Default)]
struct Stream {
    order: Option<StreamOrder>,
    cancelled: bool,
    /// Hosts that have ended for good. True if that was a failure.
    ended: HashMap<u32, bool>,
    shares: BTreeMap<String, StreamShare>,
}

impl Streams {
    /// Handles the value of a key; `None` if it was removed.
    pub(super) fn take(&mut self, charter: &Charter, key: &str, bytes: Option<&[u8]>, created: i64) {
        let mut words = key.split('.');
        let (Some(id), Some(what), last) = (words.next(), words.next(), words.next()) else {
            return;
        };
        let id = StreamId(id.to_owned());
        let Some(bytes) = bytes else {
            let is_under_way = |stream: &Stream| {
                let hosts = stream.order.as_ref().map_or(0, |order| order.hosts);
                stream.ended.len() < usize::try_from(hosts).unwrap_or(usize::MAX)
            };
            // If the stream has not ended, then the order was removed by somebody whom no node obeys.
            if what == "order" && !self.streams.get(&id).is_some_and(is_under_way) {
                self.streams.remove(&id);
            }
            return;
        };
        let stream = self.streams.entry(id.clone()).or_default();
        match (what, last) {
            ("order", None) => {
                let got = u64::try_from(created).unwrap_or_default();
                // Anything that is not an order does not come from us. There is only one order with this name.
                if let Ok(order) = order::read(charter, &id, bytes, got) {
                    stream.order.get_or_insert(order);
                }
            }
            ("cancel", Some(who)) => {
                let said = decode::<Signed>(bytes);
                stream.cancelled |=
                    said.is_ok_and(|said| order::is_cancel::<StreamTerms>(charter, &id, who, &said));
            }
            ("end", Some(host)) => {
                if let (Ok(host), Ok(end)) = (host.parse(), decode::<StreamEnd>(bytes)) {
                    let is_failure = matches!(end, StreamEnd::Ended(exit) if !exit.is_success());
                    stream.ended.insert(host, is_failure);
                }
            }
            ("share", Some(node)) => {
                if let Ok(told) = decode::<ToldShare>(bytes) {
                    stream.shares.insert(node.to_owned(), told.share);
                }
            }
            _ => {}
        }
    }

    /// Returns the streams that have changed, and the names of those that are no longer reported.
    pub(super) fn take_changes(
        &mut self,
        is_there: impl Fn(&str) -> bool,
    ) -> (Vec<StreamReport>, Vec<String>) {
        let mut newest: Vec<(&StreamId, &StreamOrder, &Stream)> = self
            .streams
            .iter()
            .filter_map(|(id, stream)| Some((id, stream.order.as_ref()?, stream)))
            .collect();
        if newest.len() > MOST_STREAMS {
            newest.sort_unstable_by_key(|(id, order, _)| (std::cmp::Reverse(order.at), *id));
            newest.truncate(MOST_STREAMS);
        }
        let reports = newest
            .into_iter()
            .map(|(id, order, stream)| (id.clone(), stream.report(id, order, &is_there)));
        let reports: BTreeMap<StreamId, StreamReport> = reports.collect();
        let changed = reports
            .iter()
            .filter(|(id, report)| self.told.get(*id) != Some(*report));
        let changed = changed.map(|(_, report)| report.clone()).collect();
        let gone = self.told.keys().filter(|id| !reports.contains_key(*id));
        let gone = gone.map(|id| line(&id.0)).collect();
        self.told = reports;
        (changed, gone)
    }

    /// Returns the number of streams that are not reported.
    pub(super) fn older(&self) -> u32 {
        let read = self.streams.values().filter(|stream| stream.order.is_some());
        u32::try_from(read.count().saturating_sub(self.told.len())).unwrap_or(u32::MAX)
    }
}

impl Stream {
    fn report(&self, id: &StreamId, order: &StreamOrder, is_there: impl Fn(&str) -> bool) -> StreamReport {
        let here = self
            .shares
            .iter()
            .filter(|(name, share)| (share.running > 0 || share.refused > 0) && is_there(name));
        let node = |(name, share): (&String, &StreamShare)| StreamNode {
            name: line(name),
            running: share.running,
            refused: share.refused,
            why: share
                .why
                .as_deref()
                .map(|why| line(why).chars().take(LONGEST_REASON).collect()),
        };
        let mut nodes: Vec<StreamNode> = here.map(node).collect();
        let sum = |count: fn(&StreamNode) -> u32| nodes.iter().map(count).fold(0, u32::saturating_add);
        let (running, refused) = (sum(|node| node.running), sum(|node| node.refused));
        nodes.sort_by_key(|node| std::cmp::Reverse(node.running.saturating_add(node.refused)));
        let more_nodes = u32::try_from(nodes.len().saturating_sub(MOST_NODES)).unwrap_or(u32::MAX);
        nodes.truncate(MOST_NODES);
        let count = |hosts: usize| u32::try_from(hosts).unwrap_or(u32::MAX);
        StreamReport {
            stream: line(&id.0),
            submitter: line(&order.submitter),
            at: order.at,
            subject: order.terms.subject.as_deref().map(line),
            hosts: order.hosts,
            running,
            ended: count(self.ended.len()),
            failed: count(self.ended.values().filter(|is_failure| **is_failure).count()),
            refused,
            restarts: self
                .shares
                .values()
                .map(|share| share.restarts)
                .fold(0, u64::saturating_add),
            cancelled: self.cancelled,
            nodes,
            more_nodes,
        }
    }
}

pub(super) fn line(text: &str) -> String {
    Printable::line(text).into_string()
}
