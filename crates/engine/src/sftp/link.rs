//! [`Link`]: the session's state machine, and the one task that moves its bytes.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use trunkline_sftp::transfer::NameBudget;
use trunkline_sftp::{
    Client, Config, Extensions, Handle, Limits, Outcome, Reply, Request, RequestId, Status, StatusCode,
};
use trunkline_text::Printable;

use super::order::PlanLocked;
use crate::connection::channel::{ChannelReader, ChannelWriter};
use crate::connection::session::{Session, SessionControl, SessionEnd, SessionParts};
use crate::error::{Error, Execution};
use crate::memory::{Learner, Lesson};
use trunkline_request::ExitStatus;

/// A session that operations and transfer plans share. An operation locks the state machine while it writes a request;
/// the task that moves the bytes locks it once for each batch of replies.
pub(crate) struct Link {
    host: String,
    pub(crate) known: Known,
    shared: Arc<Shared>,
    task: OnceLock<AbortHandle>,
}

/// The known peculiarities of a server, and the place for new ones.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// True if its SYMLINK takes the link's path first.
    pub(crate) symlink_link_first: Arc<tokio::sync::OnceCell<bool>>,
    /// It gave several open files one handle.
    pub(crate) shares_handles: Arc<AtomicBool>,
    /// Host memory, if there is one.
    pub(crate) learner: Option<Learner>,
    /// The time that a server may owe an answer while its connection lives, if limited. After that the session is dead,
    /// and the next one on the connection may be too (proftpd's, in a copy from a host to itself).
    pub(crate) silence: Option<Duration>,
    /// The budget for the names of its listings, shared with others.
    pub(crate) names: NameBudget,
    /// Sessions without an owner that are still removing leftovers.
    pub(crate) leaving: TaskTracker,
}

impl Known {
    pub(crate) fn learn(&self, lesson: Lesson, number: usize) {
        if let Some(learner) = &self.learner {
            learner.learn(lesson, u32::try_from(number).unwrap_or(u32::MAX));
        }
    }

    /// Remembers whether the server is OpenSSH's sftp-server.
    fn learn_server(&self, is_sftp_server: bool) {
        let Some(learner) = &self.learner else { return };
        let lesson = match is_sftp_server {
            true => Lesson::SftpServer,
            false => Lesson::OtherSftpServer,
        };
        if !learner.has(lesson) {
            learner.learn(lesson, 1);
        }
    }
}

/// The state that the task and the link's owners share.
pub(crate) struct Shared {
    known: Known,
    /// Guards the state machine and the waiting callers; never held across an await. Taken before a plan's own lock.
    state: Mutex<State>,
    /// Notified when there may be something to write.
    to_write: Notify,
    /// Notified when the version has arrived, or at the end.
    ready: Notify,
    /// Notified when the last owner has gone while the server still owes answers.
    leaving: Notify,
    /// Notified when the server has answered everything after that.
    answered: Notify,
}

struct State {
    client: Client,
    callers: HashMap<RequestId, oneshot::Sender<Outcome>>,
    plans: Vec<(u64, Arc<dyn AnyPlan>)>,
    next_plan: u64,
    /// The session has no owner any more.
    is_left: bool,
    /// Makes the connection's end wait for the session.
    leaving: Option<TaskTrackerToken>,
    /// The time at which the server last sent something, or got its first request after it had answered all.
    heard: Instant,
    /// The error that ended the session.
    ended: Option<Error>,
}

