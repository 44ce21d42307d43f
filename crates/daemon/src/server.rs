//! The daemon: one engine behind a control socket.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::config::{HostConfig, SharingKey};
use trunkline::interaction::Told;
use trunkline::memory::HostId;
use trunkline::prompt::{Answer, Prompt, PromptKind, Prompter};
use trunkline::tune::{self, Choice};
use trunkline::{Engine, Error, HostStatus, Interaction};
use trunkline_control::private::Connections;
use zeroize::Zeroizing;

use crate::copy;
use crate::listening::Waiting;
use crate::lists;
use crate::mux;
use crate::openssh::Masters;
use crate::place::{Place, PlaceError, words};
use crate::protocol::{Explanation, HostReport, HostRequest, Reply, Request, SessionRequest, VERSION};
use crate::reports::{address, connection_report, engine_request, failure};
use crate::session;
use crate::socket::{FrameReader, FrameWriter, split};
use crate::tuning;

/// How long running sessions may go on after the daemon was asked to end.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(3600);

/// How long a client may take to introduce itself, which ours do at once.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// How long a client may take to make its request once the daemon is ending.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No folder for it.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Another one runs.
    #[error("a daemon is running already for {0}")]
    Running(PathBuf),
    /// Something else has the socket's name. Deleting it is not ours to decide.
    #[error("{0} is not a socket: move it away")]
    Foreign(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen on {path}: {}", words(.error))]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The daemon's hold on its place: the lock and the socket.
#[derive(Debug)]
pub struct Claim {
    listener: UnixListener,
    place: Place,
    _lock: std::fs::File,
}

impl Claim {
    /// Takes the lock and listens. Whoever has the lock owns the socket, so that a file found there is a dead daemon's.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn take(place: &Place) -> Result<Self, StartError> {
        place.make()?;
        let failed = |path: PathBuf| move |error| StartError::Listen { path, error };
        let lock = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(place.lock())
            .map_err(failed(place.lock()))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StartError::Running(place.runtime.clone()))?;
        let socket = place.socket();
        match std::fs::symlink_metadata(&socket) {
            Ok(found) if !found.file_type().is_socket() => return Err(StartError::Foreign(socket)),
            Ok(_) => std::fs::remove_file(&socket).map_err(failed(socket.clone()))?,
            Err(_) => {}
        }
        // The folder's mode keeps others out; the socket's own does so again.
        let listener = UnixListener::bind(&socket).map_err(failed(socket.clone()))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&socket, mode).map_err(failed(socket.clone()))?;
        Ok(Self {
            listener,
            place: place.clone(),
            _lock: lock,
        })
    }
}

/// What every client is served with.
#[derive(Clone)]
struct Service {
    engine: Engine,
    place: Place,
    /// Says that the daemon is ending, and whether without waiting for sessions.
    stop: watch::Sender<Option<bool>>,
    /// `None` where there is no daemon.
    mux: Option<Arc<mux::Sockets>>,
    /// The same.
    masters: Option<Arc<Masters>>,
    /// Connections from servers, which any client may take.
    waiting: Arc<Waiting>,
}

