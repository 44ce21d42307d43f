//! [`Sessions`]: the sessions that a copy goes over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OnceCell, Semaphore, SemaphorePermit};
use trunkline_request::Backoff;
use trunkline_request::copy::Waiting;
use trunkline_request::failure::Failure;

use crate::config::Proxy;
use crate::engine::Host;
use crate::error::Error;
use crate::sftp::{Reopen, Sftp};

/// SFTP sessions to one server. More are opened beside the transfer, which takes them as they come; one that dies is
/// replaced.
pub(super) struct Sessions {
    shared: Arc<Shared>,
    /// Measured on the first session, when somebody wants to know.
    rtt: OnceCell<Duration>,
    hashing: Semaphore,
    /// Much is sent over them, and not only received.
    sends: AtomicBool,
}

/// Shells at once that hash files on a server: they are bound by its cores, and each takes one of MaxSessions.
const HASHING: usize = 4;

/// Which sessions get a connection of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Apart {
    /// All: near by, a connection is bound by the core that its sshd runs on.
    All,
    /// One in a few: far away, each channel is bound by its window, and a channel costs less than a connection.
    Some,
}

/// Sessions on a connection far away: with the spares that commands may want they stay below sshd's MaxSessions of ten.
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
    /// Tells how far the copy is.
    measure: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
}

/// Where sessions come from.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a copy has one for each end")]
enum Origin {
    Host(Host),
    /// One at a time, when the last one was lost.
    Session(Reopen),
}

impl Origin {
    fn host(&self) -> Option<&Host> {
        match self {
            Self::Host(host) => Some(host),
            Self::Session(_) => None,
        }
    }

    /// Opens one, the nth.
    async fn open(&self, nth: usize, apart: Apart) -> Result<Sftp, Error> {
        match self {
            Self::Host(host) if apart.wants(nth) => host.sftp_apart().await,
            Self::Host(host) => host.sftp().await,
            Self::Session(reopen) => reopen.open().await,
        }
    }
}

struct State {
    /// Where more sessions come from; `None` for a session that somebody else owns.
    origin: Option<Origin>,
    /// How often that has changed: what was being opened before is not wanted any more.
    moves: usize,
    sessions: Vec<Sftp>,
    opening: usize,
    /// The server takes no more sessions beside those that live.
    full: bool,
    /// Attempts that failed while there was no session at all, or brought one that ended before anything was copied over it,
    /// and why the last one did.
    failures: u32,
    error: Option<Error>,
    /// When the first of them did.
    failing: Option<Instant>,
    /// How far the copy was when the last session opened.
    progress: u64,
    /// How many have opened, and up to which of them it was looked at what came of it.
    opened: u64,
    counted: u64,
    /// Some have ended since, beside others that live.
    lost: bool,
    /// The server has confirmed one, at any time.
    began: bool,
    /// The most sessions that were alive at once.
    most: usize,
}

/// Attempts in a row to replace sessions before a copy gives up: with the pauses between them about half a minute.
const MOST_FAILURES: u32 = 7;
/// How long that takes at least.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(16));

impl Sessions {
    /// Sessions to a host, the first of which is open, or fails when it is used.
    pub(super) async fn to(host: &Host) -> Result<Self, Error> {
        let first = host.sftp().await?;
        Ok(Self::beginning(first, Some(Origin::Host(host.clone()))))
    }

    /// One session alone, in whose place another comes if it can be [opened again](Sftp::reopened_by).
    pub(super) fn over(sftp: &Sftp) -> Self {
        Self::beginning(sftp.clone(), sftp.reopen().cloned().map(Origin::Session))
    }

    /// Has sessions that end count as attempts that failed, as long as `measure` tells no more than before: a server that ends
    /// each of them is not asked for ever.
    pub(super) fn measure_by(&self, measure: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.shared.measure.set(Box::new(measure));
    }

