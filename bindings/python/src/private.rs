//! [`PrivateHost`]: a host by explicit values, with a connection that nobody shares. The faces of other libraries stand on
//! it, whose programs bring host, user, keys and an opinion on host keys themselves.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;
use trunkline::agent::{Agent, AgentError, Constraints};
use trunkline::config::{Algorithms, ForwardAgent, HostConfig, retain_names};
use trunkline::host_key::HostKeyError;
use trunkline::keys::{KeyFile, key_type_of_algorithm};
use trunkline::{HeldConnection, HostKeyVerifier, Login, Verification, refused_by_program};
use trunkline_embed::{OpenedSession, SessionOptions, Way};

use crate::course::{Course, Step};
use crate::data::{Data, duration};
use crate::error::Failure;
use crate::forward::Address;
use crate::operation::Operation;
use crate::process::{OfProcess, Process};
use crate::reach::{ALL_OF_PYTHON, SessionSpec};
use crate::session::Session;
use crate::sftp::Sftp;

/// The algorithms that the engine has, best first, under Paramiko's names for their lists.
#[pyfunction]
pub(crate) fn algorithms(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let Algorithms {
        kex,
        host_key,
        cipher,
        mac,
        compression,
    } = Algorithms::all_supported();
    let lists = PyDict::new(py);
    for (name, list) in [
        ("ciphers", cipher),
        ("digests", mac),
        ("key_types", host_key),
        ("kex", kex),
        ("compression", compression),
    ] {
        lists.set_item(name, PyTuple::new(py, list)?)?;
    }
    Ok(lists)
}

/// The address to connect to, and the options.
#[derive(FromPyObject)]
pub(crate) struct Explicit {
    #[pyo3(item)]
    host: String,
    #[pyo3(item)]
    port: u16,
    #[pyo3(item)]
    user: String,
    /// Seconds for connecting.
    #[pyo3(item)]
    timeout: Option<f64>,
    #[pyo3(item)]
    compress: bool,
    /// The agent's socket.
    #[pyo3(item)]
    agent: Option<PathBuf>,
    /// Whether only the given keys may be used, from the agent too.
    #[pyo3(item)]
    given_keys_only: bool,
    /// Whether every session is lent the agent.
    #[pyo3(item)]
    forward_agent: bool,
    /// Whether there are answers to questions for a password, and to other questions of the server's.
    #[pyo3(item)]
    answers: bool,
    /// Certificates of the keys.
    #[pyo3(item)]
    certificates: Vec<PathBuf>,
    /// known_hosts files.
    #[pyo3(item)]
    known_hosts: Vec<PathBuf>,
    /// Types of the host keys that are known otherwise, to be asked for first.
    #[pyo3(item)]
    known_types: Vec<String>,
    /// Algorithms that are not to be used.
    #[pyo3(item)]
    disabled: Vec<String>,
    /// Those that users' keys are not to sign with.
    #[pyo3(item)]
    disabled_signatures: Vec<String>,
    /// Whether the log-in is made of [`PrivateHost::step`]s.
    #[pyo3(item)]
    led: bool,
}

impl Explicit {
    fn config(&self) -> PyResult<HostConfig> {
        let mut config = HostConfig::explicit(&self.host, self.port, &self.user)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        config.connect_timeout = duration(self.timeout)?;
        config.compression = self.compress;
        config.identity_agent.clone_from(&self.agent);
        config.identities_only = self.given_keys_only;
        if self.forward_agent {
            config.forward_agent = ForwardAgent::Yes;
        }
        config.password_authentication = self.answers;
        config.kbd_interactive_authentication = self.answers;
        // A wrong password is as wrong the next time, and locks accounts.
        config.number_of_password_prompts = 1;
        config.certificate_files.clone_from(&self.certificates);
        config.user_known_hosts_files.clone_from(&self.known_hosts);
        if !self.known_types.is_empty() {
            let is_known = |algorithm: &String| {
                let key_type = key_type_of_algorithm(algorithm).unwrap_or(algorithm);
                self.known_types.iter().any(|known| known == key_type)
            };
            Arc::make_mut(&mut config.host_key_algorithms).sort_by_key(|algorithm| !is_known(algorithm));
            config.host_key_order_is_free = false;
        }
        for (list, disabled) in [
            (&mut config.kex_algorithms, &self.disabled),
            (&mut config.ciphers, &self.disabled),
            (&mut config.macs, &self.disabled),
            (&mut config.host_key_algorithms, &self.disabled),
            (&mut config.pubkey_accepted_algorithms, &self.disabled_signatures),
        ] {
            retain_names(list, |name| !disabled.iter().any(|disabled| disabled == name));
        }
        Ok(config)
    }
}