/// Serves clients until `shutdown` is done or a client asks to stop; then lets sessions end.
pub async fn run(claim: Claim, engine: Engine, shutdown: impl Future<Output = ()>) {
    engine.lend();
    let (stop, mut stopped) = watch::channel(None::<bool>);
    let clients = TaskTracker::new();
    let mux = mux::Sockets::new(engine.clone(), &claim.place, clients.clone(), stop.clone());
    let masters = Arc::new(Masters::new(&claim.place, engine.clone()));
    let service = Service {
        engine: engine.clone(),
        place: claim.place.clone(),
        stop: stop.clone(),
        mux: Some(mux.clone()),
        masters: Some(masters.clone()),
        waiting: Arc::default(),
    };
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            accepted = claim.listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let service = service.clone();
                    clients.spawn(async move {
                        if let Err(error) = serve(stream, &service).await {
                            tracing::warn!("a client was dropped: {error}");
                        }
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: clients that end give some back.
                    tracing::warn!("cannot accept clients: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            _ = stopped.changed() => break,
            () = &mut shutdown => break,
        }
    }
    // The place is free from here on: a new daemon can start while sessions end here.
    let at_once = stopped.borrow().unwrap_or(false);
    stop.send_replace(Some(at_once));
    mux.close();
    let _ = std::fs::remove_file(claim.place.socket());
    drop(claim);
    clients.close();
    let limit = if at_once { Duration::ZERO } else { DRAIN_LIMIT };
    let _ = tokio::time::timeout(limit, clients.wait()).await;
    masters.close(at_once, |_| true).await;
    engine
        .shut_down(Duration::from_secs(if at_once { 0 } else { 5 }))
        .await;
}

/// Serves one program, on the connections that it hands over, until it has ended and what it had under way has, too: for
/// that there is so much time.
pub async fn run_private(mut connections: Connections, place: Place, engine: Engine, settle: Duration) {
    let (stop, _) = watch::channel(None);
    let clients = TaskTracker::new();
    let service = Service {
        engine: engine.clone(),
        place,
        stop,
        mux: None,
        masters: None,
        waiting: Arc::default(),
    };
    while let Some(stream) = connections.next().await {
        let service = service.clone();
        clients.spawn(async move {
            if let Err(error) = serve(stream, &service).await {
                tracing::warn!("{error}");
            }
        });
    }
    clients.close();
    let _ = tokio::time::timeout(settle / 2, clients.wait()).await;
    engine.shut_down(settle / 2).await;
}

/// Serves one client of an engine that lives in the client's own process.
pub(crate) fn serve_in_process(stream: UnixStream, place: Place, engine: Engine) {
    let (stop, _) = watch::channel(None);
    let service = Service {
        engine,
        place,
        stop,
        mux: None,
        masters: None,
        waiting: Arc::default(),
    };
    tokio::spawn(async move {
        if let Err(error) = serve(stream, &service).await {
            tracing::warn!("{error}");
        }
    });
}

/// Serves one client.
async fn serve(stream: UnixStream, service: &Service) -> anyhow::Result<()> {
    check_peer(&stream)?;
    let (mut reader, writer) = split(stream);
    let Some(protocol) = greet(&mut reader, &writer, service).await? else {
        return Ok(());
    };
    let (replies, mut outgoing) = mpsc::channel::<Reply>(16);
    // Whoever may ask this client questions holds on to `replies`, and a connection that it made does so for as long as
    // that lasts: the end of the talk, not that of the senders, is the end.
    let over = Notify::new();
    let sending = async {
        loop {
            let reply = tokio::select! {
                biased;
                reply = outgoing.recv() => reply,
                () = over.notified() => {
                    outgoing.close();
                    continue;
                }
            };
            let Some(reply) = reply else { break };
            if writer.send(&reply).await.is_err() {
                break;
            }
        }
        // Nobody waits for room in a queue that is not emptied any more.
        outgoing.close();
    };
    let talking = async {
        let result = talk(&mut reader, protocol, service, &replies).await;
        over.notify_one();
        result
    };
    let (result, ()) = tokio::join!(talking, sending);
    result
}

/// Nobody but the owner of the daemon is served, whatever the modes of folder and socket.
pub(crate) fn check_peer(stream: &UnixStream) -> anyhow::Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != rustix::process::getuid().as_raw() {
        anyhow::bail!("uid {} is not the daemon's", peer.uid());
    }
    Ok(())
}

