//! [`Sessions`]: the sessions that a copy goes over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OnceCell};
use trunkline_request::Backoff;
use trunkline_request::copy::Waiting;
use trunkline_request::failure::Failure;

use super::shells::Shells;
use crate::config::Proxy;
use crate::engine::Host;
use crate::error::Error;
use crate::settings::Settings;
use crate::sftp::{Reopen, Sftp};

/// SFTP sessions to one server. More are opened while the transfer runs, which uses them as they open; a lost session is
/// replaced.
pub(super) struct Sessions {
    shared: Arc<Shared>,
    /// The round-trip time, measured on the first session when first needed.
    rtt: OnceCell<Duration>,
    shells: Shells,
    /// The sessions send files to the server.
    sends: AtomicBool,
}

/// The sessions that get a connection of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Apart {
    /// All: a near connection is bound by the core that its sshd runs on.
    All,
    /// One in a few: a far channel is bound by its window, and a channel costs less than a connection.
    Some,
}

/// Sessions on a far connection: with the spares for commands they stay below sshd's MaxSessions of ten.
pub(crate) const SESSIONS_A_CONNECTION: usize = 6;

impl Apart {
    fn wants(self, nth: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some => nth.is_multiple_of(SESSIONS_A_CONNECTION),
        }
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    /// Returns the copy's progress.
    measure: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
}

/// The origin of sessions.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a copy has one for each end")]
enum Origin {
    Host(Host),
    /// Opens one session at a time, after the last one was lost.
    Session(Reopen),
}

impl Origin {
    fn host(&self) -> Option<&Host> {
        match self {
            Self::Host(host) => Some(host),
            Self::Session(_) => None,
        }
    }

    /// Returns how long lost sessions are replaced before a copy gives up.
    fn patience(&self) -> Duration {
        match self {
            Self::Host(host) => host.copy_resume_for(),
            Self::Session(_) => Settings::default().copy_resume_for,
        }
    }

    /// Opens the nth session.
    async fn open(&self, nth: usize, apart: Apart) -> Result<Sftp, Error> {
        match self {
            Self::Host(host) if apart.wants(nth) => host.sftp_apart().await,
            Self::Host(host) => host.sftp().await,
            Self::Session(reopen) => reopen.open().await,
        }
    }
}

struct State {
    /// The origin of more sessions; `None` for a session that another component owns.
    origin: Option<Origin>,
    /// The number of times that the origin has changed: sessions from an earlier one are unwanted.
    moves: usize,
    sessions: Vec<Sftp>,
    opening: usize,
    /// The server refuses further sessions.
    full: bool,
    /// Attempts that failed while there was no session, or that opened one which ended before anything was copied over it.
    failures: u32,
    error: Option<Error>,
    /// The time of the first of these failures.
    failing: Option<Instant>,
    /// The copy's progress when the last session opened.
    progress: u64,
    /// The number of sessions that have opened, and of those that were judged by their result.
    opened: u64,
    counted: u64,
    /// A session has ended since the last count, while others live.
    lost: bool,
    /// The server has confirmed a session at some time.
    began: bool,
    /// The most sessions that were alive at once.
    most: usize,
}

/// The least number of attempts in a row to replace sessions before a copy gives up.
const MOST_FAILURES: u32 = 7;

/// Returns the pauses between the attempts: all attempts take about as long as the copy is patient, if that is no longer than
/// half a minute.
fn pauses(patience: Duration) -> Backoff {
    let first = (patience / 60).min(Duration::from_millis(500));
    Backoff::new(first, Duration::from_secs(16))
}

impl Sessions {
    /// Returns the sessions to a host. The first is open, or fails when it is used.
    pub(super) async fn of_host(host: &Host) -> Result<Self, Error> {
        let first = host.sftp().await?;
        Ok(Self::new(first, Some(Origin::Host(host.clone()))))
    }

    /// Returns the sessions of a copy that has only this one, which is replaced if it can be [opened again](Sftp::reopened_by).
    pub(super) fn of_session(sftp: &Sftp) -> Self {
        Self::new(sftp.clone(), sftp.reopen().cloned().map(Origin::Session))
    }

