//! Learns about a server from its sessions: its limits and, by a trial, whether sessions opened ahead last.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use super::policy::{LaneId, Policy, Refusal, Reuse, Spares, Tally, Verdict};
use super::{Pool, State};
use crate::connection::Connection;
use crate::connection::session::SpareSession;
use crate::error::Error;
use crate::memory::Lesson;

impl Pool {
    /// Returns whether log-ins go ahead of this server's answers although it is not sshd: sessions must prove it then.
    pub(super) fn may_go_ahead(&self) -> bool {
        let facts = self.learner.facts();
        let never = facts.lessons.has(Lesson::Sshd) || facts.lessons.has(Lesson::NoPipelining);
        self.settings.early_flights && facts.banner.is_some() && !never
    }

    pub(super) fn learn_several_sessions(&self) {
        self.learner.learn(Lesson::SeveralSessions, 1);
        self.state().policy.set_reuse(Reuse::Several);
        self.freed.notify_waiters();
    }

    /// Remembers that the server allows one session per connection.
    pub(super) fn learn_one_session(&self) {
        self.learner.learn(Lesson::OneSession, 1);
        self.state().policy.set_reuse(Reuse::One);
    }

    /// Remembers that sessions opened ahead are useless.
    pub(super) fn learn_no_spares(&self) {
        self.learner.learn(Lesson::NoSpares, 1);
        self.state().policy.keep_spares(Spares::None);
    }

    /// Handles a refused session, and remembers the limit that it shows.
    pub(super) fn session_refused(&self, lane: LaneId, was_spare: bool, asked: Tally) -> Verdict {
        let mut state = self.state();
        let before = state.policy.session_limit();
        let outcome = state
            .policy
            .session_refused(lane, was_spare, asked, Instant::now());
        let limit = state
            .policy
            .session_limit()
            .filter(|_| before != state.policy.session_limit());
        drop(state);
        if let Some(limit) = limit {
            self.learner.learn(Lesson::MaxSessions, limit);
        }
        outcome
    }

    /// Tries, once per host, whether a session opened ahead lasts. It is opened on an idle lane, so that nobody pays
    /// for it, and checked when another session has come and gone.
    pub(super) fn try_spare(self: &Arc<Self>, id: LaneId) {
        let mut state = self.state();
        let State { policy, lanes, .. } = &mut *state;
        let Some(lane) = lanes.get_mut(&id) else { return };
        let connection = lane.connection.clone();
        if policy.has_outlived(id) {
            if let Some(spare) = lane.trial.take() {
                let limit = self.settings.probe_limit;
                let pool = Arc::downgrade(self);
                tokio::spawn(async move {
                    let outcome = look_at(spare, &connection, limit).await;
                    if let Some(pool) = pool.upgrade() {
                        pool.end_trial(id, outcome);
                    }
                });
            }
        } else if policy.begin_trial(id) {
            tokio::spawn(Self::open_trial(
                Arc::downgrade(self),
                id,
                connection,
                self.settings.probe_limit,
            ));
        }
    }

    async fn open_trial(pool: Weak<Self>, id: LaneId, connection: Connection, limit: Duration) {
        let Some(waits) = pool.upgrade().map(|pool| pool.state().policy.trials_wait()) else {
            return;
        };
        // Once the server has answered, all ended sessions are settled.
        let answered = !waits || connection.ping(limit).await.is_ok();
        let opens = |pool: &Self| answered && pool.state().policy.open_trial(id);
        match pool.upgrade() {
            Some(pool) if opens(&pool) => {}
            Some(pool) => return pool.end_trial(id, Outcome::Nothing),
            None => return,
        }
        let mut spare = connection.spare();
        let opened = spare.wait_until_open().await;
        let Some(pool) = pool.upgrade() else { return };
        let outcome = match opened {
            Ok(()) => {
                if let Some(lane) = pool.state().lanes.get_mut(&id) {
                    lane.trial = Some(spare);
                    return;
                }
                Outcome::Nothing
            }
            Err(Error::Refused { .. }) => match pool.state().policy.trial_refused(id) {
                Refusal::TooSoon => Outcome::Nothing,
                Refusal::OfASecond => Outcome::OnlyOneSession,
                Refusal::OfMore => Outcome::Dies,
            },
            // This side closed the connection, or it has ended.
            Err(_) => match connection.wait_for_end().await.root() {
                Error::Closed { .. } => Outcome::Nothing,
                _ => Outcome::Dies,
            },
        };
        pool.end_trial(id, outcome);
    }

