//! The events for one JavaScript environment, and the time at which it is woken for them.
//!
//! Waking an event loop costs it more than a line of text does: libuv's round, a handle scope, a call into JavaScript.
//! So nobody is woken for a chunk. Events and streams that have data gather here, one wake-up fetches them all, and after it
//! unprompted data waits for the rest of [`PACE`] before there is another.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use serde_json::Value;

use crate::block::Block;
use crate::runtime;

/// The shortest time between two wake-ups for data that nobody waits for: what a log tail can be late, which nobody sees.
/// Answers, ends and errors do not wait, nor does a flow with more than [`Flow::PLENTY`](crate::stream::Flow::PLENTY). Of 20 streams with 2,000 lines a
/// second each, the loop was busy 0.29 to 0.40 of what ssh2 takes with 25 ms, and 0.12 to 0.16 with 50 ms.
const PACE: Duration = Duration::from_millis(50);

/// Calls into JavaScript without arguments; does not keep the event loop alive.
pub(crate) type Wake = ThreadsafeFunction<(), (), (), Status, false, true>;

/// The kinds of events, which are numbered from 0, and their names in JavaScript.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal,)+) => {
        /// The kind of event for one target (a client, a stream, a request).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind {
            $($(#[$doc])+ $kind,)+
        }

        impl Kind {
            /// The names, each at its number.
            pub(crate) const NAMES: &[&str] = &[$($name,)+];
        }
    };
}

kinds! {
    /// A chunk of the first stream: `Buffer`.
    Data = "DATA",
    /// A chunk of the second stream (standard error): `Buffer`.
    ErrorData = "ERROR_DATA",
    /// The first stream's end: whether it was the server's word.
    End = "END",
    /// The second stream's end: as the first's.
    ErrorEnd = "ERROR_END",
    /// There is room for more to be written.
    Drain = "DRAIN",
    /// A client is ready, a stream open, a request granted: details.
    Open = "OPEN",
    /// It failed, before it was open: fault.
    Fail = "FAIL",
    /// A command ended: details.
    Exit = "EXIT",
    /// It is over; nothing more comes: fault, or null.
    Close = "CLOSE",
    /// The server's banner, or a warning: text.
    Notice = "NOTICE",
    /// The program's opinion on a host key: `{ question, key }`.
    HostKey = "HOST_KEY",
    /// The server lists keys as its own: whether the program wants them proven, `{ question }`.
    ListedKeys = "LISTED_KEYS",
    /// It has proven that it has them: the keys.
    ProvenKeys = "PROVEN_KEYS",
    /// Questions that a server asks: `{ question, name, instruction, prompts }`.
    Questions = "QUESTIONS",
    /// A client of a port or socket on the server: details with its number.
    Incoming = "INCOMING",
    /// A client's new streams go elsewhere than before: details.
    Placement = "PLACEMENT",
    /// The agreement with the server, before a log-in that the program leads: details.
    Agreed = "AGREED",
    /// The program's next attempt to log in: `{ question, methods, partial }`.
    Authenticate = "AUTHENTICATE",
    /// A key or agent of its last attempt could not be used: why.
    Unusable = "UNUSABLE",
    /// The password has to be changed: `{ question, login, prompt }`; the answer to the question is the new one, or nothing.
    NewPassword = "NEW_PASSWORD",
    /// The program's signature is wanted: `{ question, key, algorithm, data }`.
    Sign = "SIGN",
}

/// The content of an event.
pub(crate) enum Payload {
    /// Bytes, which become a `Buffer`.
    Bytes(Block),
    /// Anything else.
    Value(Value),
}

impl From<Value> for Payload {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// A target, what happens to it, and what is told of that.
pub(crate) type Event = (u32, Kind, Payload);

/// Tells what there is to tell when its turn has come.
type Delivery = Box<dyn FnOnce(&mut Vec<Event>) + Send>;

/// An entry of the queue.
enum Entry {
    Told(Event),
    /// Something that a stream has to deliver by then.
    Due(Delivery),
}

/// The queue of one environment.
pub(crate) struct Outbox {
    state: Mutex<State>,
    wake: Wake,
}

static OUTBOXES: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
struct State {
    /// In order. A flow's data is there at most once, and what comes while it is goes with it.
    queue: Vec<Entry>,
    /// A wake-up is under way: whatever is appended now goes with it.
    woken: bool,
    /// One is planned for later.
    planned: bool,
    drained: Option<Instant>,
    closed: bool,
}

/// The urgency of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// Within [`PACE`].
    Soon,
}

impl Outbox {
    pub(crate) fn new(wake: Wake) -> Arc<Self> {
        OUTBOXES.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::default();
        Arc::new(Self { state, wake })
    }

    /// Returns the number of environments: one goes with the last thing that it held.
    pub(crate) fn count() -> u32 {
        OUTBOXES.load(Ordering::Relaxed)
    }

    /// Guards the queue, for as long as appending or taking takes. Taken before a flow's own lock, never after it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an event, to be heard at once.
    pub(crate) fn tell(self: &Arc<Self>, target: u32, kind: Kind, value: impl Into<Payload>) {
        self.append(Entry::Told((target, kind, value.into())), Urgency::Now);
    }

    /// Appends what is asked only in its turn what there is to tell.
    pub(crate) fn offer(
        self: &Arc<Self>,
        deliver: impl FnOnce(&mut Vec<Event>) + Send + 'static,
        urgency: Urgency,
    ) {
        self.append(Entry::Due(Box::new(deliver)), urgency);
    }

    fn append(self: &Arc<Self>, entry: Entry, urgency: Urgency) {
        let mut state = self.state();
        // A flow holds the queue that it is in: the two would never go.
        if state.closed {
            return;
        }
        state.queue.push(entry);
        self.rouse(state, urgency);
    }

    /// A flow in the queue has become urgent.
    pub(crate) fn hurry(self: &Arc<Self>) {
        self.rouse(self.state(), Urgency::Now);
    }

    fn rouse(self: &Arc<Self>, mut state: MutexGuard<'_, State>, urgency: Urgency) {
        if state.closed || state.woken {
            return;
        }
        let rest = state
            .drained
            .and_then(|drained| PACE.checked_sub(drained.elapsed()))
            .filter(|_| urgency == Urgency::Soon);
        match rest {
            None => {
                state.woken = true;
                drop(state);
                self.call();
            }
            Some(_) if state.planned => {}
            Some(rest) => {
                let Ok(runtime) = runtime::runtime() else { return };
                state.planned = true;
                drop(state);
                let outbox = self.clone();
                runtime.spawn(async move {
                    tokio::time::sleep(rest).await;
                    let mut state = outbox.state();
                    state.planned = false;
                    if !(state.queue.is_empty() || state.woken || state.closed) {
                        state.woken = true;
                        drop(state);
                        outbox.call();
                    }
                });
            }
        }
    }

    fn call(&self) {
        // An environment that is being torn down refuses; its clean-up hook closes the queue.
        let _ = self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
    }

    /// Takes everything, in order.
    pub(crate) fn drain(&self) -> Vec<Event> {
        let queue = {
            let mut state = self.state();
            state.woken = false;
            state.drained = Some(Instant::now());
            std::mem::take(&mut state.queue)
        };
        let mut told = Vec::with_capacity(queue.len());
        for entry in queue {
            match entry {
                Entry::Told(event) => told.push(event),
                Entry::Due(deliver) => deliver(&mut told),
            }
        }
        told
    }

    /// Nobody listens any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        drop(queue);
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        OUTBOXES.fetch_sub(1, Ordering::Relaxed);
    }
}
