//! [`FleetJob`]: a command on hosts that the nodes of a fleet reach.

mod job;

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use tokio::sync::oneshot;
use trunkline_fleet_client::{FleetHost, FleetLimits};

use crate::data::{Data, duration};
use crate::error::Failure;
use crate::operation::Operation;
use crate::process::{OfProcess, Process};
use crate::session::status_for_python;
use job::{Cancel, FleetRan};

/// The time that the fleet's program may take to notice that a job is to end.
const NOTICE: Duration = Duration::from_secs(5);

/// A job. It begins when one of its hosts is waited for.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct FleetJob {
    inner: OfProcess<(Arc<Process>, Arc<Job>)>,
}

/// Both are guarded for as long as it takes to take something out.
struct Job {
    begin: Mutex<Option<(job::Job, Vec<oneshot::Sender<FleetRan>>)>>,
    hosts: Mutex<Vec<Option<oneshot::Receiver<FleetRan>>>>,
    cancel: Cancel,
}

impl Job {
    /// Begins it, if it has not begun. Within the runtime.
    fn begin(self: &Arc<Self>) {
        let begin = self.begin.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((job, hosts)) = begin else { return };
        let this = self.clone();
        tokio::spawn(async move {
            let mut hosts: Vec<_> = hosts.into_iter().map(Some).collect();
            let ended = |place: usize, ran| {
                if let Some(host) = hosts.get_mut(place).and_then(Option::take) {
                    // Perhaps nobody waits for it any more.
                    let _ = host.send(ran);
                }
            };
            job.run(&this.cancel, ended).await;
        });
    }
}

#[pymethods]
impl FleetJob {
    /// `program` is what runs `trunkline-fleet converse`; `hosts` are names and destinations.
    #[new]
    #[pyo3(signature = (program, hosts, command, input, at_once, limit=None))]
    fn new(
        py: Python<'_>,
        program: Vec<OsString>,
        hosts: Vec<(String, String)>,
        command: Vec<u8>,
        input: Option<Vec<u8>>,
        at_once: u32,
        limit: Option<f64>,
    ) -> PyResult<Self> {
        let hosts = hosts.into_iter().map(|(name, destination)| {
            let destination = destination.parse().map_err(|error| {
                PyValueError::new_err(format!("{destination:?} is not a valid destination: {error}"))
            })?;
            Ok(FleetHost {
                name,
                destination,
                command: command.clone(),
            })
        });
        let job = job::Job {
            program,
            hosts: hosts.collect::<PyResult<_>>()?,
            input: input.unwrap_or_default().into(),
            limits: FleetLimits {
                at_once,
                batch: u32::MAX,
                failures: None,
                limit: duration(limit)?,
                retries: 0,
            },
        };
        let (senders, receivers) = job
            .hosts
            .iter()
            .map(|_| oneshot::channel())
            .unzip::<_, _, Vec<_>, Vec<_>>();
        let job = Job {
            begin: Mutex::new(Some((job, senders))),
            hosts: Mutex::new(receivers.into_iter().map(Some).collect()),
            cancel: Cancel::default(),
        };
        Ok(Self {
            inner: OfProcess::new((Process::current(py)?, Arc::new(job))),
        })
    }

    /// A host's part, once: status, signal, output, error output.
    fn host(&self, place: usize) -> PyResult<Operation> {
        let (process, job) = self.inner.get()?;
        let mut hosts = job.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = hosts.get_mut(place).and_then(Option::take);
        let receiver = receiver.ok_or_else(|| PyIndexError::new_err("a host of a job is used once"))?;
        let job = job.clone();
        Ok(Operation::new(process, async move {
            job.begin();
            let lost = |_| Failure::local("the job was given up").after_start();
            let FleetRan { ran, is_of_fleet } = receiver.await.map_err(lost)?;
            let (stdout, stderr) = (Data::from(ran.stdout), Data::from(ran.stderr));
            match ran.outcome {
                Ok(status) => {
                    let (code, signal) = status_for_python(&status);
                    Ok((code, signal, stdout, stderr))
                }
                Err(failure) => {
                    let failure = Failure::from(failure).with_output(stdout.into_vec(), stderr.into_vec());
                    Err(if is_of_fleet { failure.of_fleet() } else { failure })
                }
            }
        }))
    }

    /// Ends it: what runs is sent SIGTERM, and nothing more is started.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let (process, job) = self.inner.get()?;
        py.detach(|| {
            process.runtime.block_on(async {
                // Where nobody takes notice, nothing is handed over any more.
                let _ = tokio::time::timeout(NOTICE, job.cancel.cancel()).await;
            });
        });
        Ok(())
    }
}
