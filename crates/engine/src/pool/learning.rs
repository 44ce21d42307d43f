//! Lessons about a server from its sessions: its limits, and, by a trial, that sessions opened ahead last.

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
    /// Whether the log-in to a server that is not sshd goes ahead of its answers: its first session has to take a command then.
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

    /// The server has one session for each connection.
    pub(super) fn learn_one_session(&self) {
        self.learner.learn(Lesson::OneSession, 1);
        self.state().policy.set_reuse(Reuse::One);
    }

    /// Sessions opened ahead are of no use.
    pub(super) fn learn_no_spares(&self) {
        self.learner.learn(Lesson::NoSpares, 1);
        self.state().policy.keep_spares(Spares::None);
    }

    /// A session was refused: what that says of the server's limit is remembered.
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

    /// Tries, once for a host, whether a session that is opened ahead lasts: it is opened on a lane that is idle, so that it
    /// costs nobody anything, and looked at when another session has come and gone.
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
        // Behind its answer, all that had ended is settled.
        let answered = !waits || connection.ping(limit).await.is_ok();
        let opens = |pool: &Self| answered && pool.state().policy.open_trial(id);
        match pool.upgrade() {
            Some(pool) if opens(&pool) => {}
            Some(pool) => return pool.end_trial(id, Outcome::Nothing),
            None => return,
        }
        let mut spare = connection.spare();
        let opened = spare.opened().await;
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
            // The connection was closed from here, or has ended.
            Err(_) => match connection.ended().await.root() {
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

    /// Whether the server is known as sshd, and requests may go ahead of its answers.
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

    /// Has the policy go by what is known of the host.
    pub(super) fn recall(&self, policy: &mut Policy, is_sshd: bool) {
        let lessons = self.learner.facts().lessons;
        let is_sshd = is_sshd || lessons.has(Lesson::Sshd);
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

/// The finding of a session that was opened ahead to see whether it lasts.
enum Outcome {
    /// It outlives other sessions, and the server still reads what is asked of it.
    Lasts(Box<SpareSession>),
    /// It was refused where another session had been and none was.
    OnlyOneSession,
    /// It ended by itself, or is not heard any more.
    Dies,
    /// Nothing: the connection is not there any more, or it was asked for too soon.
    Nothing,
}

/// Looks at a session that was opened ahead, when another has ended beside it.
async fn look_at(spare: SpareSession, connection: &Connection, limit: Duration) -> Outcome {
    // Whatever the server does to it because another has ended, it has done before it answers.
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