/// A host of a program's own, which connects at once. Its connections end with it.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct PrivateHost {
    inner: OfProcess<(Arc<Process>, Arc<HeldHost>)>,
}

struct HeldHost {
    host: trunkline::Host,
    /// The program that leads the log-in.
    course: Option<Arc<Course>>,
    way: Way,
    /// The first connection, which is not closed as idle.
    connection: HeldConnection,
    /// The task that asks the server from time to time whether it is there. Guarded while it is replaced.
    keepalive: StdMutex<Option<AbortHandle>>,
}

impl Drop for HeldHost {
    fn drop(&mut self) {
        self.host.end();
        self.keep_alive(None);
    }
}

impl HeldHost {
    fn timed_out(&self, after: Duration) -> trunkline::Error {
        trunkline::Error::Timeout {
            doing: format!("connecting to {}", self.host.config().hostname).into(),
            after,
        }
    }

    /// Replaces what keeps the connection alive.
    fn keep_alive(&self, task: Option<AbortHandle>) {
        let mut keepalive = self.keepalive.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(former) = std::mem::replace(&mut *keepalive, task) {
            former.abort();
        }
    }
}

/// Checks every `interval` that the server answers, and closes the connection after three times in a row without.
async fn keep_alive(held: Weak<HeldHost>, interval: Duration) {
    let mut missed = 0;
    loop {
        tokio::time::sleep(interval).await;
        let Some(held) = held.upgrade() else { return };
        match held.connection.ping(interval).await {
            Ok(_) => missed = 0,
            Err(_) if missed < 2 => missed += 1,
            Err(_) => return held.host.end(),
        }
    }
}

impl PrivateHost {
    /// An operation on the host. Where its connection has ended, no other is made.
    fn operation<T, F>(&self, work: impl FnOnce(Arc<Process>, Arc<HeldHost>) -> F) -> PyResult<Operation>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (process, held) = self.inner.get()?;
        let work = work(process.clone(), held.clone());
        let held = held.clone();
        Ok(Operation::new(process, async move {
            if !held.connection.is_open() {
                return Err(held.connection.wait_for_end().await.into());
            }
            work.await
        }))
    }
}

/// The server's identification, the key exchange, the host key's algorithm, the cipher, the MAC, the banner, and the
/// authentication method.
type Info = (String, String, String, String, Option<String>, String, String);

#[pymethods]
impl PrivateHost {
    /// `verify` is called with the host's name in known_hosts, the key's blob, and what the known_hosts files have against
    /// it: nothing (`None`), or whether it is merely unknown and a text. `over` is a channel, or a socket on its way, to
    /// talk over instead of TCP. `together` takes what the server asks at once, in place of `ask`.
    #[new]
    #[pyo3(signature = (explicit, keys, verify, ask=None, over=None, together=None))]
    fn new(
        py: Python<'_>,
        explicit: Explicit,
        keys: Vec<PyRef<'_, Key>>,
        verify: Py<PyAny>,
        ask: Option<Py<PyAny>>,
        over: Option<Over<'_>>,
        together: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let process = Process::current(py)?;
        let config = explicit.config()?;
        let mut login = Login::new().verify_host_key(Arc::new(Verifier(Arc::new(verify))));
        for key in keys {
            login = login.key(key.0.clone());
        }
        let course = explicit.led.then(Arc::<Course>::default);
        if let Some(course) = &course {
            login = login.authenticate(course.clone());
        }
        let _context = process.runtime.enter();
        login = match over {
            None => login,
            Some(Over::Channel(session)) => login.with_stream(session.get().take_stream()?),
            Some(Over::Socket(socket)) => socket.get().receive(login)?,
        };
        let (host, way) = process
            .engine()
            .and_then(|engine| {
                let interaction = crate::prompt::interaction(ask, together);
                let host = engine.private_host(config, login, &interaction)?;
                Ok((host.clone(), Way::to_host(host, engine)))
            })
            .map_err(|error| crate::error::exception(py, error.into()))?;
        let connection = host.hold();
        let held = Arc::new(HeldHost {
            way,
            host,
            course,
            connection,
            keepalive: StdMutex::default(),
        });
        Ok(Self {
            inner: OfProcess::new((process.clone(), held)),
        })
    }

    /// Waits until it is connected.
    #[pyo3(signature = (limit=None))]
    fn ready(&self, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?;
        self.operation(|_, held| async move {
            let ready = held.connection.ready();
            let Some(limit) = limit else {
                return Ok(ready.await?);
            };
            let outcome = tokio::time::timeout(limit, ready).await;
            Ok(outcome.unwrap_or_else(|_| Err(held.timed_out(limit)))?)
        })
    }