    fn end_trial(&self, id: LaneId, outcome: Outcome) {
        match outcome {
            Outcome::Lasts(spare) => {
                self.learner.learn(Lesson::Spares, 1);
                let mut state = self.state();
                state.policy.keep_spares(Spares::Kept);
                let kept = state.lanes.get_mut(&id).map(|lane| lane.spares.push_back(*spare));
                state.policy.end_trial(id, kept.is_some());
            }
            Outcome::OnlyOneSession => {
                self.learn_no_spares();
                self.learn_one_session();
                let mut state = self.state();
                state.policy.end_trial(id, false);
                state.policy.retire(id);
            }
            Outcome::Dies => {
                self.learn_no_spares();
                self.state().policy.end_trial(id, false);
            }
            Outcome::Nothing => self.state().policy.end_trial(id, false),
        }
        self.close_retired();
        self.freed.notify_waiters();
    }

    /// Returns whether the server is known to be sshd and requests may go ahead of its answers.
    pub(crate) fn is_sshd(&self) -> bool {
        if !self.settings.early_flights {
            return false;
        }
        let connected = self
            .state()
            .lanes
            .values()
            .find_map(|lane| lane.connection.info().map(|info| info.is_sshd));
        connected == Some(true) || self.learner.has(Lesson::Sshd)
    }

    /// Sets the policy to what is known of the host.
    pub(super) fn recall(&self, policy: &mut Policy, is_sshd: bool) {
        let lessons = self.learner.facts().lessons;
        let is_sshd = is_sshd || lessons.has(Lesson::Sshd);
        policy.share_sftp(is_sshd);
        policy.keep_spares(match () {
            () if lessons.has(Lesson::NoSpares) => Spares::None,
            () if is_sshd || lessons.has(Lesson::Spares) => Spares::Kept,
            () => Spares::Untried,
        });
        if lessons.has(Lesson::OneSession) {
            policy.set_reuse(Reuse::One);
        } else if is_sshd || lessons.has(Lesson::SeveralSessions) {
            policy.set_reuse(Reuse::Several);
        } else if policy.reuse() != Reuse::Doubted {
            policy.set_reuse(Reuse::Untried);
        }
    }
}

/// The result of the trial of a session opened ahead.
enum Outcome {
    /// It outlives other sessions, and the server still reads its requests.
    Lasts(Box<SpareSession>),
    /// It was refused although no other session was open; earlier ones had been.
    OnlyOneSession,
    /// It ended by itself, or the server no longer reads its requests.
    Dies,
    /// Inconclusive: the connection is gone, or the session was requested too soon.
    Nothing,
}

/// Checks a session that was opened ahead, when another has ended beside it.
async fn look_at(spare: SpareSession, connection: &Connection, limit: Duration) -> Outcome {
    // If the other session's end affects this one, it has done so before the server answers.
    let answer = match connection.ping(limit).await {
        Ok(_) => spare.ask(),
        Err(_) => return Outcome::Nothing,
    };
    let answered = connection.ping(limit).await.is_ok() && answer.now_or_never() == Some(true);
    match connection.is_open() {
        false => Outcome::Nothing,
        true if answered && !spare.is_closed() => Outcome::Lasts(Box::new(spare)),
        true => Outcome::Dies,
    }
}