/// A plan on a session, of any kind.
pub(crate) trait AnyPlan: Send + Sync {
    /// Takes the answer to one of its requests; returns any other answer.
    fn handle_reply(
        &self,
        client: &mut Client,
        id: RequestId,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Outcome>;
    /// Sends as many requests as are worth having in flight.
    fn drive(&self, client: &mut Client, now: Instant);
    /// Wakes the consumer of the plan's events, because answers have arrived.
    fn wake(&self);
    /// Ends the plan's work on this session.
    fn session_ended(&self);
    /// Stops the plan, which has no consumer any more, and closes what it opened.
    fn stop(&self, client: &mut Client);
}

impl Link {
    /// Begins a session: its first bytes are handed over before this returns to the runtime.
    pub(crate) fn begin(transport: impl Transport, host: String, config: &Config, known: Known) -> Arc<Self> {
        let shared = Arc::new(Shared {
            known: known.clone(),
            state: Mutex::new(State {
                client: Client::new(config),
                callers: HashMap::new(),
                plans: Vec::new(),
                next_plan: 0,
                is_left: false,
                leaving: None,
                heard: Instant::now(),
                ended: None,
            }),
            to_write: Notify::new(),
            ready: Notify::new(),
            leaving: Notify::new(),
            answered: Notify::new(),
        });
        let link = Arc::new(Self {
            host: host.clone(),
            known,
            shared: shared.clone(),
            task: OnceLock::new(),
        });
        let task = tokio::spawn(async move {
            let error = tokio::select! {
                error = transport.run(&shared, &host) => error,
                () = shared.wait_until_left() => Error::sftp(&host, trunkline_sftp::Error::Closed),
            };
            shared.end(error);
        });
        let _ = link.task.set(task.abort_handle());
        link
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn limits_now(&self) -> Limits {
        *self.shared.state().client.limits()
    }

    pub(crate) fn end_reason(&self) -> Option<Error> {
        self.shared.state().ended.clone()
    }

    /// Waits for the session's end, and returns the error that ended it.
    pub(crate) async fn end(&self) -> Error {
        loop {
            // Notified by the end as well as by the server's version.
            let ready = self.shared.ready.notified();
            if let Some(error) = self.end_reason() {
                return error;
            }
            ready.await;
        }
    }

    /// Returns whether the server has sent its version, and the session continues.
    pub(crate) fn is_ready(&self) -> bool {
        let state = self.shared.state();
        state.ended.is_none() && state.client.extensions().is_some()
    }

    /// Returns whether the server has identified itself as OpenSSH's own sftp-server.
    pub(crate) fn is_sftp_server(&self) -> bool {
        self.shared.state().client.keeps_order()
    }

    /// Returns the error of a session that ended before the server had sent its version.
    pub(crate) fn never_began(&self) -> Option<Error> {
        let state = self.shared.state();
        let ended = state.ended.clone();
        ended.filter(|_| state.client.extensions().is_none())
    }

    /// Waits for the server's version.
    pub(crate) async fn ready(&self) -> Result<Extensions, Error> {
        loop {
            let ready = self.shared.ready.notified();
            {
                let state = self.shared.state();
                if let Some(error) = &state.ended {
                    return Err(error.clone());
                }
                if let Some(extensions) = state.client.extensions() {
                    return Ok(extensions.clone());
                }
            }
            ready.await;
        }
    }

    /// Returns the server's limits: sends a request for them, and one that any server answers after that.
    pub(crate) async fn limits(&self) -> Result<Limits, Error> {
        let extensions = self.ready().await?;
        if extensions.has("limits@openssh.com", "1") {
            let (sender, receiver) = oneshot::channel();
            let root = Request::Realpath {
                path: Bytes::from_static(b"."),
            };
            self.ask(sender, |client| client.request(root))?;
            if receiver.await.is_err()
                && let Some(error) = self.end_reason()
            {
                return Err(error);
            }
        }
        Ok(self.limits_now())
    }

    pub(crate) async fn supports(&self, request: &Request) -> Result<bool, Error> {
        self.ready().await?;
        Ok(self.shared.state().client.supports(request))
    }

    fn ask(
        &self,
        caller: oneshot::Sender<Outcome>,
        ask: impl FnOnce(&mut Client) -> RequestId,
    ) -> Result<RequestId, Error> {
        let mut state = self.shared.state();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        state.note_request();
        let id = ask(&mut state.client);
        state.callers.insert(id, caller);
        state.deliver(Instant::now());
        drop(state);
        self.shared.to_write.notify_one();
        Ok(id)
    }

    fn cancel(&self, id: RequestId) {
        let mut state = self.shared.state();
        if state.callers.remove(&id).is_some() {
            state.client.cancel(id);
            drop(state);
            self.shared.to_write.notify_one();
        }
    }

    /// Closes a handle without waiting for the result.
    pub(crate) fn close(&self, handle: Handle) {
        self.with_client(|client| client.close(handle));
    }

    /// Runs `work` on the state machine, if the session lives.
    pub(crate) fn with_client<T>(&self, work: impl FnOnce(&mut Client) -> T) -> Option<T> {
        let mut state = self.shared.state();
        if state.ended.is_some() {
            return None;
        }
        state.note_request();
        let result = work(&mut state.client);
        drop(state);
        self.shared.to_write.notify_one();
        Some(result)
    }

    /// Puts a plan on the session until the guard is dropped, and drives it for the first time. If the session is over,
    /// ends the plan's work instead.
    pub(crate) fn attach(self: &Arc<Self>, plan: Arc<dyn AnyPlan>) -> Attached {
        let mut state = self.shared.state();
        let id = state.next_plan;
        state.next_plan += 1;
        if state.ended.is_some() {
            drop(state);
            plan.session_ended();
            plan.wake();
        } else {
            state.note_request();
            plan.drive(&mut state.client, Instant::now());
            state.plans.push((id, plan));
            state.deliver(Instant::now());
            drop(state);
            self.shared.to_write.notify_one();
        }
        Attached {
            link: self.clone(),
            id,
        }
    }

    /// Returns the caller's error for a status.
    pub(crate) fn status_error(&self, doing: &'static str, path: Bytes, status: Status) -> Error {
        Error::File {
            host: self.host.clone(),
            doing,
            path,
            status,
        }
    }
}

/// The time that a server may take to close and remove the leftovers of a stopped operation. sftp-server ends at the
/// end of its input, even if it has unhandled requests.
const LEAVING: Duration = Duration::from_secs(3);

impl Drop for Link {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_left = true;
        let owes = state.ended.is_none() && state.client.in_flight() > 0;
        state.leaving = owes.then(|| self.known.leaving.token());
        drop(state);
        if owes {
            self.shared.leaving.notify_one();
        } else if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// A plan's place on a session.
pub(crate) struct Attached {
    link: Arc<Link>,
    id: u64,
}

impl Attached {
    /// Drives the plan after its consumer has made room.
    pub(crate) fn drive(&self) {
        let mut state = self.link.shared.state();
        state.note_request();
        let State {
            client, plans, ended, ..
        } = &mut *state;
        if ended.is_some() {
            return;
        }
        if let Some((_, plan)) = plans.iter().find(|(id, _)| *id == self.id) {
            plan.drive(client, Instant::now());
        }
        let queued = client.queued_bytes() > 0;
        drop(state);
        if queued {
            self.link.shared.to_write.notify_one();
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.link.shared.state();
        let at = state.plans.iter().position(|(id, _)| *id == self.id);
        let plan = at.map(|at| state.plans.swap_remove(at));
        if let Some((_, plan)) = &plan {
            plan.stop(&mut state.client);
        }
        drop(state);
        self.link.shared.to_write.notify_one();
        // A plan may own the way back here: drop it without the lock.
        drop(plan);
    }
}

impl Shared {
    /// Returns whether the server has sent its version.
    fn has_begun(&self) -> bool {
        self.state().client.extensions().is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        debug_assert!(!PlanLocked::is_any(), "a session is locked before a plan");
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_bytes(&self, batch: impl Iterator<Item = Bytes>) -> Result<(), trunkline_sftp::Error> {
        let now = Instant::now();
        let mut state = self.state();
        let unready = state.client.extensions().is_none();
        let most_open = state.client.found_max_handles();
        state.heard = now;
        let mut result = Ok(());
        for bytes in batch {
            result = state.client.handle_bytes(bytes);
            if result.is_err() {
                break;
            }
        }
        state.deliver(now);
        let State { client, plans, .. } = &mut *state;
        for (_, plan) in plans {
            plan.drive(client, now);
            plan.wake();
        }
        let (queued, ready) = (
            state.client.queued_bytes() > 0,
            state.client.extensions().is_some(),
        );
        let is_sftp_server = state.client.keeps_order();
        let found = state
            .client
            .found_max_handles()
            .filter(|found| Some(*found) != most_open);
        if state.is_left && state.client.in_flight() == 0 {
            self.answered.notify_one();
        }
        drop(state);
        if queued {
            self.to_write.notify_one();
        }
        if unready && ready {
            self.known.learn_server(is_sftp_server);
            self.ready.notify_waiters();
        }
        if let Some(most) = found {
            self.known.learn(Lesson::MaxOpenFiles, most);
        }
        if result == Err(trunkline_sftp::Error::SharedHandles) {
            self.known.shares_handles.store(true, Ordering::Relaxed);
            self.known.learn(Lesson::SharedHandles, 1);
        }
        result
    }

    /// Waits until the server owes an answer for too long while its connection lives; returns how long that was.
    async fn silent(&self, control: &SessionControl) -> Duration {
        let Some(silence) = self.known.silence.filter(|silence| !silence.is_zero()) else {
            return std::future::pending().await;
        };
        let mut asked = false;
        loop {
            let (is_owed, heard, has_begun, keeps_order) = {
                let State { client, heard, .. } = &*self.state();
                let has_begun = client.extensions().is_some();
                (
                    client.is_owed_an_answer(),
                    *heard,
                    has_begun,
                    client.keeps_order(),
                )
            };
            if keeps_order {
                // This server always answers.
                return std::future::pending().await;
            }
            let limit = if has_begun { silence } else { silence / 3 };
            let left = limit.saturating_sub(heard.elapsed());
            if !is_owed || !left.is_zero() {
                asked = false;
                tokio::time::sleep(left.max(LOOK)).await;
                continue;
            }
            if asked {
                return limit;
            }
            // No answer is possible until the connection is made. Its answer shows that earlier requests have arrived.
            let begun = Instant::now();
            if !control.ping().await {
                std::future::pending::<()>().await;
            }
            asked = begun.elapsed() < limit / 2;
            if !asked {
                // The server can answer only from now on.
                self.state().heard = Instant::now();
            }
        }
    }

    /// Waits until the session has no owner and the server has answered all requests, or had time to.
    async fn wait_until_left(&self) {
        self.leaving.notified().await;
        let _ = tokio::time::timeout(LEAVING, self.answered.notified()).await;
    }

    fn end(&self, error: Error) {
        let mut state = self.state();
        state.ended = Some(error);
        state.leaving = None;
        // Waiting callers notice by the end of their channel.
        state.callers.clear();
        let plans = std::mem::take(&mut state.plans);
        drop(state);
        for (_, plan) in plans {
            plan.session_ended();
            plan.wake();
        }
        self.ready.notify_waiters();
    }

    /// Returns whether any request is unanswered.
    fn is_in_flight(&self) -> bool {
        self.state().client.in_flight() > 0
    }

    /// Writes the state machine's output until a write fails, calling `writes` before each; returns the error.
    async fn write(&self, output: &mut impl Output, writes: impl Fn()) -> io::Error {
        loop {
            let next = self.state().client.poll_transmit();
            let result = match next {
                Some(bytes) => {
                    writes();
                    output.send(bytes).await
                }
                None => match output.flush().await {
                    Ok(()) => {
                        self.to_write.notified().await;
                        Ok(())
                    }
                    error => error,
                },
            };
            if let Err(error) = result {
                return error;
            }
        }
    }
}

impl State {
    /// Notes that a request is about to be sent: from now on an answer is owed.
    fn note_request(&mut self) {
        if self.client.in_flight() == 0 && self.client.extensions().is_some() {
            self.heard = Instant::now();
        }
    }