    /// Waits until the server can be shown something to log in with: the methods that it takes, once it has been asked, and
    /// whether what was shown last was right but not enough. `None` once it is connected.
    #[pyo3(signature = (limit=None))]
    fn turn(&self, limit: Option<f64>) -> PyResult<Operation> {
        let limit = duration(limit)?.unwrap_or(Duration::MAX);
        self.operation(move |_, held| async move {
            let turn = async {
                match &held.course {
                    Some(course) => course.turn().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ready = held.connection.ready() => ready.map(|()| None).map_err(Failure::from),
                turn = turn => Ok(Some(turn)),
                () = tokio::time::sleep(limit) => Err(held.timed_out(limit).into()),
            }
        })
    }

    /// Shows the server something. [`Self::turn`] tells what comes of it.
    fn step(&self, step: Step) -> PyResult<()> {
        let (_, held) = self.inner.get()?;
        match &held.course {
            Some(course) => course.answer(step.attempt()?),
            None => Err(PyValueError::new_err("nobody leads this log-in")),
        }
    }

    /// Returns whether it is connected, or being so.
    fn is_open(&self) -> bool {
        self.inner
            .here()
            .is_some_and(|(_, held)| held.connection.is_open())
    }

    /// Returns whether it is connected.
    fn is_ready(&self) -> bool {
        self.inner
            .here()
            .is_some_and(|(_, held)| held.connection.is_ready())
    }

    /// Returns the agreement, once it is connected; of a log-in that the program leads, as soon as the host key is
    /// accepted.
    fn info(&self) -> PyResult<Option<Info>> {
        let (_, held) = self.inner.get()?;
        if let Some(info) = held.connection.info() {
            return Ok(Some((
                info.server.clone(),
                info.kex.name().to_owned(),
                info.host_key_algorithm.clone(),
                info.cipher.to_owned(),
                info.mac.map(str::to_owned),
                info.banner.to_string(),
                info.method.to_owned(),
            )));
        }
        let agreement = held.course.as_ref().and_then(|course| course.agreement());
        Ok(agreement.map(|agreement| {
            (
                agreement.server.clone(),
                agreement.kex.clone(),
                agreement.host_key.clone(),
                agreement.cipher.to_owned(),
                agreement.mac.map(str::to_owned),
                String::new(),
                String::new(),
            )
        }))
    }

    /// Opens a session in which nothing runs yet.
    fn open(&self) -> PyResult<Operation> {
        self.operation(|process, held| async move {
            let session = held.way.open_session().await?;
            Ok(Opened(OfProcess::new((process, StdMutex::new(Some(session))))))
        })
    }

    /// Starts a session, in one that was opened if there is one. `merges_stderr`: its standard error is a part of its
    /// standard output.
    #[pyo3(signature = (wanted, opened=None, merges_stderr=false))]
    fn start(
        &self,
        wanted: SessionSpec,
        opened: Option<&Opened>,
        merges_stderr: bool,
    ) -> PyResult<Operation> {
        let opened = match opened {
            None => None,
            Some(opened) => {
                let closed = || PyValueError::new_err("the session was closed, or is in use");
                Some(opened.take()?.ok_or_else(closed)?)
            }
        };
        self.operation(|process, held| async move {
            let options = SessionOptions {
                merges_stderr,
                ..wanted.into()
            };
            let started = held.way.start_in(opened, &options, ALL_OF_PYTHON, None);
            Ok(Session::new(process, started.await?))
        })
    }

    /// Opens an SFTP session.
    fn sftp(&self) -> PyResult<Operation> {
        self.operation(|process, held| async move { Ok(Sftp::new(process, held.way.sftp().await?)) })
    }

    /// Opens a TCP connection from the server, for somebody at `originator`.
    fn tunnel(&self, host: String, port: u16, originator: (String, u16)) -> PyResult<Operation> {
        self.operation(move |process, held| async move {
            let originator = (originator.0.as_str(), originator.1);
            let tunnel = held.way.tcp(&host, port, originator).await?;
            Ok(Session::tunnel(process, tunnel))
        })
    }

    /// Has the server listen.
    fn listen(&self, address: Address) -> PyResult<Operation> {
        let listen = address.listen();
        self.operation(move |process, held| async move {
            let listener = held.way.listen(&listen).await?;
            let shared = Listening {
                port: listener.port(),
                listener: Mutex::new(Some(listener)),
                closing: Notify::new(),
            };
            Ok(Listener {
                inner: OfProcess::new((process, Arc::new(shared))),
            })
        })
    }

    /// Looks every so many seconds whether the server still answers; 0 for no longer.
    fn keep_alive(&self, interval: f64) -> PyResult<()> {
        let (process, held) = self.inner.get()?;
        let interval = duration(Some(interval))?.filter(|interval| *interval > Duration::ZERO);
        let task = interval.map(|interval| {
            let task = process.runtime.spawn(keep_alive(Arc::downgrade(held), interval));
            task.abort_handle()
        });
        held.keep_alive(task);
        Ok(())
    }

    /// Exchanges keys anew.
    fn rekey(&self) -> PyResult<()> {
        self.inner.get()?.1.connection.rekey();
        Ok(())
    }

    /// Ends its connections at once, with all that runs on them.
    fn close(&self) {
        if let Some((_, held)) = self.inner.here() {
            held.host.end();
        }
    }
}

/// A session in which nothing runs yet, until it is closed or used.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Opened(OfProcess<(Arc<Process>, StdMutex<Option<OpenedSession>>)>);

impl Opened {
    fn take(&self) -> PyResult<Option<OpenedSession>> {
        let (_, session) = self.0.get()?;
        Ok(session.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

#[pymethods]
impl Opened {
    /// Closes it, unless it was used.
    fn close(&self) -> PyResult<()> {
        self.take().map(drop)
    }
}

/// The transport of a connection, if not TCP.
#[derive(FromPyObject)]
pub(crate) enum Over<'py> {
    Channel(Bound<'py, Session>),
    Socket(Bound<'py, Handover>),
}

/// The way of a socket from Python: a descriptor's number can only be trusted by whoever holds it, so it is sent
/// (`socket.send_fds`) over a pair of sockets.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Handover(UnixStream);

#[pymethods]
impl Handover {
    /// The receiver, and the descriptor, which is the caller's, to send to it on.
    #[staticmethod]
    fn pair() -> PyResult<(Self, i32)> {
        let (here, there) = UnixStream::pair()?;
        Ok((Self(here), there.into_raw_fd()))
    }
}

impl Handover {
    /// Takes the socket that was sent, for `login` to talk over.
    fn receive(&self, login: Login) -> PyResult<Login> {
        let socket = self.descriptor()?;
        let family = sockopt::socket_domain(&socket).map_err(std::io::Error::from)?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(std::io::Error::from)?;
        Ok(if family == AddressFamily::UNIX {
            login.with_stream(tokio::net::UnixStream::from_std(socket.into())?)
        } else {
            login.with_stream(tokio::net::TcpStream::from_std(socket.into())?)
        })
    }

    fn descriptor(&self) -> PyResult<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0; 1];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(
            self.0.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            flags,
        )
        .map_err(std::io::Error::from)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut received) = message
                && let Some(descriptor) = received.next()
            {
                return Ok(descriptor);
            }
        }
        Err(PyValueError::new_err("no socket was handed over"))
    }
}

/// A Python callable's opinion on host keys.
struct Verifier(Arc<Py<PyAny>>);

impl HostKeyVerifier for Verifier {
    fn verify<'a>(
        &'a self,
        host: &'a str,
        key: &'a [u8],
        files: Result<(), HostKeyError>,
    ) -> Verification<'a> {
        let callable = self.0.clone();
        let (name, blob) = (host.to_owned(), key.to_vec());
        let objection = files
            .err()
            .map(|error| (matches!(error, HostKeyError::Unknown { .. }), error.to_string()));
        Box::pin(async move {
            // Python may block: on the GIL, or because it asks a person.
            let judged = tokio::task::spawn_blocking(move || {
                Python::attach(|py| {
                    let blob = pyo3::types::PyBytes::new(py, &blob);
                    let opinion = callable.bind(py).call1((name, blob, objection));
                    opinion
                        .and_then(|opinion| opinion.is_truthy())
                        .unwrap_or_else(|error| {
                            error.write_unraisable(py, Some(callable.bind(py)));
                            false
                        })
                })
            });
            match judged.await {
                Ok(true) => Ok(()),
                _ => Err(refused_by_program(host, key)),
            }
        })
    }
}

