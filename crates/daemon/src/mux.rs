//! OpenSSH's mux protocol, server side: stock ssh, and whatever runs it, uses the engine's connections through nothing
//! but `ControlPath` (OpenSSH's PROTOCOL.mux; mux.c has both sides).
//!
//! If a request cannot be served, the client is sent away where it falls back to a connection of its own: before the
//! answer to its hello (host key, authentication, network), or by a failure in answer to its request.

mod client;
mod forwards;
mod info;
mod packets;
mod peer;
mod proxy;
mod session;
mod wire;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, test_kill_process};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::config::{ControlMaster, HostConfig, SharingKey, World};
use trunkline::interaction::Presence;
use trunkline::{Engine, Error, Host, Interaction, Invalid};
use trunkline_control::own_socket::{self, OwnSocket};

use crate::observed::activities::Activities;
use crate::observed::metrics::Metrics;
use crate::observed::recording::Recordings;
use crate::place::{Place, make_private};
use crate::protocol::HostRequest;
use crate::reports::engine_request;
use crate::reports::unusable_directory;
use crate::stop::Stop;
use forwards::Forwards;
use trunkline_audit::Audit;

/// Returns true if a packet from a client can be decoded, as [`packets`] does.
pub(crate) fn decodes(packet: &[u8]) -> bool {
    wire::Request::decode(packet).is_ok()
}

/// Returns true if a packet from a client in proxy mode can be decoded.
pub(crate) fn decodes_proxied(packet: &bytes::Bytes) -> bool {
    proxy::decodes(packet)
}

/// The mux sockets of a daemon, one for each destination that asked for one.
pub(crate) struct Sockets {
    engine: Engine,
    directory: PathBuf,
    clients: TaskTracker,
    stop: Stop,
    activities: Arc<Activities>,
    metrics: Arc<Metrics>,
    audit: Arc<Audit>,
    recordings: Arc<Recordings>,
    /// The lock is held for a look-up or while a socket is created.
    table: Mutex<HashMap<PathBuf, Arc<Socket>>>,
}

/// The socket for the clients of one destination.
struct Socket {
    path: PathBuf,
    forwards: Arc<Forwards>,
    /// Guards the socket's owner and its failures.
    state: Mutex<State>,
}

struct State {
    /// The latest request.
    request: Arc<HostRequest>,
    /// The first request with these settings. Its forwarding settings apply to clients that have sent none, like the
    /// settings that an OpenSSH master was started with.
    made_by: Arc<HostRequest>,
    /// The resolved request, as of its last use.
    host: Arc<HostConfig>,
    /// Requests that may meet this key use the socket; each is served by its own settings.
    key: SharingKey,
    /// `None` when stopped.
    listening: Option<Listening>,
    /// Clients that are being served.
    clients: usize,
    /// Clients that were sent to this socket, by process id, while these processes exist.
    expected: HashMap<u32, Expected>,
    /// The last failure to reach the host: its time, the sharing key and the error.
    failed: Option<(Instant, SharingKey, Error)>,
}

/// A client that was sent to a socket.
struct Expected {
    request: Arc<HostRequest>,
    /// The host that the client means.
    host: Arc<HostConfig>,
    since: Instant,
}

/// A listening socket, for display.
pub(crate) struct Listed {
    pub(crate) path: PathBuf,
    pub(crate) host: Arc<HostConfig>,
    pub(crate) key: SharingKey,
}

/// A socket's file and the task that accepts its clients. Dropping it ends both.
struct Listening {
    file: OwnSocket,
    stop: CancellationToken,
}

/// The longest path that stock ssh can use on every system: one less than BSD's `sun_path`, the shortest, holds.
const MAX_PATH: usize = 103;

/// After a failed connection stock ssh goes its own way for this long without waiting first. Otherwise a host that
/// needs a password would fail before each command.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// The time for which a socket stays reserved after a client was sent to it. The client comes at once.
const EXPECTED: Duration = Duration::from_secs(10);

/// The time for which a request for a socket waits for the host to fail. `trunkline up` gives up after 180 ms.
const QUICK_FAILURE: Duration = Duration::from_millis(100);