/// Welcomes a client that says hello, and returns the version of its protocol; `None` where it has left again, or never
/// spoke. The welcome has left by then: a client that was not welcomed knows that nothing was begun.
async fn greet(
    reader: &mut FrameReader,
    writer: &FrameWriter,
    service: &Service,
) -> anyhow::Result<Option<u32>> {
    let hello = async {
        tokio::select! {
            biased;
            hello = reader.next::<Request>() => hello,
            () = ending(&service.stop) => Ok(None),
        }
    };
    let protocol = match tokio::time::timeout(HELLO_LIMIT, hello).await {
        Ok(Ok(Some(Request::Hello { protocol, .. }))) => protocol,
        Ok(Ok(Some(_))) => anyhow::bail!("it did not say hello"),
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(None)) | Err(_) => return Ok(None),
    };
    let welcome = Reply::Welcome {
        protocol: VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        vantage: Some(service.engine.vantage().clone()),
    };
    // Whoever has left again wants no welcome.
    Ok(writer.send(&welcome).await.is_ok().then_some(protocol))
}

async fn talk(
    reader: &mut FrameReader,
    protocol: u32,
    service: &Service,
    replies: &mpsc::Sender<Reply>,
) -> anyhow::Result<()> {
    let Service {
        engine,
        stop,
        mux,
        masters,
        ..
    } = service;
    let masters = masters.as_deref();
    loop {
        // A client with nothing under way does not hold up the daemon's end.
        let request = tokio::select! {
            biased;
            request = reader.next::<Request>() => request?,
            () = ending(stop) => break,
        };
        let Some(request) = request else { break };
        if protocol != VERSION && !matches!(request, Request::Stop { .. }) {
            break;
        }
        let reply = match request {
            Request::Session(session) => {
                let fds = reader.take_fds();
                let last = serve_session(reader, service, *session, fds, replies).await;
                replies.send(last).await?;
                break;
            }
            Request::Warm { host, pin } => {
                serve_questions(reader, replies, Duration::ZERO, async |interaction, _| {
                    let asked = engine_request(&host);
                    let host = match (engine.host_for(&asked, interaction).await, masters) {
                        (Err(Error::NeedsSystemSsh { .. }), Some(masters)) => {
                            let config = engine.resolve(&asked).await?;
                            masters.warm(&config, &host, pin).await?;
                            return Ok(Reply::Done);
                        }
                        (host, _) => host?,
                    };
                    host.warm().await?;
                    if pin {
                        host.pin(true);
                    }
                    Ok(Reply::Done)
                })
                .await
            }
            Request::Copy(copy) => {
                let fds = reader.take_fds();
                serve_questions(reader, replies, Duration::ZERO, async |interaction, _| {
                    copy::run(engine, *copy, fds, interaction, replies).await
                })
                .await
            }
            Request::Tune(tune) => {
                serve_questions(reader, replies, LEAVING, async |interaction, stop| {
                    tuning::run(engine, *tune, interaction, stop, replies).await
                })
                .await
            }
            Request::MeasureMachine { each } => outcome(tuning::machine(each).await),
            Request::Choices => tuning::choices(engine).await,
            Request::Masters { of, action } => {
                let served = crate::masters::serve(engine, &service.place, &of, action).await;
                outcome(served.map(Reply::Masters))
            }
            Request::Aliases {
                pattern,
                world,
                config_file,
            } => outcome(lists::aliases(&pattern, &world, config_file.as_deref())),
            Request::Inventory(request) => outcome(lists::inventory(&request).await),
            Request::ConfigFile => outcome(lists::config_file()),
            Request::MuxListen { host, path } => match mux {
                Some(mux) => outcome(mux.listen(host, path).await.map(|()| Reply::Done)),
                None => outcome(Err(Error::Usage("stock ssh is served by the daemon only".into()))),
            },
            Request::List => {
                let mut hosts = list(engine, mux.as_deref());
                if let Some(masters) = masters {
                    hosts.extend(masters.list().await);
                }
                Reply::Hosts(hosts)
            }
            Request::Check(host) => outcome(check(engine, masters, &host).await),
            Request::Explain(host) => outcome(explain(engine, &host).await),
            Request::Tuned { host, choice } => {
                outcome(tuning::remember(engine, &host, choice.as_ref()).await)
            }
            Request::Close { host, at_once } => outcome(close(engine, masters, host.as_ref(), at_once).await),
            Request::Stop { at_once } => {
                replies.send(Reply::Done).await?;
                stop.send_replace(Some(at_once));
                break;
            }
            // Leftovers of a session that has ended.
            _ => continue,
        };
        replies.send(reply).await?;
    }
    Ok(())
}