/// A key in memory.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Key(KeyFile);

#[pymethods]
impl Key {
    /// The key in `content`, in any format of a key file; a public key picks one of the agent's. `name` is for messages.
    #[new]
    fn new(name: &str, content: Vec<u8>) -> PyResult<Self> {
        let key = KeyFile::in_memory(name, content.into());
        key.map(Self)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Returns whether it needs a passphrase.
    fn is_encrypted(&self) -> bool {
        self.0.is_encrypted()
    }

    /// Returns whether the private half is in it.
    fn is_private(&self) -> bool {
        self.0.has_private_half()
    }

    /// Type, blob and comment of the public half, as far as it can be read without a passphrase.
    fn public(&self) -> Option<(String, Data, String)> {
        let public = self.0.public_key()?;
        Some((
            public.algorithm.clone(),
            public.blob.clone().into(),
            public.comment.clone(),
        ))
    }

    /// Opens the private half: type, blob and comment. `ValueError` says why it cannot be opened.
    #[pyo3(signature = (passphrase=None))]
    fn unlock(&self, py: Python<'_>, passphrase: Option<&str>) -> PyResult<(String, Data, String)> {
        let opened = py.detach(|| self.0.unlock(passphrase, 0));
        let public = opened
            .map_err(|error| PyValueError::new_err(error.to_string()))?
            .public_key()
            .clone();
        Ok((public.algorithm, public.blob.into(), public.comment))
    }

    /// Gives the private half to the agent that listens on `socket`, unless it has it, for `lifetime` seconds if they are
    /// told. Returns the public half as a line.
    #[pyo3(signature = (socket, passphrase=None, lifetime=None))]
    fn add_to_agent(
        &self,
        py: Python<'_>,
        socket: PathBuf,
        passphrase: Option<&str>,
        lifetime: Option<f64>,
    ) -> PyResult<Operation> {
        let process = Process::current(py)?;
        let constraints = Constraints {
            lifetime: duration(lifetime)?,
            ..Constraints::default()
        };
        let opened = py.detach(|| self.0.unlock(passphrase, 0));
        let key = opened.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Operation::new(&process, async move {
            let given = async {
                let mut agent = Agent::connect(&socket).await?;
                let public = key.public_key();
                let held = agent.identities().await?;
                if !held.iter().any(|identity| identity.blob == public.blob) {
                    agent.add(&key, None, &public.comment, constraints).await?;
                }
                Ok(public.to_line())
            };
            given
                .await
                .map_err(|error: AgentError| Failure::local(error.to_string()))
        }))
    }