    /// Delivers the answers that have arrived.
    fn deliver(&mut self, now: Instant) {
        while let Some((id, outcome)) = self.client.poll_event() {
            if let Some(caller) = self.callers.remove(&id) {
                // The caller is gone without cancelling: close its handle.
                if let Err(Ok(Reply::Handle(handle))) = caller.send(outcome) {
                    self.client.close(handle);
                }
                continue;
            }
            let mut outcome = Some(outcome);
            for (_, plan) in &self.plans {
                let Some(mine) = outcome.take() else { break };
                outcome = plan.handle_reply(&mut self.client, id, mine, now);
            }
            if let Some(Ok(Reply::Handle(handle))) = outcome {
                self.client.close(handle);
            }
        }
    }
}

/// The interval at which owed answers are checked.
const LOOK: Duration = Duration::from_secs(1);

/// A running operation. Dropping it cancels it if it was not sent, and otherwise closes what it opens.
pub(crate) struct Call {
    link: Arc<Link>,
    doing: &'static str,
    path: Bytes,
    sent: Result<RequestId, Option<Error>>,
    answer: oneshot::Receiver<Outcome>,
}

impl Call {
    pub(crate) fn new(link: &Arc<Link>, doing: &'static str, path: &Bytes, request: Request) -> Self {
        Self::asking(link, doing, path, |client| client.request_or_fail(request))
    }

