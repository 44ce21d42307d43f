//! From an intent to a fate: the executions of this process, and how their outcomes are reported to the fleet.

use super::super::Time;
use super::super::entry::{Claim, Fate, JobId, Key, Returned, Value};
use super::mine::{Flight, Mine, Stage};
use super::{Action, Intent, Node, Purpose, lost_claim};

impl Node {
    /// Starts a host that nobody has claimed.
    pub(super) fn begin(&mut self, place: (JobId, u32), fence: u64) {
        self.next += 1;
        let claim = Claim {
            holder: self.settings.me.clone(),
            intent: self.next,
            fence,
        };
        let mine = Mine::new(claim, Stage::Intending);
        self.actions.push_back(Action::Intend(intent(&mine, &place)));
        self.mine.insert(place, mine);
    }

    pub(super) fn note_intent(&mut self, now: Time, intent: &Intent) {
        let place = (intent.job.clone(), intent.host);
        if let Some(mine) = self.mine.get_mut(&place) {
            mine.stage = Stage::Claiming(Flight::Idle);
            self.step(now, &place);
        }
    }

    pub(super) fn note_executed(&mut self, intent: Intent, returned: Returned) {
        if let Some(mine) = self.mine.get_mut(&(intent.job.clone(), intent.host)) {
            let claim = mine.claim.clone();
            let fate = Fate::Ended {
                claim,
                returned: returned.clone(),
            };
            mine.stage = Stage::Settling(fate, Flight::Idle);
            self.actions.push_back(Action::Note(intent, returned));
        }
    }

    /// Handles the answer to a write about a host of this process: it succeeded with this revision, or has to be
    /// checked again.
    pub(super) fn mine_written(
        &mut self,
        now: Time,
        job: &JobId,
        host: u32,
        done: Option<u64>,
        next: Flight,
    ) {
        let place = (job.clone(), host);
        let Some(mine) = self.mine.get_mut(&place) else {
            return;
        };
        let fate = match &mut mine.stage {
            Stage::Claiming(flight) => {
                *flight = next;
                Fate::Claimed(mine.claim.clone())
            }
            Stage::Settling(fate, flight) => {
                *flight = next;
                fate.clone()
            }
            Stage::Intending | Stage::Executing { .. } => return,
        };
        if let (Some(revision), Some(job)) = (done, self.jobs.get_mut(job)) {
            job.saw_fate(host, revision, fate);
        }
        self.step(now, &place);
    }

    /// Handles that a fate has disappeared from the bucket.
    pub(super) fn fate_vanished(&mut self, now: Time, job: &JobId, host: u32) {
        let is_claimed = self
            .mine
            .get(&(job.clone(), host))
            .is_some_and(|mine| mine.is_claimed);
        if let Some(job) = self.jobs.get_mut(job) {
            job.fate_vanished(host);
        }
        if is_claimed {
            self.freeze_because(now, lost_claim(job, host));
            self.drop_mine(&(job.clone(), host));
        }
    }

    pub(super) fn settle_mine(&mut self, now: Time) {
        let places: Vec<_> = self.mine.keys().cloned().collect();
        for place in places {
            self.step(now, &place);
        }
    }

    /// Takes the next step for a host, if nothing is in progress for it.
    fn step(&mut self, now: Time, place: &(JobId, u32)) {
        let Some(mine) = self.mine.get(place) else {
            return;
        };
        let job = self.jobs.get(&place.0);
        let is_cancelled = job.is_some_and(|job| job.is_cancelled);
        match &mine.stage {
            Stage::Intending => {}
            Stage::Executing { cancelled } => {
                if is_cancelled && !cancelled {
                    let intent = intent(mine, place);
                    self.actions.push_back(Action::Cancel(intent));
                    if let Some(mine) = self.mine.get_mut(place) {
                        mine.stage = Stage::Executing { cancelled: true };
                    }
                }
            }
            Stage::Claiming(flight) | Stage::Settling(_, flight) if !flight.is_over(now) => {}
            Stage::Claiming(_) => self.claim(now, place, is_cancelled),
            Stage::Settling(fate, _) => {
                let fate = fate.clone();
                self.settle(now, place, fate);
            }
        }
    }