    /// Returns whether the key has signed `data`; `signature` is encoded as in RFC 4253 section 6.6. An encrypted key
    /// cannot say.
    fn has_signed(&self, py: Python<'_>, data: &[u8], signature: &[u8]) -> bool {
        py.detach(|| {
            self.0
                .public_key()
                .is_some_and(|key| key.has_signed(data, signature))
        })
    }

    /// Signs as RFC 4253 section 6.6 encodes signatures.
    #[pyo3(signature = (data, algorithm, passphrase=None))]
    fn sign(
        &self,
        py: Python<'_>,
        data: Vec<u8>,
        algorithm: &str,
        passphrase: Option<&str>,
    ) -> PyResult<Data> {
        let signature = py.detach(|| self.0.unlock(passphrase, 0)?.sign(algorithm, &data));
        let signature = signature.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(bytes::Bytes::from(signature).into())
    }
}

/// An address that the server listens on.
#[pyclass(frozen, module = "trunkline._native")]
pub(crate) struct Listener {
    inner: OfProcess<(Arc<Process>, Arc<Listening>)>,
}

struct Listening {
    port: Option<u16>,
    /// Held while a client is waited for; `None` once it is closed.
    listener: Mutex<Option<trunkline_embed::Listener>>,
    /// Has whoever waits let go.
    closing: Notify,
}

#[pymethods]
impl Listener {
    /// The port, also where 0 was asked for.
    fn port(&self) -> PyResult<Option<u16>> {
        Ok(self.inner.get()?.1.port)
    }

    /// The next client and where it comes from, as `address:port`; `None` when the listening has ended.
    fn next(&self) -> PyResult<Operation> {
        self.inner.operation(|process, listening| async move {
            let mut listener = listening.listener.lock().await;
            let Some(open) = listener.as_mut() else {
                return Ok(None);
            };
            let incoming = tokio::select! {
                incoming = open.next() => incoming,
                () = listening.closing.notified() => None,
            };
            let Some(incoming) = incoming else {
                return Ok(None);
            };
            let originator = incoming.originator().to_owned();
            let tunnel = incoming.accept().await?;
            Ok(Some((Session::tunnel(process, tunnel), originator)))
        })
    }

    /// Ends the listening.
    fn close(&self) -> PyResult<Operation> {
        self.inner.operation(|_, listening| async move {
            listening.closing.notify_one();
            if let Some(listener) = listening.listener.lock().await.take() {
                listener.close().await;
            }
            Ok(())
        })
    }
}