    /// Like [`Self::new`], for a handle that is closed soon: waits if too many are open.
    pub(crate) fn in_turn(link: &Arc<Link>, doing: &'static str, path: &Bytes, request: Request) -> Self {
        Self::asking(link, doing, path, |client| client.request(request))
    }

    fn asking(
        link: &Arc<Link>,
        doing: &'static str,
        path: &Bytes,
        ask: impl FnOnce(&mut Client) -> RequestId,
    ) -> Self {
        let (sender, answer) = oneshot::channel();
        Self {
            link: link.clone(),
            doing,
            path: path.clone(),
            sent: link.ask(sender, ask).map_err(Some),
            answer,
        }
    }

    /// Returns the error of a request that the session's end left unanswered.
    fn lost_error(&self) -> Error {
        let cause = self.link.end_reason().unwrap_or_else(|| Error::Closed {
            host: self.link.host.clone(),
            why: "the SFTP session was closed".into(),
        });
        lost_error(self.doing, self.path.clone(), cause)
    }
}

/// Returns the session's own error if it never began; otherwise says that the request may have been carried out.
pub(crate) fn lost_error(doing: &'static str, path: Bytes, cause: Error) -> Error {
    match cause {
        Error::Lost { cause, execution } if execution != Execution::DidNotStart => {
            Error::FileLost { doing, path, cause }
        }
        Error::Sftp { .. } | Error::SftpSilent { .. } | Error::Closed { .. } => Error::FileLost {
            doing,
            path,
            cause: Arc::new(cause),
        },
        cause => cause,
    }
}

impl Future for Call {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = &mut self.sent {
            let error = error.take().unwrap_or_else(|| Error::Closed {
                host: self.link.host.clone(),
                why: "the operation was over already".into(),
            });
            return Poll::Ready(Err(error));
        }
        let answer = ready!(self.answer.poll_unpin(cx));
        self.sent = Err(None);
        Poll::Ready(match answer {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(status)) => Err(self.link.status_error(self.doing, self.path.clone(), status)),
            Err(_) => Err(self.lost_error()),
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Ok(id) = self.sent {
            self.link.cancel(id);
        }
    }
}

/// Returns whether a file or directory was at its end.
pub(crate) fn is_end(error: &Error) -> bool {
    matches!(error, Error::File { status, .. } if status.code == StatusCode::EOF)
}

/// The transport of a session's bytes.
pub(crate) trait Transport: Send + 'static {
    /// Moves bytes until the session ends, and returns the reason.
    fn run(self, shared: &Shared, host: &str) -> impl Future<Output = Error> + Send;
}

trait Output: Send {
    fn send(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;
    fn flush(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// Called with the end of an SFTP session's channel. Dropped if the session was given up before.
pub type WhenOver = Box<dyn FnOnce(&Result<ExitStatus, Error>) + Send>;

/// A session's channel.
pub(crate) struct Channel {
    stdin: ChannelWriter,
    stdout: ChannelReader,
    stderr: ChannelReader,
    end: SessionEnd,
    control: SessionControl,
    over: Option<WhenOver>,
}

impl Channel {
    pub(crate) fn new(session: Session) -> Self {
        Self::with_witness(session.into_parts(), None)
    }

    pub(crate) fn with_witness(parts: SessionParts, over: Option<WhenOver>) -> Self {
        Self {
            over,
            stdin: parts.stdin,
            stdout: parts.stdout,
            stderr: parts.stderr,
            end: parts.end,
            control: parts.control,
        }
    }
}

/// Tells the connection whether a session waits for answers.
struct Awaiting<'a> {
    control: &'a SessionControl,
    awaits: AtomicBool,
}

impl<'a> Awaiting<'a> {
    fn new(control: &'a SessionControl) -> Self {
        let awaits = AtomicBool::new(false);
        Self { control, awaits }
    }

    fn set(&self, awaits: bool) {
        if self.awaits.swap(awaits, Ordering::Relaxed) != awaits {
            self.control.awaits(awaits);
        }
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The most slices handled under one lock: a receive buffer's worth of channel packets.
const BATCH: usize = 16;

impl Transport for Channel {
    async fn run(mut self, shared: &Shared, host: &str) -> Error {
        let awaiting = Awaiting::new(&self.control);
        let reading = async {
            while let Some(first) = self.stdout.chunk().await {
                let mut batch = vec![first];
                while batch.len() < BATCH
                    && let Some(Some(more)) = self.stdout.chunk().now_or_never()
                {
                    batch.push(more);
                }
                shared.handle_bytes(batch.into_iter())?;
                awaiting.set(shared.is_in_flight());
            }
            Err(trunkline_sftp::Error::Closed)
        };
        let mut words = Words::default();
        let listening = async {
            while let Some(more) = self.stderr.chunk().await {
                words.add(host, &more);
            }
            std::future::pending::<()>().await;
        };
        let outcome: Result<(), trunkline_sftp::Error> = tokio::select! {
            outcome = reading => outcome,
            after = shared.silent(&self.control) => {
                self.control.doubt();
                return Error::SftpSilent { host: host.to_owned(), after };
            }
            // The reader notices the end too, after the server's last messages.
            _ = async {
                shared.write(&mut self.stdin, || awaiting.set(true)).await;
                std::future::pending::<()>().await;
            } => Ok(()),
            () = listening => Ok(()),
        };
        let ended = match outcome {
            Err(source) if source != trunkline_sftp::Error::Closed => Err(Error::sftp(host, source)),
            // The channel has a better reason than the end of its stream.
            _ => self.end.wait().await,
        };
        if let Some(over) = self.over.take() {
            over(&ended);
        }
        match ended {
            Err(error) => error,
            Ok(_) if shared.has_begun() => Error::sftp(host, trunkline_sftp::Error::Closed),
            Ok(ended) => {
                while let Some(Some(more)) = self.stderr.chunk().now_or_never() {
                    words.add(host, &more);
                }
                let (status, signal) = match ended {
                    ExitStatus::Exited(status) => (Some(status), None),
                    ExitStatus::Signaled { signal, .. } => (None, Some(signal)),
                    ExitStatus::Unknown => (None, None),
                };
                Error::SftpUnstarted {
                    host: host.to_owned(),
                    status,
                    signal,
                    words: Printable::line(words.0.trim_ascii()),
                }
            }
        }
    }
}

/// The end of what the server's program wrote to standard error.
#[derive(Default)]
struct Words(Vec<u8>);

/// The number of its bytes that are kept.
const WORDS: usize = 512;

impl Words {
    fn add(&mut self, host: &str, more: &[u8]) {
        tracing::debug!(%host, "sftp-server says: {}", Printable::line(more.trim_ascii_end()));
        self.0.extend_from_slice(more);
        self.0.drain(..self.0.len().saturating_sub(WORDS));
    }
}

impl Output for ChannelWriter {
    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        ChannelWriter::send(self, bytes).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two streams of any type.
pub(crate) struct Streams<R, W> {
    pub(crate) reader: R,
    pub(crate) writer: W,
}

/// The size of one read from a stream.
const READ: usize = 256 * 1024;

/// The wait for the reason when a stream takes nothing more: the other end is gone.
const WHY: Duration = Duration::from_secs(1);

impl<R, W> Transport for Streams<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    async fn run(mut self, shared: &Shared, host: &str) -> Error {
        let mut reading = pin!(async {
            let mut buffer = BytesMut::new();
            loop {
                buffer.reserve(READ);
                match self.reader.read_buf(&mut buffer).await {
                    Ok(0) => return Error::sftp(host, trunkline_sftp::Error::Closed),
                    Ok(_) => {}
                    Err(error) => return io_error(format!("reading from {host}"), error),
                }
                if let Err(error) = shared.handle_bytes(std::iter::once(buffer.split().freeze())) {
                    return Error::sftp(host, error);
                }
            }
        });
        let mut output = Written(&mut self.writer);
        let unwritten = tokio::select! {
            error = &mut reading => return error,
            error = shared.write(&mut output, || {}) => error,
        };
        // The other end may have sent the reason.
        match tokio::time::timeout(WHY, reading).await {
            Ok(told @ Error::Lost { .. }) => told,
            _ => io_error(format!("writing to {host}"), unwritten),
        }
    }
}

/// Returns the error of a broken stream, which may have carried requests whose answers are lost.
fn io_error(doing: String, source: io::Error) -> Error {
    Error::Lost {
        cause: Arc::new(Error::network(doing, source)),
        execution: Execution::MayHaveStarted,
    }
}

struct Written<'a, W>(&'a mut W);

impl<W: AsyncWrite + Send + Unpin> Output for Written<'_, W> {
    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.0.write_all(&bytes).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.0.flush().await
    }
}