    fn claim(&mut self, now: Time, place: &(JobId, u32), is_cancelled: bool) {
        let Some(mine) = self.mine.get(place) else {
            return;
        };
        let claim = mine.claim.clone();
        let job = self.jobs.get(&place.0);
        let unit = job.and_then(|job| job.host(place.1)).map(|host| &host.unit);
        let lease = unit.and_then(|unit| self.leases.get(unit));
        let may_start = lease.is_some_and(|lease| lease.may_start(now).is_some());
        let standing = job
            .and_then(|job| job.fate(place.1))
            .map(|(_, fate)| fate.clone());
        let refused = job.and_then(|job| job.host(place.1)?.refused.clone());
        let why = match () {
            () if is_cancelled => Some("the job was cancelled"),
            () if refused.is_some() => refused.as_deref(),
            () if self.frozen.is_some() => Some("the fleet is frozen"),
            () if !may_start => Some("its owner lost touch with the fleet before it began"),
            () => None,
        };
        match (standing, why) {
            (Some(Fate::Claimed(standing)), why) if standing == claim => {
                let stage = match why {
                    None => Stage::Executing { cancelled: false },
                    Some(why) => Stage::Settling(Fate::NotStarted { why: why.into() }, Flight::Idle),
                };
                let is_started = matches!(stage, Stage::Executing { .. });
                let Some(mine) = self.mine.get_mut(place) else {
                    return;
                };
                mine.is_claimed = true;
                mine.stage = stage;
                if is_started {
                    let intent = intent(mine, place);
                    self.actions.push_back(Action::Execute(intent));
                } else {
                    self.step(now, place);
                }
            }
            // By now it belongs to another node.
            (Some(_), _) => self.drop_mine(place),
            // Nothing was sent to anybody: the owner of the shard starts it, or reports that it does not start.
            (None, Some(_)) if !mine.is_sent => self.drop_mine(place),
            (None, Some(why)) => {
                // After this, nobody can claim it, and neither can a claim of ours that is still on its way.
                let fate = Fate::NotStarted { why: why.into() };
                if let Some(mine) = self.mine.get_mut(place) {
                    mine.stage = Stage::Settling(fate, Flight::Idle);
                }
                self.step(now, place);
            }
            (None, None) => {
                if let Some(mine) = self.mine.get_mut(place) {
                    mine.stage = Stage::Claiming(Flight::Sent);
                    mine.is_sent = true;
                }
                let key = Key::Fate(place.0.clone(), place.1);
                let purpose = Purpose::Mine(place.0.clone(), place.1);
                self.write(now, purpose, key, 0, Value::Fate(Fate::Claimed(claim)));
            }
        }
    }

    /// Reports the fate of a host to the fleet, if the current value still allows that.
    fn settle(&mut self, now: Time, place: &(JobId, u32), wish: Fate) {
        let Some(mine) = self.mine.get(place) else {
            return;
        };
        let Some(job) = self.jobs.get(&place.0) else {
            // The job is older than the entries that the bucket keeps.
            return self.drop_mine(place);
        };
        let is_result = matches!(wish, Fate::Ended { .. });
        let standing = job.fate(place.1);
        let expected = match standing {
            None => Some(0),
            Some((revision, Fate::Claimed(claim))) if *claim == mine.claim => Some(revision),
            // A result is better than no information.
            Some((revision, Fate::Unknown { claim })) if *claim == mine.claim && is_result => Some(revision),
            Some(_) => None,
        };
        let Some(expected) = expected else {
            let of_other = standing.and_then(|(_, fate)| fate.claim()) != Some(&mine.claim);
            if mine.is_claimed && is_result && of_other {
                let why = format!(
                    "NATS has lost a claim that it had acknowledged, and another one stands in its place (job {}, host {}): \
                     the command may have run twice",
                    place.0, place.1
                );
                self.freeze_because(now, why);
            }
            return self.drop_mine(place);
        };
        if let Some(mine) = self.mine.get_mut(place) {
            mine.stage = Stage::Settling(wish.clone(), Flight::Sent);
        }
        let key = Key::Fate(place.0.clone(), place.1);
        let purpose = Purpose::Mine(place.0.clone(), place.1);
        self.write(now, purpose, key, expected, Value::Fate(wish));
    }

    /// Drops a host that needs no more reports.
    fn drop_mine(&mut self, place: &(JobId, u32)) {
        if let Some(mine) = self.mine.remove(place) {
            self.actions.push_back(Action::Close(intent(&mine, place)));
        }
    }
}

fn intent(mine: &Mine, place: &(JobId, u32)) -> Intent {
    Intent {
        job: place.0.clone(),
        host: place.1,
        claim: mine.claim.clone(),
    }
}
