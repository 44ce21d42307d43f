//! [`Forward`]: something that is listened on, here or at the server, and carried to the other side.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use trunkline::config::{self, ForwardTarget, Listen};
use trunkline_embed::{ForwardKind, Forwarding, Way};

use crate::operation::Operation;
use crate::process::{OfProcess, Process};

/// A TCP port, with an address or without; or the path of a Unix socket.
#[derive(FromPyObject)]
pub(crate) enum Address {
    Socket(PathBuf),
    Port(u16),
    Tcp(String, u16),
}

impl Address {
    pub(crate) fn listen(self) -> Listen {
        match self {
            Self::Socket(path) => Listen::Socket(path),
            Self::Port(port) => Listen::Tcp { host: None, port },
            Self::Tcp(host, port) => Listen::Tcp {
                host: Some(host),
                port,
            },
        }
    }

    fn target(self) -> ForwardTarget {
        match self {
            Self::Socket(path) => ForwardTarget::Socket(path),
            Self::Port(port) => ForwardTarget::Tcp {
                host: "localhost".into(),
                port,
            },
            Self::Tcp(host, port) => ForwardTarget::Tcp { host, port },
        }
    }
}

/// Starts a forwarding: `remote` is listened for at the server; without a target, clients ask by SOCKS.
pub(crate) async fn start(
    way: &Way,
    remote: bool,
    listen: Address,
    target: Option<Address>,
) -> Result<Forwarding, trunkline_embed::Failure> {
    let forward = config::Forward {
        listen: listen.listen(),
        target: target.map_or(ForwardTarget::Socks, Address::target),
    };
    let kind = match (remote, &forward.target) {
        (true, _) => ForwardKind::Remote,
        (false, ForwardTarget::Socks) => ForwardKind::Dynamic,
        (false, _) => ForwardKind::Local,
    };
    way.forward(kind, &forward).await
}

/// A forwarding, until it is closed or dropped.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Forward {
    /// Guards the handle, which closing takes.
    inner: OfProcess<(Arc<Process>, Mutex<Option<Forwarding>>)>,
}

impl Forward {
    pub(crate) fn new(process: Arc<Process>, forwarding: Forwarding) -> Self {
        Self {
            inner: OfProcess::new((process, Mutex::new(Some(forwarding)))),
        }
    }

    fn look_at<T: Default>(&self, look: impl FnOnce(&Forwarding) -> T) -> PyResult<T> {
        let handle = self.inner.get()?.1.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(handle.as_ref().map(look).unwrap_or_default())
    }
}

#[pymethods]
impl Forward {
    /// Returns the place where it can be reached: the address, if there is one, and the port; or the path.
    fn listening(&self) -> PyResult<Vec<(Option<String>, Option<u16>)>> {
        self.look_at(|handle| {
            let told = |listen| match listen {
                Listen::Tcp { host, port } => (host, Some(port)),
                Listen::Socket(path) => (Some(path.to_string_lossy().into_owned()), None),
            };
            handle.listening().into_iter().map(told).collect()
        })
    }

    /// Clients that came, that are served, that were sent away; bytes to the server and from it.
    fn counters(&self) -> PyResult<(u64, u64, u64, u64, u64)> {
        self.look_at(|handle| {
            let counters = handle.counters();
            (
                counters.accepted,
                counters.open,
                counters.refused,
                counters.bytes_sent,
                counters.bytes_received,
            )
        })
    }

    /// Ends the listening; with `abort`, also what is being carried.
    fn close(&self, abort: bool) -> PyResult<Operation> {
        let (process, handle) = self.inner.get()?;
        let handle = handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Operation::new(process, async move {
            match handle {
                Some(handle) if abort => handle.abort().await,
                Some(handle) => handle.close().await,
                None => {}
            }
            Ok(())
        }))
    }
}