    /// Counts sessions that end as failed attempts while the result of `measure` does not grow, so that a server that ends each
    /// session is not tried forever.
    pub(super) fn measure_by(&self, measure: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.shared.measure.set(Box::new(measure));
    }

    fn new(first: Sftp, origin: Option<Origin>) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new(vec![first], origin)),
                changed: Notify::new(),
                measure: OnceLock::new(),
            }),
            rtt: OnceCell::new(),
            shells: Shells::default(),
            sends: AtomicBool::new(false),
        }
    }

    /// Notes that the sessions send files to the server.
    pub(super) fn send(&self) {
        self.sends.store(true, Ordering::Relaxed);
    }

    /// Returns the round-trip time, known from answers on the host's connections or measured with a request. The TCP handshake's
    /// time does not include the path behind a jump host or a proxy.
    pub(super) async fn rtt(&self) -> Result<Duration, Error> {
        let measure = async || {
            let host = self.host();
            let (known, measured) = host.as_ref().map_or((None, None), |host| {
                (host.round_trip(), host.measured_round_trip())
            });
            // On a busy machine a log-in's answers take longer than the round trip.
            if let Some(known) = measured.or(known.filter(|known| *known < NEAR)) {
                return Ok(known);
            }
            let sftp = self.first();
            sftp.ready().await?;
            let begun = Instant::now();
            sftp.realpath(".").await?;
            let took = begun.elapsed();
            Ok(known.map_or(took, |known| known.min(took)))
        };
        self.rtt.get_or_try_init(measure).await.copied()
    }

    /// Returns whether the server is known to be near, without asking it.
    pub(super) fn is_near(&self) -> bool {
        let known = self.rtt.get().copied();
        let known = known.or_else(|| self.host().as_ref().and_then(Host::round_trip));
        known.is_some_and(|rtt| rtt < NEAR)
    }

    /// Returns the copy's shells on the server.
    pub(super) fn shells(&self) -> &Shells {
        &self.shells
    }

    /// Returns what a copy without a session waits for.
    pub(super) fn waits_for(&self) -> Option<Waiting> {
        let state = self.shared.state();
        if state.is_ready() {
            return None;
        }
        let host = state.sessions.last()?.host().to_owned();
        if !state.began {
            return Some(Waiting::Connecting { host });
        }
        let tried = state.failing.map_or(Duration::ZERO, |since| since.elapsed());
        let seconds = state.patience().saturating_sub(tried).as_secs();
        Some(Waiting::Lost { host, seconds })
    }

    /// Returns the host, if there is one.
    pub(super) fn host(&self) -> Option<Host> {
        self.shared.state().host().cloned()
    }

    /// Makes `host`, the same one over other connections, the origin of sessions. The present sessions leave [`Self::live`]:
    /// their users finish their requests and take another.
    ///
    /// # Errors
    /// No session could be opened there. Nothing has changed then.
    pub(super) async fn move_to(&self, host: &Host) -> Result<(), Error> {
        let sftp = host.sftp().await?;
        sftp.ready().await?;
        let mut state = self.shared.state();
        *state = State {
            origin: Some(Origin::Host(host.clone())),
            moves: state.moves + 1,
            sessions: vec![sftp],
            opening: 0,
            full: false,
            failures: 0,
            error: None,
            failing: None,
            progress: state.progress,
            opened: 0,
            counted: 0,
            lost: false,
            began: true,
            most: state.most,
        };
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    /// Returns the number of times that the sessions have moved.
    pub(super) fn moves(&self) -> usize {
        self.shared.state().moves
    }

    /// Returns whether a session is still one of these.
    pub(super) fn has(&self, sftp: &Sftp) -> bool {
        let state = self.shared.state();
        let same = |other: &Sftp| Arc::ptr_eq(other.link(), sftp.link());
        state.sessions.iter().any(same)
    }

    /// Returns the first live session, or the last one that was.
    pub(super) fn first(&self) -> Sftp {
        let state = self.shared.state();
        let found = state
            .sessions
            .iter()
            .find(|sftp| sftp.link().end_reason().is_none())
            .or(state.sessions.last());
        found
            .expect("there is a session from the start, and the last is never dropped")
            .clone()
    }

    /// Returns the nth live session, or another if there will be no more; `None`: try again after a
    /// [change](Self::changed). Fails if there is none and none can be opened.
    pub(super) fn nth(&self, nth: usize) -> Result<Option<Sftp>, Error> {
        let mut live = self.live();
        if nth < live.len() {
            return Ok(Some(live.swap_remove(nth)));
        }
        self.grow(nth + 1)?;
        let state = self.shared.state();
        let most = state.host().and_then(Host::most_sessions);
        let no_more = state.host().is_none() || state.full || most.is_some_and(|most| nth >= most);
        Ok(live.pop().filter(|_| no_more))
    }

    /// Waits for a live session.
    async fn alive(&self) -> Result<Sftp, Error> {
        loop {
            let changed = self.wait_for_change();
            if let Some(sftp) = self.live().into_iter().next() {
                return Ok(sftp);
            }
            self.grow(1)?;
            changed.await;
        }
    }

    /// Runs work that may run twice on a session, and again on another if the session was lost meanwhile.
    pub(super) async fn retry<T, Work: Future<Output = Result<T, Error>>>(
        &self,
        work: impl Fn(Sftp) -> Work,
    ) -> Result<T, Error> {
        /// A bound for servers that end every session on which this work is done.
        const ATTEMPTS: usize = 4;
        let mut attempt = 1;
        loop {
            let sftp = self.alive().await?;
            let result = work(sftp.clone()).await;
            if result.is_ok() || sftp.link().end_reason().is_none() || attempt == ATTEMPTS {
                return result;
            }
            attempt += 1;
        }
    }

    /// Returns the live sessions.
    pub(super) fn live(&self) -> Vec<Sftp> {
        let mut state = self.shared.state();
        state.began |= state.is_ready();
        if state.sessions.len() > 1 {
            let last = state.sessions.last().cloned();
            let ended = |sftp: &Sftp| sftp.link().end_reason();
            if let Some(error) = state.sessions.iter().find_map(ended) {
                state.error = Some(error);
                state.lost = true;
            }
            state.sessions.retain(|sftp| ended(sftp).is_none());
            if state.sessions.is_empty() {
                state.sessions.extend(last);
            }
        }
        state
            .sessions
            .iter()
            .filter(|sftp| sftp.link().end_reason().is_none())
            .cloned()
            .collect()
    }

    /// Returns the most sessions that were alive at once.
    pub(super) fn most(&self) -> usize {
        let mut state = self.shared.state();
        // The first session may have become ready after the others.
        state.count();
        state.most
    }

    /// Returns a future that ends once another session has opened or failed to.
    pub(super) fn wait_for_change(&self) -> Notified<'_> {
        self.shared.changed.notified()
    }

    /// Returns which sessions get a connection of their own.
    fn apart(&self, origin: &Origin) -> Apart {
        // Towards a host behind another one, all channels of a connection share the window of one channel there: 2 MiB on
        // sshd, 24 KiB on dropbear.
        let is_behind = |host: &Host| matches!(host.config().proxy, Proxy::Jump(_));
        let is_behind = self.sends.load(Ordering::Relaxed) && origin.host().is_some_and(is_behind);
        match self.rtt.get() {
            _ if is_behind => Apart::All,
            Some(rtt) if *rtt < NEAR => Apart::All,
            _ => Apart::Some,
        }
    }

    /// Opens sessions in the background until there are `wanted`. Fails if there is none and none can be opened.
    pub(super) fn grow(&self, wanted: usize) -> Result<(), Error> {
        let live = self.live().len();
        let mut state = self.shared.state();
        let most = match &state.origin {
            Some(Origin::Host(host)) => host.most_sessions(),
            _ => Some(1),
        };
        let wanted = most.map_or(wanted, |most| wanted.min(most));
        let missing = wanted.saturating_sub(live + state.opening);
        let Some(origin) = state.origin.clone() else {
            return match state.sessions.last().and_then(|sftp| sftp.link().end_reason()) {
                Some(error) if live == 0 => Err(error),
                _ => Ok(()),
            };
        };
        // Before anything is copied, patience is of no use: fail at once, as scp does.
        if live == 0
            && !state.began
            && state.failures == 0
            && let [first] = &*state.sessions
            && let Some(error) = first.link().never_began()
            && error.is_no_way()
        {
            return Err(error);
        }
        // Sessions that ended are counted even while others live: if several open and end in turns, one is always alive.
        let lost = std::mem::take(&mut state.lost);
        let is_counted = lost || live == 0 && state.opening == 0;
        if is_counted {
            state.count_end(self.shared.progress(), lost);
        }
        if is_counted && state.is_hopeless() {
            return state.error.clone().map_or(Ok(()), Err);
        }
        if missing == 0 || live > 0 && state.full {
            return Ok(());
        }
        // One attempt at a time while no session is confirmed: the server may be gone, and concurrent attempts would never all
        // be over.
        let missing = if live == 0 { 1 } else { missing };
        let is_tried = live == 0 || state.failures > 0 && !state.is_ready();
        if is_tried && live + state.opening > 0 {
            return Ok(());
        }
        let apart = self.apart(&origin);
        let first = live + state.opening;
        let moves = state.moves;
        state.opening += missing;
        let pause = pauses(state.patience()).pause_after(state.failures);
        drop(state);
        let origin = match origin {
            Origin::Host(host) if live > 0 => Origin::Host(host.in_background()),
            origin => origin,
        };
        for nth in first..first + missing {
            let (shared, origin) = (Arc::downgrade(&self.shared), origin.clone());
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let opened = match origin.open(nth, apart).await {
                    Ok(sftp) => {
                        // The session can be used at once: requests follow its start.
                        match shared.upgrade() {
                            Some(shared) => shared.add(&sftp, moves),
                            None => return,
                        }
                        sftp.ready().await
                    }
                    Err(error) => {
                        if let Some(shared) = shared.upgrade() {
                            shared.end_attempt(moves);
                        }
                        Err(error)
                    }
                };
                let Some(shared) = shared.upgrade() else { return };
                let progress = shared.progress();
                let mut state = shared.state();
                if state.moves != moves {
                    return;
                }
                state.note_opening(opened.map(drop), progress);
                drop(state);
                shared.changed.notify_waiters();
            });
        }
        Ok(())
    }
}