    fn beginning(first: Sftp, origin: Option<Origin>) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::of(vec![first], origin)),
                changed: Notify::new(),
                measure: OnceLock::new(),
            }),
            rtt: OnceCell::new(),
            hashing: Semaphore::new(HASHING),
            sends: AtomicBool::new(false),
        }
    }

    /// They are to carry files towards the server.
    pub(super) fn send(&self) {
        self.sends.store(true, Ordering::Relaxed);
    }

    /// The time of a round trip: what the server's answers on the host's connections have shown, or measured with a
    /// request. That of the TCP handshake says nothing of what is behind a jump host or a proxy.
    pub(super) async fn rtt(&self) -> Result<Duration, Error> {
        let measure = async || {
            let host = self.host();
            let (known, measured) = host.as_ref().map_or((None, None), |host| {
                (host.round_trip(), host.measured_round_trip())
            });
            // A log-in's answers take longer on a busy machine than the way does.
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

    /// Whether the server is near by, as far as is known without asking it.
    pub(super) fn is_near(&self) -> bool {
        let known = self.rtt.get().copied();
        let known = known.or_else(|| self.host().as_ref().and_then(Host::round_trip));
        known.is_some_and(|rtt| rtt < NEAR)
    }

    /// A turn to hash on the server.
    pub(super) async fn hashing(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed.
        self.hashing.acquire().await.ok()
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
        let seconds = PATIENCE.saturating_sub(tried).as_secs();
        Some(Waiting::Lost { host, seconds })
    }

    /// The host, where there is one.
    pub(super) fn host(&self) -> Option<Host> {
        self.shared.state().host().cloned()
    }

    /// Has sessions come from `host`, which is the same one over other connections. Those that are there are no longer
    /// among [`Self::live`]: whoever uses one ends what it has under way, and takes another.
    ///
    /// # Errors
    /// Without a session there; then nothing changes.
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

    /// How often that has been done.
    pub(super) fn moves(&self) -> usize {
        self.shared.state().moves
    }

    /// Whether a session is still one of these.
    pub(super) fn has(&self, sftp: &Sftp) -> bool {
        let state = self.shared.state();
        let same = |other: &Sftp| Arc::ptr_eq(other.link(), sftp.link());
        state.sessions.iter().any(same)
    }

    /// The first session that lives, or the last one that did.
    pub(super) fn first(&self) -> Sftp {
        let state = self.shared.state();
        let found = state
            .sessions
            .iter()
            .find(|sftp| sftp.link().ended().is_none())
            .or(state.sessions.last());
        found
            .expect("there is a session from the start, and the last is never dropped")
            .clone()
    }

    /// The nth of the sessions that live, or one of the others where there will be no more; `None`: look again when
    /// something has [changed](Self::changed). Fails when there is none and none can be opened.
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

    /// A session that lives, once there is one.
    async fn alive(&self) -> Result<Sftp, Error> {
        loop {
            let changed = self.changed();
            if let Some(sftp) = self.live().into_iter().next() {
                return Ok(sftp);
            }
            self.grow(1)?;
            changed.await;
        }
    }

    /// Does something on a session, and again on another one when it was lost meanwhile: what may be done twice.
    pub(super) async fn with<T, Work: Future<Output = Result<T, Error>>>(
        &self,
        work: impl Fn(Sftp) -> Work,
    ) -> Result<T, Error> {
        /// A server that ends every session on which this is done will not be asked forever.
        const ATTEMPTS: usize = 4;
        let mut attempt = 1;
        loop {
            let sftp = self.alive().await?;
            let result = work(sftp.clone()).await;
            if result.is_ok() || sftp.link().ended().is_none() || attempt == ATTEMPTS {
                return result;
            }
            attempt += 1;
        }
    }

    /// The sessions that live.
    pub(super) fn live(&self) -> Vec<Sftp> {
        let mut state = self.shared.state();
        state.began |= state.is_ready();
        if state.sessions.len() > 1 {
            let last = state.sessions.last().cloned();
            let ended = |sftp: &Sftp| sftp.link().ended();
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
            .filter(|sftp| sftp.link().ended().is_none())
            .cloned()
            .collect()
    }

    /// The most sessions there were.
    pub(super) fn most(&self) -> usize {
        let mut state = self.shared.state();
        // The first one may have become ready behind the others.
        state.count();
        state.most
    }

    /// Done when a session has opened, or could not be, since this was called.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.shared.changed.notified()
    }

    /// Which of them get a connection of their own.
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

    /// Opens sessions, beside everything else, until there are `wanted`. Fails when there is none and none can be opened.
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
            return match state.sessions.last().and_then(|sftp| sftp.link().ended()) {
                Some(error) if live == 0 => Err(error),
                _ => Ok(()),
            };
        };
        // Before anything was copied there is nothing that patience could save: as scp, which fails at once.
        if live == 0
            && !state.began
            && state.failures == 0
            && let [first] = &*state.sessions
            && let Some(error) = first.link().never_began()
            && error.is_no_way()
        {
            return Err(error);
        }
        // Where several open and end in turns, there is always one that lives.
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
        // One attempt at a time where there is none, or none yet that is more than an attempt: the server may be gone, and
        // attempts beside each other would never all be over.
        let missing = if live == 0 { 1 } else { missing };
        let is_tried = live == 0 || state.failures > 0 && !state.is_ready();
        if is_tried && live + state.opening > 0 {
            return Ok(());
        }
        let apart = self.apart(&origin);
        let first = live + state.opening;
        let moves = state.moves;
        state.opening += missing;
        let pause = PAUSES.pause_after(state.failures);
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
                        // Used at once: requests leave behind the session's start.
                        match shared.upgrade() {
                            Some(shared) => shared.add(&sftp, moves),
                            None => return,
                        }
                        sftp.ready().await
                    }
                    Err(error) => {
                        if let Some(shared) = shared.upgrade() {
                            shared.opened(moves);
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
                state.has_opened(opened.map(drop), progress);
                drop(state);
                shared.changed.notify_waiters();
            });
        }
        Ok(())
    }
}

