//! The known state of a fleet, assembled from its updates.

use std::collections::{BTreeMap, VecDeque};

use trunkline_fleet::report::{
    FleetReport, FleetUpdate, JobReport, MoveReport, NodeReport, NodeState, StreamReport, ZoneReport,
};
use trunkline_watch::News;

/// The maximum number of moves that are kept.
const MOST_MOVES: usize = 200;

/// A fleet, as last reported.
#[derive(Debug, Default)]
pub(crate) struct FleetModel {
    pub(crate) fleet: FleetReport,
    pub(crate) nodes: BTreeMap<String, NodeReport>,
    /// By their site.
    pub(crate) zones: BTreeMap<Option<String>, ZoneReport>,
    /// The oldest move is first.
    pub(crate) moves: VecDeque<MoveReport>,
    pub(crate) jobs: BTreeMap<String, JobReport>,
    pub(crate) streams: BTreeMap<String, StreamReport>,
    /// The reason why there are no reports; `None` while there are.
    pub(crate) lost: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) up: usize,
    pub(crate) draining: usize,
    pub(crate) in_trouble: usize,
    pub(crate) lost: usize,
    pub(crate) shards: usize,
    /// Shards without an owner.
    pub(crate) free: usize,
    pub(crate) running_jobs: usize,
    pub(crate) running_hosts: u64,
    pub(crate) running_streams: usize,
}

impl FleetModel {
    /// Makes the state before the first report.
    pub(crate) fn of_nobody_yet() -> Self {
        Self {
            lost: Some("asking NATS".into()),
            ..Self::default()
        }
    }

    /// Handles news.
    pub(crate) fn take(&mut self, news: News<FleetUpdate>) {
        match news {
            News::Connected => *self = Self::default(),
            News::Lost(why) => self.lost = Some(why),
            News::Update(update) => self.update(*update),
        }
    }

