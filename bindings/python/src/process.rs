//! The state of this process alone: the runtime's threads and the engines on it. A child that `fork` made has neither;
//! it gets its own on first use, and what it inherited says so instead of waiting for threads that are not there.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use trunkline::{MemoryPlace, Settings};
use trunkline_embed::{Place, ProgramEngine, Worlds};

use crate::error;

/// The runtime of one process, and the engine that its connections share.
pub(crate) struct Process {
    pub(crate) runtime: Runtime,
    /// Made when it is first needed: who goes through the daemon, as each of the workers that Ansible forks, does without
    /// its host memory and its thread.
    engine: OnceLock<ProgramEngine>,
    pub(crate) worlds: Worlds,
}

/// Guards the process's own state while it is looked up or made. Only taken with the GIL held and never waited under, so
/// that no thread can hold it while another forks.
static CURRENT: Mutex<Option<OfProcess<Arc<Process>>>> = Mutex::new(None);

impl Process {
    /// This process's, made on first use.
    pub(crate) fn current(py: Python<'_>) -> PyResult<Arc<Self>> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = current.as_ref().and_then(OfProcess::here) {
            return Ok(process.clone());
        }
        crate::log::go_on(py)?;
        let process = Arc::new(Self::new()?);
        *current = Some(OfProcess::new(process.clone()));
        Ok(process)
    }

    fn new() -> PyResult<Self> {
        let runtime = Builder::new_multi_thread()
            .thread_name("trunkline")
            .enable_all()
            .build()?;
        Ok(Self {
            runtime,
            engine: OnceLock::new(),
            worlds: Worlds::default(),
        })
    }

    /// The engine, if it was made.
    pub(crate) fn made_engine(&self) -> Option<&ProgramEngine> {
        self.engine.get()
    }

    /// The engine. To be called with the GIL held, under which Python changes the environment.
    ///
    /// # Errors
    /// `config.toml` cannot be used.
    pub(crate) fn engine(&self) -> Result<&ProgramEngine, trunkline_embed::Failure> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let _context = self.runtime.enter();
        let fresh = ProgramEngine::new(Settings::default(), memory_place())?;
        Ok(self.engine.get_or_init(|| fresh))
    }
}

/// The time that the end of the process may wait for the audit trail.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// Host memory is a cache: without a place for it, only speed is lost.
fn memory_place() -> MemoryPlace {
    let place = Place::find(|name| std::env::var_os(name).map(Into::into));
    match place.map(|place| place.make_state().map(|()| place)) {
        Ok(Ok(place)) => MemoryPlace::Directory(place.state),
        Ok(Err(error)) | Err(error) => {
            tracing::warn!("host memory is not kept: {error}");
            MemoryPlace::Process
        }
    }
}

/// Ends the connections of this process's shared engine, for which they get `limit` seconds, and the runtime's threads.
/// Called when the interpreter exits; whatever is used afterwards gets new ones.
#[pyfunction]
pub(crate) fn shut_down(py: Python<'_>, limit: f64) {
    let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(process) = current.as_ref().and_then(OfProcess::here).cloned() else {
        return;
    };
    drop(current);
    let limit = Duration::try_from_secs_f64(limit).unwrap_or_default();
    py.detach(|| {
        if let Some(engine) = process.engine.get() {
            process.runtime.block_on(async {
                // Before the connections go: their end does not count as a failure. Records that take longer do not keep the
                // process.
                let _ = tokio::time::timeout(LAST_RECORDS, engine.close_trail()).await;
                engine.shut_down(limit).await;
            });
        }
        // Others may hold it, who then find that their work was given up.
        if let Ok(process) = Arc::try_unwrap(process).map_err(drop) {
            process.runtime.shutdown_background();
        }
    });
}

/// An engine: connections are shared by all who use the same one.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Engine {
    /// `None`: the process's own.
    inner: OfProcess<(Arc<Process>, Option<ProgramEngine>)>,
}

impl Engine {
    pub(crate) fn process(&self) -> PyResult<&Arc<Process>> {
        Ok(&self.inner.get()?.0)
    }

    /// `None`: the process's own.
    pub(crate) fn apart_from_process(&self) -> PyResult<Option<ProgramEngine>> {
        Ok(self.inner.get()?.1.clone())
    }

    fn engine(&self) -> PyResult<&ProgramEngine> {
        let (process, apart) = self.inner.get()?;
        match apart {
            Some(engine) => Ok(engine),
            None => engine_of(process),
        }
    }
}

/// The process's own engine, for Python.
fn engine_of(process: &Process) -> PyResult<&ProgramEngine> {
    process
        .engine()
        .map_err(|failure| Python::attach(|py| error::exception(py, failure.into())))
}

#[pymethods]
impl Engine {
    /// The process's own.
    #[staticmethod]
    fn shared(py: Python<'_>) -> PyResult<Self> {
        Ok(Self {
            inner: OfProcess::new((Process::current(py)?, None)),
        })
    }

    /// One that shares connections with nobody, and makes so many to a host at most.
    #[staticmethod]
    fn apart(py: Python<'_>, connections: usize) -> PyResult<Self> {
        let process = Process::current(py)?;
        let engine = {
            let _context = process.runtime.enter();
            engine_of(&process)?.isolate(Some(connections))
        };
        Ok(Self {
            inner: OfProcess::new((process, Some(engine))),
        })
    }

    /// Closes its connections at once, with all that runs on them.
    fn close(&self) -> PyResult<()> {
        self.engine()?.close(true, |_| true);
        Ok(())
    }

    /// Its counters: name and value.
    fn counters(&self) -> PyResult<Vec<(&'static str, u64)>> {
        let metrics = self.engine()?.metrics();
        Ok(vec![
            (
                "connections_started",
                metrics.counters.connections_started.value(),
            ),
            (
                "connections_authenticated",
                metrics.counters.connections_authenticated.value(),
            ),
        ])
    }
}

/// Something that only works in the process that made it: threads stand behind it, which a forked child has not.
pub(crate) struct OfProcess<T> {
    pid: u32,
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            pid: std::process::id(),
            value: Some(value),
        }
    }

    /// The value, if this is its process.
    pub(crate) fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.pid == std::process::id())
    }

    /// The value.
    ///
    /// # Errors
    /// `ForkError` in a child of its process.
    pub(crate) fn get(&self) -> Result<&T, PyErr> {
        self.here().ok_or_else(|| Python::attach(error::forked_error))
    }

    pub(crate) fn take(mut self) -> Result<T, PyErr> {
        self.get()?;
        match self.value.take() {
            Some(value) => Ok(value),
            None => Err(Python::attach(error::forked_error)),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    /// A lock inside may have been copied as it was held by a thread that the child has not: nothing of it is touched.
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
