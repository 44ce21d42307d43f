//! Places sessions and tunnels on the connections, and finds them another place after a refusal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::futures::Notified;
use trunkline_proto::ChannelKind;

use super::policy::{Demand, LaneId, Load, Patience, Placement, Reuse, Spares, Tally, Verdict};
use super::{Caller, Pool, Unplaced};
use crate::connection::channel::ChannelStream;
use crate::connection::driver::SURE_TEXT;
use crate::connection::lease::{End, Lease};
use crate::connection::session::{Command, Session, SpareSession, Starting};
use crate::connection::{ASKED_LONG, Connection, Shown};
use crate::error::{Error, Execution};
use crate::interaction::Waiting;
use crate::memory::Lesson;
use crate::metrics::Opening;

impl Pool {
    /// Starts a command on the best lane. Only on the host's first connection, which is made for it, is the command
    /// sent before the server has opened its session. Everywhere else nothing has started when the session or the
    /// connection is refused, and the command gets another place.
    pub(crate) async fn session(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Session, Unplaced> {
        let load = match () {
            () if self.may_end_with(command) => Load::SessionApart,
            () if command.is_sftp() => Load::Sftp,
            () => Load::Session,
        };
        self.session_placed(command, caller, load).await
    }

    /// Starts a command on an empty connection if there may be another; otherwise like [`Self::session`].
    pub(crate) async fn session_apart(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
    ) -> Result<Session, Unplaced> {
        self.session_placed(command, caller, Load::SessionApart).await
    }

    /// Returns whether the command is so long that a server might end the shared connection at it. It then gets its own
    /// connection, until the server is known to accept that length.
    fn may_end_with(&self, command: &Command) -> bool {
        let length = command.longest_text();
        if length <= SURE_TEXT {
            return false;
        }
        let lessons = self.learner.facts().lessons;
        let taken = lessons.number(Lesson::TextTaken);
        let is_taken = taken.is_some_and(|taken| usize::try_from(taken).is_ok_and(|taken| length <= taken));
        !is_taken && !self.is_sshd()
    }

    async fn session_placed(
        self: &Arc<Self>,
        command: &Command,
        caller: &Caller,
        load: Load,
    ) -> Result<Session, Unplaced> {
        let asked_at = Instant::now();
        // A server that refuses and then ends the connection has already given the reason.
        let mut refused = None;
        let mut misplaced = Misplaced::default();
        loop {
            let placed = match self.place_load(caller, load).await {
                Err(Unplaced::Failed(error @ Error::Closed { .. })) => {
                    return Err(refused.unwrap_or(error).into());
                }
                placed => placed?,
            };
            let Placed {
                lane,
                connection,
                mut lease,
                how,
            } = placed;
            connection.warn(&caller.interaction);
            let opening = how.opening();
            let watched = self.watches(&how, &misplaced);
            let is_spare = matches!(how, How::Spare(_));
            // A command in a session that is already open would be sent before it is known whether it arrives.
            let mut answer = self.check_alive(&connection);
            if is_spare && let Some(answer) = answer.take() {
                match self.proven(lane, &connection, answer).await {
                    Attempt::Done(proven) => proven?,
                    Attempt::Elsewhere => continue,
                }
            }
            // Started without the lock: a connection that has ended since then refuses at once, and returns the lease.
            let mut session = match how {
                How::WithLogIn => {
                    let session =
                        connection.start_with(command, Some(lease), caller.terms(&ChannelKind::Session));
                    self.state().policy.first_asked(lane);
                    self.freed.notify_waiters();
                    session
                }
                How::Spare(spare) => {
                    connection.start_in(*spare, command, lease, caller.terms(&ChannelKind::Session))
                }
                How::Open(asked) => {
                    let mut session = connection.spare();
                    match self
                        .attempt(lane, load, &connection, caller, session.wait_until_open())
                        .await
                    {
                        Attempt::Done(Ok(())) => self.state().policy.session_opened(lane, asked),
                        Attempt::Done(Err(error)) => {
                            // Nothing was requested in the session: the command certainly did not start.
                            lease.set_end(End::NeverOpened);
                            let Error::Refused { reason: 1.., .. } = error else {
                                drop(lease);
                                if self
                                    .lost_before_session(lane, &connection, &error, answer, &mut misplaced)
                                    .await
                                {
                                    refused = Some(error);
                                    continue;
                                }
                                return Err(error.into());
                            };
                            let verdict = match self.session_refused(lane, false, asked) {
                                Verdict::Final if self.refuses_first(lane, &mut misplaced) => {
                                    Verdict::PlaceAnew
                                }
                                verdict => verdict,
                            };
                            misplaced.refusals += u32::from(self.state().policy.reuse() == Reuse::Doubted);
                            match verdict {
                                Verdict::PlaceAnew => {
                                    self.metrics.counters.session_overflows.add(1);
                                    refused = Some(error);
                                    continue;
                                }
                                Verdict::Final => return Err(error.into()),
                            }
                        }
                        Attempt::Elsewhere => {
                            if session.withdraw() {
                                lease.set_end(self.withdrawn());
                            }
                            continue;
                        }
                    }
                    connection.start_in(session, command, lease, caller.terms(&ChannelKind::Session))
                }
            };
            connection.metrics().sessions.add(1);
            session.time(self.metrics.clone(), opening, asked_at);
            self.open_spares(lane);
            let started = (command, &mut session);
            if watched
                && let Err(error) = self
                    .learn_from_start((lane, &connection), is_spare, started, &mut misplaced)
                    .await
            {
                refused = Some(error);
                continue;
            }
            return Ok(session);
        }
    }

    /// Returns how a session counts that was withdrawn before it was open. The server may have opened it together with
    /// the log-in, and may allow no other on this connection.
    fn withdrawn(&self) -> End {
        match self.state().policy.reuse() {
            Reuse::Several => End::NeverOpened,
            _ => End::Left,
        }
    }

    /// Returns whether to wait for the answer to a session's start, because it shows something new about the server. A
    /// program's only connection is exempt: the program gets the server's answers.
    fn watches(&self, how: &How, misplaced: &Misplaced) -> bool {
        let is_spare = matches!(how, How::Spare(_));
        let untried_spare = || is_spare && self.learner.facts().lessons.number(Lesson::Spares) == Some(1);
        // A first contact carries nothing else, and its request can be withdrawn until the connection is made.
        let is_first = matches!(how, How::WithLogIn) && self.learner.facts().banner.is_none();
        let untried = || matches!(self.state().policy.reuse(), Reuse::Untried | Reuse::Doubted);
        let unknown = || untried() || !is_spare && self.may_go_ahead() || untried_spare();
        !self.is_given && (misplaced.refusals > 0 || !is_first && unknown())
    }

    /// Waits for the server's answer to a session's start, and remembers what it shows. An error is a refusal, by which
    /// the server says that nothing has started: the session gets another place.
    async fn learn_from_start(
        &self,
        (lane, connection): (LaneId, &Connection),
        is_spare: bool,
        (command, session): (&Command, &mut Session),
        misplaced: &mut Misplaced,
    ) -> Result<(), Error> {
        let starting = Starting::new(command, session);
        let started = session.wait_for_start().await;
        starting.finish();
        let mut state = self.state();
        let is_alone = state.policy.is_alone_on(lane);
        let Err(error) = started else {
            let ran_before = state.policy.ran(lane);
            let is_known = state.policy.reuse() == Reuse::Several;
            // The lane and its only session are already gone.
            let was_alone = !state.lanes.contains_key(&lane) && state.policy.reuse() == Reuse::Doubted;
            drop(state);
            if is_spare {
                self.learner.learn(Lesson::Spares, 2);
            }
            match is_alone || was_alone {
                true if misplaced.refusals > 0 => self.learn_one_session(),
                false if ran_before && !is_known => self.learn_several_sessions(),
                _ => {}
            }
            return Ok(());
        };
        // The server refused, or closed the session before the command was sent, or ended the connection over another
        // session.
        let is_refusal = match error.root() {
            Error::Refused { reason: 0, .. } => true,
            Error::Closed { .. } => !state.is_closing && !state.ended,
            _ => false,
        } && error.execution() == Execution::DidNotStart;
        let went_ahead = connection.info().is_some_and(|info| info.went_ahead);
        if !is_refusal || misplaced.in_all() >= MOST_PLACES {
            return Ok(());
        }
        if went_ahead && !is_spare {
            // libssh's example server lets its user in during the key exchange, and accepts no command then.
            self.learner.learn(Lesson::NoPipelining, 1);
            state.policy.retire(lane);
            misplaced.ahead += 1;
            return Err(error);
        }
        if is_spare || !is_alone && state.policy.reuse() != Reuse::Several {
            state.policy.doubt_reuse(lane);
            misplaced.refusals += 1;
            drop(state);
            if is_spare {
                self.learn_no_spares();
            }
            return Err(error);
        }
        // The command is refused everywhere, which shows nothing about connections.
        if state.policy.reuse() == Reuse::Doubted {
            state.policy.set_reuse(Reuse::Untried);
        }
        Ok(())
    }

    /// Handles the server's refusal of the first session on a connection. Returns whether the session gets another
    /// place, which it does once: the server may have counted a session that was given up while it was opened.
    fn refuses_first(&self, lane: LaneId, misplaced: &mut Misplaced) -> bool {
        let mut state = self.state();
        let again = !self.is_given
            && state.policy.reuse() != Reuse::Several
            && !std::mem::replace(&mut misplaced.by_first_refusal, true);
        if again {
            state.policy.retire(lane);
        }
        again
    }

    /// Handles the end of a connection before a session was opened on it. Returns whether the session gets another
    /// place, which it does once, and only if the loss was not foreseeable because the connection had been made.
    async fn lost_before_session(
        &self,
        lane: LaneId,
        connection: &Connection,
        error: &Error,
        answer: Option<Answer>,
        misplaced: &mut Misplaced,
    ) -> bool {
        let was_there = has_come(answer);
        let was_made = connection.info().is_some();
        if !was_made || misplaced.by_loss || !is_lost(connection, error) {
            return false;
        }
        if matches!(connection.wait_for_end().await.root(), Error::Closed { .. }) {
            return false;
        }
        misplaced.by_loss = true;
        let mut state = self.state();
        // If the connection was lost before the request, that shows nothing about sessions.
        if was_there && !state.policy.is_alone_on(lane) && state.policy.reuse() == Reuse::Untried {
            // A server that ends the connection at a second session would do so again.
            state.policy.doubt_reuse(lane);
            misplaced.refusals += 1;
        }
        true
    }

    /// Opens a tunnel on the best lane.
    pub(crate) async fn tunnel(
        self: &Arc<Self>,
        kind: ChannelKind,
        caller: &Caller,
    ) -> Result<ChannelStream, Unplaced> {
        let mut was_lost = false;
        loop {
            let placed = self.place_load(caller, Load::Tunnel).await?;
            let (lane, connection) = (placed.lane, placed.connection);
            connection.warn(&caller.interaction);
            let was_made = connection.is_ready();
            let answer = self.check_alive(&connection);
            let opening = connection.open_stream(kind.clone(), Some(placed.lease), caller.terms(&kind));
            match self
                .attempt(lane, Load::Tunnel, &connection, caller, opening)
                .await
            {
                Attempt::Done(Ok(opened)) => {
                    self.state().policy.channel_opened(lane);
                    return Ok(opened);
                }
                // Nothing has gone through it. Retried once: a tunnel that ends its connection would do so again.
                Attempt::Done(Err(error))
                    if was_made
                        && !was_lost
                        && is_lost(&connection, &error)
                        && !matches!(connection.wait_for_end().await.root(), Error::Closed { .. }) =>
                {
                    was_lost = has_come(answer);
                }
                Attempt::Done(Err(error)) => return Err(error.into()),
                Attempt::Elsewhere => {}
            }
        }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// The connections were ended, the first connection could not be made, or another pool is responsible.
    async fn place_load(self: &Arc<Self>, caller: &Caller, load: Load) -> Result<Placed, Unplaced> {
        let begun = Instant::now();
        let mut shown = None;
        loop {
            let freed = self.freed.notified();
            match self.find_place(caller, load, begun)? {
                Lookup::Place(placed) => return Ok(placed),
                Lookup::NotYet(look_again) => {
                    let _waiting = self.queue.wait();
                    let mut changed = std::pin::pin!(wait_for_change(freed, look_again));
                    if let Some(made) = self.connections().into_iter().find(|lane| !lane.is_ready()) {
                        made.wait_for(&caller.interaction, changed).await?;
                        continue;
                    }
                    if shown.is_none() {
                        tokio::select! {
                            biased;
                            () = &mut changed => continue,
                            () = tokio::time::sleep_until((begun + ASKED_LONG).into()) => {}
                        }
                        let host = caller.config.who();
                        shown = Some(Shown::new(&caller.interaction, &Waiting::Session { host }));
                    }
                    changed.await;
                }
            }
        }
    }

    fn find_place(self: &Arc<Self>, caller: &Caller, load: Load, begun: Instant) -> Result<Lookup, Unplaced> {
        self.check_not_ended()?;
        let now = Instant::now();
        let demand = Demand {
            load,
            answerer: caller.answerer(),
        };
        let mut state = self.state();
        state.refresh(&self.host, now);
        if !self.is_for(&state, caller) {
            return Err(Unplaced::Elsewhere);
        }
        if let Some((at, connection)) = &state.failed
            && *at >= begun
            && let Some(error) = connection.end()
            && !connection.is_left_to(&caller.interaction, &error)
        {
            return Err(error.into());
        }
        loop {
            let (lane, how) = match state.policy.place(demand, now) {
                Placement::Wait(look_again) => return Ok(Lookup::NotYet(look_again)),
                Placement::Spare(id) => {
                    let spares = state.lanes.get_mut(&id).map(|lane| &mut lane.spares);
                    let spare = spares.and_then(VecDeque::pop_front);
                    match spare.filter(|spare| !spare.is_closed()) {
                        Some(spare) => (id, How::Spare(Box::new(spare))),
                        // The server has closed it in the meantime.
                        None => {
                            state.policy.session_ended(id, now, End::Closed, now);
                            let is_open = state.lanes.get(&id).is_some_and(|lane| lane.connection.is_open());
                            if is_open && !self.learner.has(Lesson::Sshd) {
                                self.learner.learn(Lesson::NoSpares, 1);
                                state.policy.keep_spares(Spares::None);
                            }
                            continue;
                        }
                    }
                }
                Placement::Open(id) => (id, How::Open(state.policy.asks(id))),
                Placement::Connect(id) => {
                    // A server known as sshd is asked in the same flight for a session for the next command.
                    self.recall(&mut state.policy, false);
                    self.connect(&mut state, id, caller);
                    let how = match state.policy.is_further(id) {
                        true => {
                            self.metrics.counters.further_connections.add(1);
                            How::Open(Tally::default())
                        }
                        false => {
                            if std::mem::take(&mut state.lost) {
                                self.metrics.counters.reconnects.add(1);
                            }
                            How::WithLogIn
                        }
                    };
                    (id, how)
                }
            };
            let Some(found) = state.lanes.get(&lane) else {
                // Unreachable: the policy's lanes are those of the table.
                state.policy.lane_closed(lane);
                continue;
            };
            return Ok(Lookup::Place(Placed {
                lane,
                connection: found.connection.clone(),
                lease: self.lease(lane, load == Load::Tunnel, now),
                how,
            }));
        }
    }

    /// Opens a channel on a lane. Looks for a better place while the lane is a further one that has not logged in, and
    /// when the server stops answering. The failure of a further log-in is never an error.
    async fn attempt<T>(
        &self,
        lane: LaneId,
        load: Load,
        connection: &Connection,
        caller: &Caller,
        opening: impl Future<Output = Result<T, Error>>,
    ) -> Attempt<T> {
        let mut opening = std::pin::pin!(connection.wait_for(&caller.interaction, opening));
        let is_further = self.state().policy.is_further(lane);
        let mut doubted = std::pin::pin!(self.doubt(lane, connection));
        let opened = loop {
            let freed = self.freed.notified();
            let patience = self.state().policy.patience(lane, load, Instant::now());
            let may_be_over = async {
                match patience {
                    Patience::UntilChanged(overdue) => wait_for_change(freed, overdue).await,
                    _ => std::future::pending().await,
                }
            };
            if patience == Patience::Over {
                return Attempt::Elsewhere;
            }
            tokio::select! {
                biased;
                opened = &mut opening => break opened,
                () = &mut doubted => return Attempt::Elsewhere,
                () = may_be_over => {}
            }
        };
        match opened.flatten() {
            Err(error) if is_further && is_lost(connection, &error) => {
                match connection.wait_for_end().await {
                    error @ Error::Closed { .. } => Attempt::Done(Err(error)),
                    _ => Attempt::Elsewhere,
                }
            }
            Err(error) if connection.is_left_to(&caller.interaction, &error) => Attempt::Elsewhere,
            opened => Attempt::Done(opened),
        }
    }

    /// Requests an answer from a server that has been silent for long, before anything is risked on its connection.
    /// Also asks on the other silent connections, because the next request may need them.
    fn check_alive(&self, connection: &Connection) -> Option<Answer> {
        let after = self.settings.ask_after;
        let is_silent = |connection: &Connection| {
            !after.is_zero() && connection.is_ready() && connection.metrics().silence() >= after
        };
        is_silent(connection).then(|| {
            for silent in self.connections().iter().filter(|lane| is_silent(lane)) {
                drop(silent.ask());
            }
            connection.ask().boxed()
        })
    }

    /// Waits for the answer. If none arrives, nothing was started and the session gets another place.
    async fn proven(&self, lane: LaneId, connection: &Connection, mut answer: Answer) -> Attempt<()> {
        let answered = match tokio::time::timeout(self.settings.probe_limit / 2, &mut answer).await {
            Ok(answered) => answered,
            Err(_) if self.state().policy.doubt(lane) => {
                connection.metrics().doubted.cancel();
                return Attempt::Elsewhere;
            }
            // There is no other connection.
            Err(_) => answer.await,
        };
        match answered {
            Ok(()) => Attempt::Done(Ok(())),
            Err(_) => match connection.wait_for_end().await {
                error if matches!(error.root(), Error::Closed { .. }) => Attempt::Done(Err(error)),
                _ => Attempt::Elsewhere,
            },
        }
    }

    /// Returns whether an existing connection still reaches its server, for what belongs to a connection as a whole.
    ///
    /// # Errors
    /// This side closed the connection.
    pub(crate) async fn is_there(&self, connection: &Connection) -> Result<bool, Error> {
        let Some(answer) = self.check_alive(connection) else {
            return Ok(true);
        };
        let lane = {
            let state = self.state();
            let mut lanes = state.lanes.iter();
            lanes.find_map(|(id, lane)| lane.connection.is(connection).then_some(*id))
        };
        let Some(lane) = lane else { return Ok(true) };
        match self.proven(lane, connection, answer).await {
            Attempt::Done(proven) => proven.map(|()| true),
            Attempt::Elsewhere => Ok(false),
        }
    }

    /// Waits until the lane is retired because its server does not answer.
    async fn doubt(&self, lane: LaneId, connection: &Connection) {
        connection.metrics().doubted.cancelled().await;
        if !self.state().policy.doubt(lane) {
            std::future::pending::<()>().await;
        }
    }
}

/// The most places that a session gets: connections that are already being made at the first refusal show nothing new.
const MOST_PLACES: u32 = 5;

/// A pending answer of the server.
type Answer = BoxFuture<'static, Result<(), Error>>;

/// The failures at a session's earlier places.
#[derive(Debug, Default)]
struct Misplaced {
    /// The number of times that the server refused a session or a command on a connection that had had another session.
    refusals: u32,
    /// The server refused the first session on a connection.
    by_first_refusal: bool,
    /// The number of times that the server refused a command after a log-in that went ahead of its answers.
    ahead: u32,
    /// A connection ended before the session was opened on it.
    by_loss: bool,
}

impl Misplaced {
    fn in_all(&self) -> u32 {
        self.refusals + self.ahead
    }
}

/// The place of a session or a tunnel.
struct Placed {
    lane: LaneId,
    connection: Connection,
    lease: Lease,
    how: How,
}

/// A place, or none for now.
enum Lookup {
    Place(Placed),
    /// Look again at this time, even if nothing has changed.
    NotYet(Option<Instant>),
}

/// The way a session or tunnel gets its channel.
enum How {
    /// Its request is sent with the log-in of the only connection: no other has room if that is refused.
    WithLogIn,
    Spare(Box<SpareSession>),
    /// A channel is opened, and the command follows.
    Open(Tally),
}

impl How {
    /// Returns the kind under which the metrics count it.
    fn opening(&self) -> Opening {
        match self {
            Self::WithLogIn => Opening::Cold,
            Self::Spare(_) => Opening::Spare,
            Self::Open(_) => Opening::Open,
        }
    }
}

/// The outcome of an attempt to open a channel.
enum Attempt<T> {
    Done(Result<T, Error>),
    /// There is a better place by now, or the lane was lost before it was useful.
    Elsewhere,
}

/// Waits for a change, or until it is time to look without one.
async fn wait_for_change(freed: Notified<'_>, look_again: Option<Instant>) {
    match look_again {
        Some(at) => {
            let _ = tokio::time::timeout_at(at.into(), freed).await;
        }
        None => freed.await,
    }
}

/// Returns whether a channel could not be opened because its connection could not be made, or is gone.
fn is_lost(connection: &Connection, error: &Error) -> bool {
    let is_end = matches!(
        error.root(),
        Error::Network { .. }
            | Error::Lookup { .. }
            | Error::ClosedByPeer { .. }
            | Error::Timeout { .. }
            | Error::Protocol { .. }
    );
    connection.info().is_none() || is_end
}

/// Returns true if the answer has arrived or none was requested.
fn has_come(answer: Option<Answer>) -> bool {
    answer.is_none_or(|answer| matches!(answer.now_or_never(), Some(Ok(()))))
}