impl State {
    /// Returns the state for new sessions.
    fn new(sessions: Vec<Sftp>, origin: Option<Origin>) -> Self {
        Self {
            most: sessions.len(),
            origin,
            moves: 0,
            sessions,
            opening: 0,
            full: false,
            failures: 0,
            error: None,
            failing: None,
            progress: 0,
            opened: 0,
            counted: 0,
            lost: false,
            began: false,
        }
    }

    fn host(&self) -> Option<&Host> {
        self.origin.as_ref().and_then(Origin::host)
    }

    fn patience(&self) -> Duration {
        let usual = || Settings::default().copy_resume_for;
        self.origin.as_ref().map_or_else(usual, Origin::patience)
    }

    /// Counts failed attempts.
    fn count_failures(&mut self, attempts: u32, error: Error) {
        self.failing.get_or_insert_with(Instant::now);
        self.failures += attempts;
        self.error = Some(error);
    }

    /// Forgets failures after a success.
    fn forget_failures(&mut self) {
        self.failures = 0;
        self.failing = None;
    }

    /// Returns whether there were enough failed attempts, for long enough. Several sessions that end one by one make more
    /// attempts in less time. Patience does not help against another host key or a refused log-in.
    fn is_hopeless(&self) -> bool {
        let for_long = self
            .failing
            .is_some_and(|since| since.elapsed() >= self.patience());
        let is_final = self.error.as_ref().is_some_and(is_final);
        self.failures > 0 && is_final || self.failures >= MOST_FAILURES && for_long
    }