    fn update(&mut self, update: FleetUpdate) {
        self.lost = None;
        let nodes = update.nodes.into_iter().map(|node| (node.name.clone(), node));
        self.nodes.extend(nodes);
        let zones = update.zones.into_iter().map(|zone| (zone.site.clone(), zone));
        self.zones.extend(zones);
        for moved in update.moves {
            match self.moves.iter_mut().find(|known| known.id == moved.id) {
                Some(known) => *known = moved,
                None => self.moves.push_back(moved),
            }
        }
        let surplus = self.moves.len().saturating_sub(MOST_MOVES);
        self.moves.drain(..surplus);
        for gone in update.jobs_gone {
            self.jobs.remove(&gone);
        }
        let jobs = update.jobs.into_iter().map(|job| (job.job.clone(), job));
        self.jobs.extend(jobs);
        for gone in update.streams_gone {
            self.streams.remove(&gone);
        }
        let streams = update.streams.into_iter();
        self.streams
            .extend(streams.map(|stream| (stream.stream.clone(), stream)));
        if let Some(fleet) = update.fleet {
            self.fleet = fleet;
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for node in self.nodes.values() {
            match node.state {
                NodeState::Up => totals.up += 1,
                NodeState::Draining => totals.draining += 1,
                NodeState::InTrouble => totals.in_trouble += 1,
                NodeState::Lost => totals.lost += 1,
                NodeState::Left => {}
            }
        }
        for zone in self.zones.values() {
            totals.shards += zone.owners.len();
            totals.free += zone.owners.iter().filter(|owner| owner.is_none()).count();
        }
        for job in self.jobs.values() {
            totals.running_jobs += usize::from(job.settled_hosts() < job.hosts);
            totals.running_hosts += u64::from(job.running);
        }
        for stream in self.streams.values() {
            totals.running_streams += usize::from(stream.ended < stream.hosts);
        }
        totals
    }

    /// Returns the shards of a zone that belong to a node, or with `None` those without an owner.
    pub(crate) fn shards_of(&self, site: &Option<String>, node: Option<&str>) -> Vec<usize> {
        let Some(zone) = self.zones.get(site) else {
            return Vec::new();
        };
        let owner = |owner: &Option<u16>| {
            let name = zone.nodes.get(usize::from((*owner)?))?;
            Some(name.as_str())
        };
        let shards = zone.owners.iter().enumerate();
        let shards = shards.filter(|(_, place)| owner(place) == node);
        shards.map(|(shard, _)| shard).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use trunkline_fleet::report::MoveReason;

    use super::*;

    pub(crate) fn node(name: &str, state: NodeState, shards: u32) -> NodeReport {
        NodeReport {
            name: name.into(),
            state,
            shards,
            version: "0.1.0".into(),
            heard: 9_998,
            ..NodeReport::default()
        }
    }

    pub(crate) fn job(number: u32, hosts: u32, counts: [u32; 5]) -> JobReport {
        let [running, succeeded, failed, not_started, unknown] = counts;
        JobReport {
            job: format!("{number:012x}"),
            submitter: "UDV7TPE5B6AP7YIHF5ELPFY6KGRO6N2VT33U6NQJGZNPOSOSAXIF6WDB".into(),
            at: 10_000 - 60 * u64::from(number),
            hosts,
            running,
            succeeded,
            failed,
            not_started,
            unknown,
            ..JobReport::default()
        }
    }

    pub(crate) fn stream(number: u32, hosts: u32, counts: [u32; 3]) -> StreamReport {
        let [running, ended, refused] = counts;
        StreamReport {
            stream: format!("{number:012x}"),
            submitter: "UDV7TPE5B6AP7YIHF5ELPFY6KGRO6N2VT33U6NQJGZNPOSOSAXIF6WDB".into(),
            at: 10_000 - 60 * u64::from(number),
            hosts,
            running,
            ended,
            refused,
            ..StreamReport::default()
        }
    }

    pub(crate) fn moved_bytes(
        id: u64,
        from: Option<&str>,
        to: &str,
        reason: MoveReason,
        shards: u32,
    ) -> MoveReport {
        MoveReport {
            id,
            at: 9_990 - id,
            site: None,
            from: from.map(str::to_owned),
            to: to.into(),
            reason,
            shards,
        }
    }

    pub(crate) fn zone(
        site: Option<&str>,
        nodes: &[&str],
        owners: impl IntoIterator<Item = Option<u16>>,
    ) -> ZoneReport {
        ZoneReport {
            site: site.map(str::to_owned),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            owners: owners.into_iter().collect(),
        }
    }

    pub(crate) fn from_update(update: FleetUpdate) -> FleetModel {
        let mut model = FleetModel::of_nobody_yet();
        model.take(News::Connected);
        model.take(News::Update(Box::new(update)));
        model
    }

    #[test]
    fn what_is_told_again_takes_the_place_of_what_was_known() {
        let mut model = from_update(FleetUpdate {
            nodes: vec![node("a", NodeState::Up, 2), node("b", NodeState::Lost, 1)],
            zones: vec![zone(None, &["a", "b"], [Some(0), Some(1), Some(0), None])],
            moves: vec![moved_bytes(1, Some("b"), "a", MoveReason::Lost, 1)],
            jobs: vec![job(1, 9, [3, 1, 0, 0, 0]), job(2, 1, [0, 1, 0, 0, 0])],
            streams: vec![stream(1, 9, [7, 1, 0]), stream(2, 1, [0, 1, 0])],
            ..FleetUpdate::default()
        });
        let totals = model.totals();
        assert_eq!((totals.up, totals.lost, totals.shards, totals.free), (1, 1, 4, 1));
        assert_eq!((totals.running_jobs, totals.running_hosts), (1, 3));
        assert_eq!(totals.running_streams, 1);
        assert_eq!(model.shards_of(&None, Some("a")), [0, 2]);
        assert_eq!(model.shards_of(&None, None), [3]);
        model.take(News::Update(Box::new(FleetUpdate {
            nodes: vec![node("b", NodeState::Up, 1)],
            moves: vec![moved_bytes(1, Some("b"), "a", MoveReason::Lost, 7)],
            jobs_gone: vec![job(1, 0, [0; 5]).job],
            streams: vec![stream(1, 9, [0, 9, 0])],
            streams_gone: vec![stream(2, 0, [0; 3]).stream],
            ..FleetUpdate::default()
        })));
        assert_eq!(model.totals().up, 2);
        assert_eq!(
            (model.moves.len(), model.moves[0].shards, model.jobs.len()),
            (1, 7, 1)
        );
        assert_eq!((model.streams.len(), model.totals().running_streams), (1, 0));
        model.take(News::Lost("x".into()));
        assert_eq!((model.nodes.len(), model.lost.as_deref()), (2, Some("x")));
        model.take(News::Connected);
        assert_eq!(model.nodes.len(), 0);
    }
}