/// Done when the daemon is ending and a client that was just welcomed has had the time to say what it wants.
pub(crate) async fn ending(stop: &watch::Sender<Option<bool>>) {
    drop(stop.subscribe().wait_for(Option::is_some).await);
    tokio::time::sleep(LAST_REQUEST).await;
}

fn outcome(result: Result<Reply, Error>) -> Reply {
    result.unwrap_or_else(|error| Reply::Failed(failure(&error)))
}

/// Runs a session while its client's frames come in.
async fn serve_session(
    reader: &mut FrameReader,
    service: &Service,
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    replies: &mpsc::Sender<Reply>,
) -> Reply {
    let (asking, interaction) = asking(replies, request.answers, request.ssh.is_some());
    let (inputs, session_inputs) = mpsc::channel(16);
    let detached = AtomicBool::new(false);
    let terminated = CancellationToken::new();
    let client = session::Client {
        interaction: &interaction,
        replies,
        inputs: session_inputs,
        terminated: &terminated,
        detached: &detached,
    };
    let masters = service.masters.as_deref();
    let running = session::run(&service.engine, masters, &service.waiting, request, fds, client);
    let mut running = std::pin::pin!(running);
    let listening = async {
        while let Ok(Some(frame)) = reader.next::<Request>().await {
            match frame {
                Request::Answer(answer) => asking.answer(answer),
                frame => {
                    match frame {
                        Request::Background => detached.store(true, Ordering::Relaxed),
                        Request::Terminate => terminated.cancel(),
                        _ => {}
                    }
                    if inputs.send(frame).await.is_err() {
                        break;
                    }
                }
            }
        }
        // The client is gone, which the session learns by the end of its inputs.
        asking.answer(None);
        drop(inputs);
    };
    tokio::select! {
        last = &mut running => return last,
        () = listening => {}
    }
    // Before a session has begun nobody listens to its inputs: a client that leaves then takes its request with it.
    if detached.load(Ordering::Relaxed) {
        running.await
    } else {
        tokio::time::timeout(LEAVING, running)
            .await
            .unwrap_or(Reply::Done)
    }
}

/// How long a session may take to end after its client has left.
const LEAVING: Duration = Duration::from_secs(5);

/// Does something that may ask the user questions, and is told when its client wants it to stop. When the client leaves, that
/// is so much longer under way.
async fn serve_questions(
    reader: &mut FrameReader,
    replies: &mpsc::Sender<Reply>,
    leaving: Duration,
    work: impl AsyncFnOnce(&Interaction, &Notify) -> Result<Reply, Error>,
) -> Reply {
    let (asking, interaction) = asking(replies, true, false);
    let stop = Notify::new();
    let listening = async {
        while let Ok(Some(frame)) = reader.next::<Request>().await {
            match frame {
                Request::Answer(answer) => asking.answer(answer),
                Request::Terminate => stop.notify_one(),
                _ => {}
            }
        }
        asking.answer(None);
        stop.notify_one();
    };
    let mut working = std::pin::pin!(work(&interaction, &stop));
    tokio::select! {
        result = &mut working => return outcome(result),
        () = listening => {}
    }
    if !leaving.is_zero() {
        let _ = tokio::time::timeout(leaving, working).await;
    }
    Reply::Done
}