    /// Returns whether the server has confirmed a session.
    fn is_ready(&self) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.any(|sftp| sftp.link().end_reason().is_none() && sftp.link().is_ready())
    }

    /// Notes that a session has opened or failed to.
    fn note_opening(&mut self, opened: Result<(), Error>, progress: Option<u64>) {
        match opened {
            Ok(()) => {
                self.opened += 1;
                self.began = true;
                if progress.is_none_or(|progress| progress > self.progress) {
                    self.forget_failures();
                }
                self.progress = progress.unwrap_or_default();
                self.count();
            }
            Err(error) => {
                tracing::debug!("no further session for a copy: {error}");
                if self
                    .sessions
                    .iter()
                    .any(|sftp| sftp.link().end_reason().is_none())
                {
                    self.full = true;
                } else {
                    self.count_failures(1, error);
                }
            }
        }
    }

    /// Counts the end of a session, as a failed attempt if nothing was copied over it. Sessions that opened and end together are
    /// one attempt.
    fn count_end(&mut self, progress: Option<u64>, lost: bool) {
        let ended = self.sessions.last().and_then(|sftp| sftp.link().end_reason());
        let ended = ended.or_else(|| self.error.clone().filter(|_| lost));
        let is_new = std::mem::replace(&mut self.counted, self.opened) != self.opened;
        let in_vain = progress.is_some_and(|progress| progress <= self.progress);
        if let Some(error) = ended.filter(|_| is_new && in_vain) {
            // A silent session took long enough to count as all attempts.
            let silent = matches!(error, Error::SftpSilent { .. });
            self.count_failures(if silent { MOST_FAILURES.div_ceil(2) } else { 1 }, error);
        }
    }

    /// Updates the most sessions at once.
    fn count(&mut self) {
        let ready = self.sessions.iter().filter(|sftp| sftp.link().is_ready());
        self.most = self.most.max(ready.count());
    }
}