/// The pause after a failed accept, most likely for want of file descriptors: clients that end release some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Sockets {
    pub(crate) fn new(
        engine: Engine,
        place: &Place,
        (clients, stop): (TaskTracker, Stop),
        (activities, metrics): (Arc<Activities>, Arc<Metrics>),
        (audit, recordings): (Arc<Audit>, Arc<Recordings>),
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            directory: place.mux(),
            clients,
            stop,
            activities,
            metrics,
            audit,
            recordings,
            table: Mutex::default(),
        })
    }

    /// Serves a host's clients at `path`, unless that is so already, and begins to connect. Without a path the host's
    /// ControlPath must be in our directory. `client` is the process that will come, if known. With `strictly`, through
    /// which the user can be asked, stock ssh must not connect by itself: this returns when the connection is made,
    /// however long that takes.
    ///
    /// # Errors
    /// The host needs the system's ssh, or could not be reached a moment ago. The path cannot be used, or belongs to
    /// another host.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        request: HostRequest,
        path: Option<PathBuf>,
        client: Option<u32>,
        strictly: Option<&Interaction>,
    ) -> Result<(), Error> {
        let presence = PresenceGuard::default();
        let nobody = Interaction::none().while_present(presence.0.clone());
        let asking = strictly.unwrap_or(&nobody);
        let host = self.engine.host_for(&engine_request(&request), asking).await?;
        let request = Arc::new(request);
        let path = match path {
            Some(path) => path,
            None => self.control_path(host.config())?,
        };
        check_path(&path)?;
        let key = host.config().sharing_key();
        let known = self.table().get(&path).cloned();
        if let Some(socket) = known
            && !socket.state().key.may_meet(&key)
        {
            // The configuration may have changed since the earlier request.
            let earlier = socket.request();
            if let Ok(config) = self.engine.resolve(&engine_request(&earlier)).await {
                socket.means(&config);
            }
        }
        let socket = self.claim(&request, host.config(), &path, client)?;
        let begun = match strictly {
            Some(_) if host.is_warm() => Ok(()),
            Some(_) => socket.connect(&host).await,
            None => socket.begin(&host, &presence.0).await,
        };
        if let (Err(_), Some(client)) = (&begun, client) {
            socket.state().expected.remove(&client);
        }
        presence.0.decide(begun.is_ok());
        begun
    }

    /// Returns the path at which stock ssh will look for a master, if it is in our directory.
    fn control_path(&self, host: &HostConfig) -> Result<PathBuf, Error> {
        let Some(path) = &host.control_path else {
            return Err(Error::configuration(
                host,
                "its configuration has no ControlPath, or `ControlPath none`",
            ));
        };
        // A slash in the user's or the host's name would lead elsewhere.
        if path.parent() != Some(&self.directory) {
            return Err(Error::configuration(
                host,
                format!(
                    "its ControlPath is {}, not in {}",
                    path.display(),
                    self.directory.display()
                ),
            ));
        }
        // With `auto`, ssh removes a socket that refuses it and listens in its place.
        if host.control_master != ControlMaster::No {
            return Err(Error::configuration(
                host,
                "its ControlMaster is to be ssh itself",
            ));
        }
        Ok(path.clone())
    }

    /// Returns the socket at `path`, listening for clients of this host.
    fn claim(
        self: &Arc<Self>,
        request: &Arc<HostRequest>,
        host: &Arc<HostConfig>,
        path: &Path,
        client: Option<u32>,
    ) -> Result<Arc<Socket>, Error> {
        let key = host.sharing_key();
        let mut table = self.table();
        let socket = table.entry(path.to_owned()).or_insert_with(|| {
            Arc::new(Socket {
                path: path.to_owned(),
                forwards: Arc::default(),
                state: Mutex::new(State {
                    request: request.clone(),
                    made_by: request.clone(),
                    host: host.clone(),
                    key,
                    listening: None,
                    clients: 0,
                    expected: HashMap::new(),
                    failed: None,
                }),
            })
        });
        let socket = socket.clone();
        let mut state = socket.state();
        let meets = state.key.may_meet(&key);
        if !meets {
            let in_use = state.clients > 0 || state.expects_others(key) || self.is_connected(state.key);
            if in_use {
                return Err(Error::OtherSettings(path.display().to_string()));
            }
            (state.key, state.failed) = (key, None);
            state.made_by = request.clone();
        }
        if !meets || state.key == key {
            // The name in an earlier request may mean another host by now.
            (state.request, state.host) = (request.clone(), host.clone());
        }
        if !state.stands() {
            state.listening = None;
            state.listening = Some(self.listen_at(&socket, host)?);
        }
        state.expect(client, request, host);
        drop(state);
        Ok(socket)
    }

    /// Listens at a socket's path, and serves its clients.
    fn listen_at(self: &Arc<Self>, socket: &Arc<Socket>, host: &HostConfig) -> Result<Listening, Error> {
        if self.stop.request().is_some() {
            return Err(Error::Closed {
                host: host.original_host.clone(),
                why: "the daemon is ending".into(),
            });
        }
        if socket.path.parent() == Some(&self.directory) {
            make_private(&self.directory).map_err(unusable_directory)?;
        }
        let (listener, listening) = bind(&socket.path)?;
        let accepting = self
            .clone()
            .accept(socket.clone(), listener, listening.stop.clone());
        tokio::spawn(accepting);
        Ok(listening)
    }

    /// Returns true if there are connections that clients with this key may use.
    fn is_connected(&self, key: SharingKey) -> bool {
        let hosts = self.engine.status();
        hosts
            .iter()
            .any(|host| host.key.may_meet(&key) && !host.lanes.is_empty())
    }

    async fn accept(self: Arc<Self>, socket: Arc<Socket>, listener: UnixListener, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (sockets, socket) = (self.clone(), socket.clone());
                    self.clients.spawn(async move {
                        let served = Served::new(&socket);
                        if let Err(error) = client::serve(stream, &sockets, &socket).await {
                            tracing::warn!(path = %socket.path.display(), "a mux client was dropped: {error}");
                        }
                        drop(served);
                    });
                }
                Err(error) => {
                    tracing::warn!(path = %socket.path.display(), "cannot accept mux clients: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Resolves the host that a socket's client means with the current configuration: by the client's own settings if
    /// it was sent here with some.
    async fn host(&self, socket: &Socket, client: Option<u32>) -> Result<Host, Error> {
        let own = socket.state().expected_request(client);
        let is_own = own.is_some();
        let request = own.unwrap_or_else(|| socket.request());
        let host = self
            .engine
            .host_for(&engine_request(&request), &Interaction::none())
            .await?;
        if !is_own {
            socket.means(host.config());
        }
        Ok(host)
    }

    /// Resolves the host for a client's forwarding, by the client's own settings if it has sent any. Also returns the
    /// directory of its relative paths.
    async fn host_of(&self, socket: &Socket, client: Option<u32>) -> Result<(Host, PathBuf), Error> {
        let request = socket.state().request_of(client);
        let asked = engine_request(&request);
        let host = self.engine.host_for(&asked, &Interaction::none()).await?;
        Ok((host, request.world.cwd.clone()))
    }

    /// Returns true if clients with this environment must not make connections of their own.
    fn must_share(&self, socket: &Socket, client: Option<&World>) -> bool {
        let host = socket.state().host.clone();
        match client {
            Some(world) => self.engine.must_share(&host, world),
            None => self.engine.must_share(&host, &socket.request().world),
        }
    }

    /// Returns true if the user allows a client's request, or need not be asked.
    async fn allows(&self, socket: &Socket, client: Option<u32>, question: &str) -> bool {
        let allowed = match self.host(socket, client).await {
            Ok(host) => host.confirm_each_use(question).await,
            // Requests that need the host fail by themselves; the socket can still be closed.
            Err(_) if !self.engine.confirms_use(&socket.state().host) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = &allowed {
            tracing::info!(path = %socket.path.display(), "{error}");
        }
        allowed.is_ok()
    }

    /// Returns every listening socket, by path.
    pub(crate) fn listening(&self) -> Vec<Listed> {
        let listed = |socket: &Arc<Socket>| {
            let state = socket.state();
            state.listening.is_some().then(|| Listed {
                path: socket.path.clone(),
                host: state.host.clone(),
                key: state.key,
            })
        };
        let mut listening: Vec<_> = self.table().values().filter_map(listed).collect();
        listening.sort_by(|a, b| a.path.cmp(&b.path));
        listening
    }

    /// Closes the socket and the connections of its host, with everything that runs on them, like an OpenSSH master
    /// that is told to exit. The daemon continues.
    async fn terminate(&self, socket: &Socket) {
        socket.stop();
        socket.forwards.abort().await;
        let key = socket.state().key;
        self.engine.close(true, |host| host.sharing_key().may_meet(&key));
    }

    /// Accepts no more clients, and removes the sockets' files.
    pub(crate) fn close(&self) {
        for socket in self.table().values() {
            socket.stop();
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<Socket>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self) -> Arc<HostRequest> {
        self.state().request.clone()
    }

    /// Returns the host as it was typed.
    fn name(&self) -> String {
        self.state().host.original_host.clone()
    }

    /// Returns true if this process was sent here for another host, or other settings, than the socket serves now.
    fn is_for_another(&self, process: u32) -> bool {
        let state = self.state();
        let meant = state.expected.get(&process).map(|one| one.host.sharing_key());
        meant.is_some_and(|meant| !meant.may_meet(&state.key))
    }

    /// Accepts no more clients, and removes the socket's file. Connected clients are served to their end.
    fn stop(&self) {
        self.state().listening = None;
    }

    /// Notes what the request resolves to now.
    fn means(&self, host: &Arc<HostConfig>) {
        let mut state = self.state();
        if !Arc::ptr_eq(&state.host, host) {
            (state.host, state.key) = (host.clone(), host.sharing_key());
        }
    }

    /// Begins to connect in the background.
    async fn begin(self: &Arc<Self>, host: &Host, presence: &Arc<Presence>) -> Result<(), Error> {
        if host.is_warm() {
            return Ok(());
        }
        if let Some(error) = self.recent_failure(host.config().sharing_key()) {
            return Err(error);
        }
        let (socket, host, waits) = (self.clone(), host.clone(), presence.clone());
        let connecting = tokio::spawn(async move {
            let connected = socket.connect(&host).await;
            if waits.has_left() {
                // It failed because the client left, which says nothing about the next attempt.
                socket.state().failed = None;
            }
            connected
        });
        // Stock ssh could wait for the connection just as well, but complains if it is sent away then.
        tokio::select! {
            connected = connecting => connected.unwrap_or(Ok(())),
            () = tokio::time::sleep(QUICK_FAILURE) => Ok(()),
            () = presence.wait_until_wanted() => Ok(()),
        }
    }

    /// Connects, and remembers a failure.
    async fn connect(&self, host: &Host) -> Result<(), Error> {
        let result = host.warm().await;
        self.state().failed = match &result {
            Ok(()) => None,
            Err(error) => {
                tracing::info!(path = %self.path.display(), "stock ssh goes its own way: {error}");
                Some((Instant::now(), host.config().sharing_key(), error.clone()))
            }
        };
        result
    }

    fn recent_failure(&self, of: SharingKey) -> Option<Error> {
        let state = self.state();
        let (at, key, error) = state.failed.as_ref()?;
        (*key == of && at.elapsed() < AFTER_FAILURE).then(|| error.clone())
    }
}

impl State {
    /// Returns true if the socket listens and its file still exists.
    fn stands(&self) -> bool {
        self.listening
            .as_ref()
            .is_some_and(|listening| listening.file.stands())
    }

    /// Notes a client that was sent here, and forgets those that have ended.
    fn expect(&mut self, client: Option<u32>, request: &Arc<HostRequest>, host: &Arc<HostConfig>) {
        self.expected.retain(|process, _| exists(*process));
        if let Some(process) = client {
            let expected = Expected {
                request: request.clone(),
                host: host.clone(),
                since: Instant::now(),
            };
            self.expected.insert(process, expected);
        }
    }

    /// Returns the request that a client was sent here with.
    fn expected_request(&self, client: Option<u32>) -> Option<Arc<HostRequest>> {
        let expected = self.expected.get(&client?)?;
        Some(expected.request.clone())
    }

    fn request_of(&self, client: Option<u32>) -> Arc<HostRequest> {
        self.expected_request(client)
            .unwrap_or_else(|| self.made_by.clone())
    }

    /// Returns true if a client is on its way here for a host with other settings.
    fn expects_others(&self, key: SharingKey) -> bool {
        let is_other = |(process, expected): (&u32, &Expected)| {
            let is_another = !expected.host.sharing_key().may_meet(&key);
            expected.since.elapsed() < EXPECTED && is_another && exists(*process)
        };
        self.expected.iter().any(is_other)
    }
}

/// Returns true if there is a process of this id.
fn exists(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// A client that is being served.
struct Served(Arc<Socket>);

impl Served {
    fn new(socket: &Arc<Socket>) -> Self {
        socket.state().clients += 1;
        Self(socket.clone())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.state().clients -= 1;
    }
}

/// The client for which a connection is being made. Dropping it means that the client has left, unless that was decided
/// before.
#[derive(Default)]
struct PresenceGuard(Arc<Presence>);

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.0.decide(false);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn check_path(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(Invalid::NotAbsolute(format!("the mux socket's path {shown}")).into());
    }
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(Invalid::LongSocket {
            path: shown.to_string(),
            length,
            longest: MAX_PATH,
        }
        .into());
    }
    Ok(())
}

/// Returns true if another process listens at `path`. A full queue belongs to one, too.
fn is_served(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let answer = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
    Ok(matches!(answer, Ok(()) | Err(rustix::io::Errno::AGAIN)))
}

/// Listens at `path`, which must be free or a dead daemon's socket. The caller holds the daemon's lock and has checked
/// for its own living socket.
fn bind(path: &Path) -> Result<(UnixListener, Listening), Error> {
    let failed = |error: io::Error| Error::local(format!("cannot listen on {}", path.display()), error);
    let directory = path.parent().unwrap_or(Path::new("/"));
    let found = directory.metadata().map_err(failed)?;
    if found.uid() != rustix::process::getuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(Invalid::OpenDirectory(directory.display().to_string()).into());
    }
    match path.symlink_metadata() {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::Busy(format!(
                "{} is not a socket: move it away",
                path.display()
            )));
        }
        Ok(_) if is_served(path).map_err(failed)? => {
            return Err(Error::Busy(format!(
                "another program, an ssh perhaps, serves {} already",
                path.display()
            )));
        }
        _ => {}
    }
    let (listener, file) = own_socket::listen_anew(path).map_err(failed)?;
    let listening = Listening {
        file,
        stop: CancellationToken::new(),
    };
    Ok((listener, listening))
}