impl State {
    /// With these sessions, and nothing known of them.
    fn of(sessions: Vec<Sftp>, origin: Option<Origin>) -> Self {
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

    /// An attempt failed, or came to nothing.
    fn failed(&mut self, attempts: u32, error: Error) {
        self.failing.get_or_insert_with(Instant::now);
        self.failures += attempts;
        self.error = Some(error);
    }

    /// Something came of one.
    fn succeeded(&mut self) {
        self.failures = 0;
        self.failing = None;
    }

    /// Whether there were enough attempts, for long enough. Several sessions that end one by one are more attempts in less time;
    /// patience does not help against another host key, or a log-in that is refused.
    fn is_hopeless(&self) -> bool {
        let for_long = self.failing.is_some_and(|since| since.elapsed() >= PATIENCE);
        let is_final = self.error.as_ref().is_some_and(is_final);
        self.failures > 0 && is_final || self.failures >= MOST_FAILURES && for_long
    }

    /// Whether there is a session that the server has confirmed.
    fn is_ready(&self) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.any(|sftp| sftp.link().ended().is_none() && sftp.link().is_ready())
    }

    /// A session has opened, or could not be.
    fn has_opened(&mut self, opened: Result<(), Error>, progress: Option<u64>) {
        match opened {
            Ok(()) => {
                self.opened += 1;
                self.began = true;
                if progress.is_none_or(|progress| progress > self.progress) {
                    self.succeeded();
                }
                self.progress = progress.unwrap_or_default();
                self.count();
            }
            Err(error) => {
                tracing::debug!("no further session for a copy: {error}");
                if self.sessions.iter().any(|sftp| sftp.link().ended().is_none()) {
                    self.full = true;
                } else {
                    self.failed(1, error);
                }
            }
        }
    }

    /// A session has ended: it counts as an attempt that failed where nothing came of it. Those that opened beside it and end
    /// with it are one attempt.
    fn count_end(&mut self, progress: Option<u64>, lost: bool) {
        let ended = self.sessions.last().and_then(|sftp| sftp.link().ended());
        let ended = ended.or_else(|| self.error.clone().filter(|_| lost));
        let is_new = std::mem::replace(&mut self.counted, self.opened) != self.opened;
        let in_vain = progress.is_some_and(|progress| progress <= self.progress);
        if let Some(error) = ended.filter(|_| is_new && in_vain) {
            // One that had to be waited for was tried for long enough.
            let silent = matches!(error, Error::SftpSilent { .. });
            self.failed(if silent { MOST_FAILURES.div_ceil(2) } else { 1 }, error);
        }
    }

    /// Counts the sessions that there are now among the most at once.
    fn count(&mut self) {
        let ready = self.sessions.iter().filter(|sftp| sftp.link().is_ready());
        self.most = self.most.max(ready.count());
    }
}

/// Below this round trip a window of 2 MiB carries more than a core can encrypt.
pub(crate) const NEAR: Duration = Duration::from_millis(2);

/// Whether patience does not help.
fn is_final(error: &Error) -> bool {
    error.is_final() || Reopen::failure(error).is_some_and(Failure::is_final)
}

impl Shared {
    /// Guards the list of sessions, for as long as a look takes.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> Option<u64> {
        self.measure.get().map(|measure| measure())
    }

    /// An attempt to open a session is over; the state, where it was for what is wanted now.
    fn opened(&self, moves: usize) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.moves != moves {
            return None;
        }
        state.opening -= 1;
        Some(state)
    }

    fn add(&self, sftp: &Sftp, moves: usize) {
        if let Some(mut state) = self.opened(moves) {
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
            ..State::of(Vec::new(), None)
        }
    }

    fn lost() -> Error {
        Error::local("reading", std::io::ErrorKind::ConnectionReset.into())
    }

    #[test]
    fn sessions_that_end_in_vain_end_a_copy_after_half_a_minute_however_many_there_are() {
        let mut state = state();
        for _ in 0..100 {
            state.error = Some(lost());
            state.count_end(Some(0), true);
            state.has_opened(Ok(()), Some(0));
        }
        assert!(!state.is_hopeless(), "they ended within a moment");
        state.failing = state.failing.and_then(|since| since.checked_sub(PATIENCE));
        assert!(state.is_hopeless());
        state.has_opened(Ok(()), Some(1));
        assert!(!state.is_hopeless(), "there was progress");
    }

    #[test]
    fn sessions_that_end_together_are_one_attempt() {
        let mut state = state();
        for _ in 0..100 {
            state.error = Some(lost());
            state.count_end(Some(0), true);
        }
        assert_eq!(state.failures, 1);
    }
}