/// The round-trip time below which a window of 2 MiB carries more than a core can encrypt.
pub(crate) const NEAR: Duration = Duration::from_millis(2);

/// Returns whether retrying cannot help.
fn is_final(error: &Error) -> bool {
    error.is_final() || Reopen::failure(error).is_some_and(Failure::is_final)
}

impl Shared {
    /// Locks the list of sessions, for a look only.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> Option<u64> {
        self.measure.get().map(|measure| measure())
    }

    /// Notes that an attempt to open a session is over. Returns the state if the attempt was for the present origin.
    fn end_attempt(&self, moves: usize) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.moves != moves {
            return None;
        }
        state.opening -= 1;
        Some(state)
    }

    fn add(&self, sftp: &Sftp, moves: usize) {
        if let Some(mut state) = self.end_attempt(moves) {
            state.sessions.push(sftp.clone());
        }
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            opened: 1,
            began: true,
            ..State::new(Vec::new(), None)
        }
    }

    fn lost_error() -> Error {
        Error::local("reading", std::io::ErrorKind::ConnectionReset.into())
    }

    #[test]
    fn sessions_that_end_in_vain_end_a_copy_after_half_a_minute_however_many_there_are() {
        let mut state = state();
        for _ in 0..100 {
            state.error = Some(lost_error());
            state.count_end(Some(0), true);
            state.note_opening(Ok(()), Some(0));
        }
        assert!(!state.is_hopeless(), "they ended within a moment");
        let patience = state.patience();
        state.failing = state.failing.and_then(|since| since.checked_sub(patience));
        assert!(state.is_hopeless());
        state.note_opening(Ok(()), Some(1));
        assert!(!state.is_hopeless(), "there was progress");
    }

    /// Both bounds are met at about the same time, and a host that comes back late is not tried much more rarely.
    #[test]
    fn attempts_are_spread_over_the_patience_up_to_half_a_minute() {
        for (patience, expected) in [(3, 3150), (30, 31_500), (300, 31_500)] {
            let pauses = pauses(Duration::from_secs(patience));
            let all: Duration = (1..MOST_FAILURES)
                .map(|failures| pauses.pause_after(failures))
                .sum();
            assert_eq!(all, Duration::from_millis(expected), "{patience} s");
        }
    }

    #[test]
    fn sessions_that_end_together_are_one_attempt() {
        let mut state = state();
        for _ in 0..100 {
            state.error = Some(lost_error());
            state.count_end(Some(0), true);
        }
        assert_eq!(state.failures, 1);
    }
}