/// Questions on their way to a client, one at a time.
struct Asking {
    pending: Mutex<Option<oneshot::Sender<Option<String>>>>,
    turn: tokio::sync::Mutex<()>,
    replies: mpsc::Sender<Reply>,
    answers: bool,
}

/// The target of the log's lines for what a client is told, too.
pub const TOLD: &str = "trunkline_daemon::told";

/// Questions and all that is told, on their way to a client that tells warnings and banners from notices, or does not.
fn asking(replies: &mpsc::Sender<Reply>, answers: bool, tells_apart: bool) -> (Arc<Asking>, Interaction) {
    let asking = Arc::new(Asking {
        pending: Mutex::default(),
        turn: tokio::sync::Mutex::default(),
        replies: replies.clone(),
        answers,
    });
    let notices = replies.clone();
    // A client that does not read its notices loses them; they are in the log as well.
    let interaction = Interaction::telling(asking.clone(), move |told, text| {
        if told != Told::Banner {
            tracing::info!(target: TOLD, "{text}");
        }
        let text = text.to_owned();
        let _ = notices.try_send(match told {
            Told::Warning if tells_apart => Reply::Warning(text),
            Told::Banner if tells_apart => Reply::Banner(text),
            _ => Reply::Notice(text),
        });
    });
    (asking, interaction)
}

impl Asking {
    fn answer(&self, answer: Option<String>) {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pending) = pending {
            let _ = pending.send(answer);
        }
    }
}

impl Prompter for Asking {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(async move {
            if !self.answers {
                return None;
            }
            let _turn = self.turn.lock().await;
            let (answer, answered) = oneshot::channel();
            *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            let kind = match prompt.kind {
                PromptKind::Passphrase => "passphrase",
                PromptKind::Password => "password",
                PromptKind::HostKey => "host key",
                PromptKind::Confirm => "confirm",
                _ => "keyboard-interactive",
            };
            let ask = Reply::Ask {
                text: prompt.text.clone(),
                echo: prompt.echo,
                kind: kind.into(),
                host: prompt.host.clone(),
            };
            self.replies.send(ask).await.ok()?;
            answered.await.ok().flatten().map(Zeroizing::new)
        })
    }
}

/// What a host's configuration says, where it is left to the system's ssh.
async fn for_openssh(
    engine: &Engine,
    request: &trunkline::config::Request,
) -> Result<Option<Arc<HostConfig>>, Error> {
    let config = engine.resolve(request).await?;
    Ok((!engine.reasons_for_system_ssh(&config).is_empty()).then_some(config))
}

async fn check(engine: &Engine, masters: Option<&Masters>, host: &HostRequest) -> Result<Reply, Error> {
    let asked = engine_request(host);
    if let (Some(masters), Some(config)) = (masters, for_openssh(engine, &asked).await?) {
        masters.check(&config, &asked.world).await?;
        return Ok(Reply::Checked { rtt: None });
    }
    let config = engine.resolve(&asked).await?;
    let key = config.sharing_key();
    let known = engine
        .status()
        .into_iter()
        .find(|status| status.key == key && !status.lanes.is_empty());
    if known.is_none() {
        let why = "no connection; run `trunkline warm` to make one".to_owned();
        return Err(Error::Usage(format!("{}: {why}", config.original_host)));
    }
    let host = engine
        .host_for(&engine_request(host), &Interaction::none())
        .await?;
    let rtt = host.connection().ping(engine.settings().probe_limit).await?;
    Ok(Reply::Checked { rtt: Some(rtt) })
}

async fn close(
    engine: &Engine,
    masters: Option<&Masters>,
    host: Option<&HostRequest>,
    at_once: bool,
) -> Result<Reply, Error> {
    let Some(host) = host else {
        let mut closed = engine.close(at_once, |_| true);
        if let Some(masters) = masters {
            closed += masters.close(at_once, |_| true).await;
        }
        return Ok(Reply::Closed(closed));
    };
    let config = engine.resolve(&engine_request(host)).await?;
    let same = |other: &HostConfig| config.is_same_account(other);
    let mut closed = engine.close(at_once, same);
    if let Some(masters) = masters {
        closed += masters.close(at_once, same).await;
    }
    Ok(Reply::Closed(closed))
}

