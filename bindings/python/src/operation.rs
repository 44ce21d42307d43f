//! [`Operation`]: something that may take time, waited for by a thread or begun for an event loop.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::{IntoPyObject, IntoPyObjectExt as _};
use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

use crate::completions::{Begun, Completions, Outcome, SLICE};
use crate::data::duration;
use crate::error::{self, Failure};
use crate::process::{OfProcess, Process};

/// The work, and the runtime that it needs.
struct Work {
    process: Arc<Process>,
    future: BoxFuture<'static, Result<Outcome, Failure>>,
}

/// Something that may take time. Nothing happens before it is waited for or begun, which can be done once.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Operation {
    /// Guards the work until it is taken.
    work: Mutex<Option<OfProcess<Work>>>,
}

/// A place in the queue for a lock, which is taken now: what was asked for first is done first, whichever is begun or waited for first.
pub(crate) fn turn<T: Send + 'static>(
    lock: &Arc<FairMutex<T>>,
) -> impl Future<Output = OwnedMutexGuard<T>> + Send + use<T> {
    let mut turn = Box::pin(lock.clone().lock_owned());
    let own = (&mut turn).now_or_never();
    async move {
        match own {
            Some(held) => held,
            None => turn.await,
        }
    }
}

impl Operation {
    pub(crate) fn new<T>(
        process: &Arc<Process>,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let work =
            work.map(|result| result.map(|value| -> Outcome { Box::new(move |py| value.into_py_any(py)) }));
        Self {
            work: Mutex::new(Some(OfProcess::new(Work {
                process: process.clone(),
                future: work.boxed(),
            }))),
        }
    }

    fn take(&self) -> PyResult<Work> {
        let taken = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken
            .ok_or_else(|| PyRuntimeError::new_err("an operation is used once"))?
            .take()
    }
}

impl<V: Clone> OfProcess<(Arc<Process>, V)> {
    /// An operation on a clone of the value.
    pub(crate) fn operation<T, F>(&self, work: impl FnOnce(Arc<Process>, V) -> F) -> PyResult<Operation>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (process, value) = self.get()?;
        Ok(Operation::new(process, work(process.clone(), value.clone())))
    }
}

#[pymethods]
impl Operation {
    /// Waits for the outcome, in this thread, without the GIL. An exception of a signal handler (Ctrl-C) gives the work
    /// up and is raised; so is `TimeoutError` when `limit` seconds are over before.
    #[pyo3(signature = (limit=None))]
    fn wait(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<Py<PyAny>> {
        let limit = duration(limit)?;
        let Work { process, future } = self.take()?;
        // A time beyond the clock's end counts as no limit.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let _context = process.runtime.enter();
        let mut work = pin!(future);
        let mut poll_for = |limit| py.detach(|| poll_until(work.as_mut(), limit));
        let outcome = loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let slice = handles_signals().then_some(SLICE);
            if let Some(outcome) = poll_for(left.into_iter().chain(slice).min()) {
                break outcome;
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err("timed out"));
            }
        };
        outcome.map_err(|failure| error::exception(py, failure))?(py)
    }

    /// Begins the work on the engine's threads, with what else is begun before [`Completions::go`]; `completions` will have
    /// the outcome under `token`.
    fn begin(&self, completions: &Completions, token: u64) -> PyResult<Running> {
        let queue = completions.queue()?;
        let Work { process, future } = self.take()?;
        let (abort, registration) = AbortHandle::new_pair();
        queue.begin(Begun {
            process,
            token,
            work: Abortable::new(future, registration),
        });
        Ok(Running {
            abort: OfProcess::new(abort),
        })
    }
}

/// An operation that was begun.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Running {
    abort: OfProcess<AbortHandle>,
}

#[pymethods]
impl Running {
    /// Gives the work up: a session that it was about is closed. There may still be an outcome.
    fn abort(&self) {
        if let Some(abort) = self.abort.here() {
            abort.abort();
        }
    }
}

/// Returns whether Python runs signal handlers in this thread: only in its main one.
fn handles_signals() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Polls `work` on this thread until it is done, for at most `limit`.
fn poll_until<F: Future>(mut work: std::pin::Pin<&mut F>, limit: Option<Duration>) -> Option<F::Output> {
    /// Wakes the thread that waits.
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let end = limit.map(|limit| Instant::now() + limit);
    loop {
        if let Poll::Ready(output) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return None,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}