async fn explain(engine: &Engine, host: &HostRequest) -> Result<Reply, Error> {
    let asked = engine_request(host);
    let mut config = engine.resolve(&asked).await?;
    let mut reasons = engine.reasons_for_system_ssh(&config);
    // `trunkline ssh` runs it itself.
    reasons.retain(|reason| reason.directive != "localcommand");
    if !reasons.is_empty() {
        config = config.through_ssh(&asked.world);
    }
    let key = config.sharing_key();
    let lanes = engine
        .status()
        .into_iter()
        .find(|status| status.key == key)
        .map(|status| status.lanes);
    let facts = engine
        .memory()
        .facts(&HostId::new(&config.hostname, config.port, &config.user));
    let mut memory = Vec::new();
    let choice = tune::remembered(engine.memory(), &config);
    if let Some(facts) = facts {
        let key = facts.key_fingerprint();
        let mut add = |name: &str, value: Option<String>| {
            memory.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("server", facts.banner);
        add(
            "leads with",
            facts
                .kex_first
                .zip(facts.host_key_first)
                .map(|(kex, key)| format!("{kex}, {key}")),
        );
        add("max sessions", facts.max_sessions.map(|limit| limit.to_string()));
        add(
            "round trip",
            facts.rtt.map(|rtt| format!("{:.1} ms", rtt.as_secs_f64() * 1e3)),
        );
        add("tuned for copies", choice.as_ref().map(Choice::describe));
        add(
            "early KEXINIT",
            facts.early_kexinit_refused.then(|| "refused".into()),
        );
        add("key that worked", key);
    }
    Ok(Reply::Explained(Box::new(Explanation {
        address: address(&config),
        transport: if reasons.is_empty() { "native" } else { "openssh" }.into(),
        reasons: reasons.into_iter().map(|reason| reason.to_string()).collect(),
        sharing: config
            .explain_sharing()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        sharing_key: key.to_string(),
        memory,
        connections: lanes.unwrap_or_default().iter().map(connection_report).collect(),
    })))
}

/// The hosts that have connections, and those that stock ssh may connect to at any time.
fn list(engine: &Engine, mux: Option<&mux::Sockets>) -> Vec<HostReport> {
    let mut sockets = mux.map(mux::Sockets::listening).unwrap_or_default();
    let mut hosts: Vec<HostReport> = Vec::new();
    for HostStatus {
        key,
        host,
        pinned,
        lanes,
    } in engine.status()
    {
        if lanes.is_empty() && !pinned {
            continue;
        }
        let own = sockets.extract_if(.., |socket| socket.key == key);
        hosts.push(HostReport {
            mux_sockets: own.map(|socket| socket.path).collect(),
            pinned,
            connections: lanes.iter().map(connection_report).collect(),
            ..host_report(&host, key)
        });
    }
    for socket in sockets {
        let sharing = socket.key.to_string();
        match hosts.iter_mut().find(|host| host.sharing == sharing) {
            Some(host) => host.mux_sockets.push(socket.path),
            None => hosts.push(HostReport {
                mux_sockets: vec![socket.path],
                ..host_report(&socket.host, socket.key)
            }),
        }
    }
    hosts
}

/// A host without anything.
fn host_report(host: &HostConfig, key: SharingKey) -> HostReport {
    HostReport {
        name: host.original_host.clone(),
        address: address(host),
        transport: "native".into(),
        pinned: false,
        sharing: key.to_string(),
        mux_sockets: Vec::new(),
        connections: Vec::new(),
        master: None,
    }
}
