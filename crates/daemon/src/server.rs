//! The daemon: one engine behind a control socket.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use trunkline::config::{HostConfig, SharingKey};
use trunkline::interaction::{LogLine, MessageKind};
use trunkline::memory::HostId;
use trunkline::prompt::{Answer, Answerer, Prompt, Prompter};
use trunkline::tune::{self, Choice};
use trunkline::{Absence, Engine, Error, HostStatus, Interaction, Invalid, Printable};
use trunkline_control::private::Connections;
use trunkline_control::{lent, own_socket};
use trunkline_http::metrics::Metrics as _;
use trunkline_request::{CallersTerminal, Lend, Line};
use zeroize::Zeroizing;

use crate::claim::{Claim, PeerError, check_peer};
use crate::deadline::Deadline;
use crate::installed::Installed;
use crate::mux;
use crate::observed::activities::{Activities, OfClient};
use crate::observed::metrics::{Decline, Metrics, Stock};
use crate::observed::recording::Recordings;
use crate::observed::subscription::{self, ClientView};
use crate::openssh::Masters;
use crate::place::Place;
use crate::protocol::{
    Departure, Explanation, Failure, HostReport, HostRequest, Reply, Request, SessionRequest, Transport,
    VERSION,
};
use crate::reports::{address, engine_request};
use crate::requests::completing;
use crate::requests::copy;
use crate::requests::lists;
use crate::requests::tuning;
use crate::session;
use crate::session::asked::Asked;
use crate::session::listening::Waiting;
use crate::session::log::Log;
use crate::session::observers::Observers;
use crate::socket::{FrameError, FrameReader, FrameWriter, split};
use crate::status;
use crate::stop::Stop;
use trunkline_audit::{Audit, Recorder, Subject};

/// The time for which running sessions may continue after the daemon was asked to stop.
const DRAIN_LIMIT: Duration = Duration::from_secs(3600);

/// The interval at which the daemon checks that it still owns its place: half as long as clients wait for a daemon that
/// holds the lock.
const LOOK: Duration = Duration::from_secs(5);

/// The time limit for a client's hello. Our clients send it at once.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// The state that all clients share.
#[derive(Clone)]
struct Service {
    engine: Engine,
    place: Place,
    /// `None` in a private daemon, which has no place that another could take.
    installed: Option<Arc<Installed>>,
    /// True if a service manager holds the socket.
    is_activated: bool,
    stop: Stop,
    /// `None` in a private daemon.
    mux: Option<Arc<mux::Sockets>>,
    /// `None` in a private daemon.
    masters: Option<Arc<Masters>>,
    /// Connections from servers that any client may take.
    waiting: Arc<Waiting>,
    /// The time at which the daemon began to serve.
    since: SystemTime,
    /// Rates that copies share.
    rates: Arc<copy::Rates>,
    metrics: Arc<Metrics>,
    activities: Arc<Activities>,
    audit: Arc<Audit>,
    recordings: Arc<Recordings>,
}

impl Service {
    /// Returns true if this daemon gives way to one of an updated program. Under a service manager the new daemon
    /// starts only after this one has ended, so it first lets running work finish.
    fn makes_room(&self) -> bool {
        let installed = self.installed.as_ref();
        installed.is_some_and(|installed| installed.is_replaced())
            && !(self.is_activated && self.activities.are_any())
    }

    /// Serves stock ssh at a socket; see [`mux::Sockets::listen`].
    async fn listen(
        &self,
        host: HostRequest,
        path: Option<PathBuf>,
        client: Option<u32>,
        strictly: Option<&Interaction>,
    ) -> Result<Reply, Error> {
        let mux = self.mux.as_ref().ok_or(Invalid::NoDaemon)?;
        mux.listen(host, path, client, strictly).await?;
        Ok(Reply::Done)
    }

    /// Counts a socket for stock ssh that could not be created.
    fn count_declined(&self, reply: &Reply) {
        if let Reply::Failed(failure) = reply {
            self.metrics.decline_mux(Stock::Up, Decline::Failed(failure.kind));
        }
    }
}

/// Calls `ready`, then serves clients until `shutdown` completes or a client asks the daemon to stop. Afterwards it
/// waits for sessions to end.
///
/// # Errors
/// The audit trail or the recordings cannot be started.
pub async fn run(
    mut claim: Claim,
    engine: Engine,
    ready: impl FnOnce(),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    engine.lend();
    let stop = Stop::new();
    let clients = TaskTracker::new();
    let audit = Audit::start(&claim.place, engine.settings())?;
    engine.mark_audited();
    ready();
    let activities = Activities::new();
    let recordings = Recordings::start(&claim.place, &engine)?;
    let serving = (clients.clone(), stop.clone());
    let recording = (audit.clone(), recordings.clone());
    let since = SystemTime::now();
    let metrics = Arc::new(Metrics::new(&engine, since, &audit, &recordings));
    let mux = mux::Sockets::new(
        engine.clone(),
        &claim.place,
        serving,
        (activities.clone(), metrics.clone()),
        recording,
    );
    let masters = Arc::new(Masters::new(&claim.place, engine.clone()));
    let port = engine.settings().metrics_port;
    let (listener, metrics_socket) = own_socket::for_metrics(&claim.place.metrics()).unzip();
    let serving_metrics = trunkline_http::metrics::serve(metrics.clone(), listener, port);
    let serving_metrics = AbortOnDropHandle::new(tokio::spawn(serving_metrics));
    let service = Service {
        engine: engine.clone(),
        place: claim.place.clone(),
        installed: Some(Arc::new(Installed::find())),
        is_activated: claim.is_activated(),
        stop: stop.clone(),
        mux: Some(mux.clone()),
        masters: Some(masters.clone()),
        waiting: Arc::default(),
        since,
        rates: Arc::default(),
        metrics,
        activities,
        audit: audit.clone(),
        recordings: recordings.clone(),
    };
    let mut shutdown = std::pin::pin!(shutdown);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                    // Probably out of file descriptors. Clients that end release some.
                    tracing::warn!("cannot accept clients: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            _ = looks.tick() => if !claim.hold() {
                let place = claim.place.runtime.display();
                tracing::warn!("{place} is not this daemon's any more: it ends when its sessions have");
                break;
            },
            () = stop.wait() => break,
            () = &mut shutdown => break,
        }
    }
    // The place is free from here on: a new daemon can start while sessions end here.
    let at_once = stop.request().unwrap_or(false);
    stop.ask(at_once);
    mux.close();
    drop((serving_metrics, metrics_socket));
    drop(claim);
    clients.close();
    let limit = if at_once { Duration::ZERO } else { DRAIN_LIMIT };
    let _ = tokio::time::timeout(limit, clients.wait()).await;
    masters.close(at_once, |_| true).await;
    if at_once {
        stop.copies_ended().await;
    }
    engine
        .shut_down(Duration::from_secs(if at_once { 0 } else { 5 }))
        .await;
    // Lets clients hear how their sessions ended.
    let _ = tokio::time::timeout(TOLD, clients.wait()).await;
    recordings.stop().await;
    audit.stop().await;
    Ok(())
}

/// Serves one program, on the connections that it hands over, until it has ended. Work that is still running then has
/// `settle` to end.
///
/// # Errors
/// As [`run`].
pub async fn run_private(
    mut connections: Connections,
    place: Place,
    engine: Engine,
    settle: Duration,
) -> Result<(), Error> {
    let clients = TaskTracker::new();
    let audit = Audit::start(&place, engine.settings())?;
    engine.mark_audited();
    let recordings = Recordings::start(&place, &engine)?;
    let since = SystemTime::now();
    let service = Service {
        engine: engine.clone(),
        place,
        installed: None,
        is_activated: false,
        stop: Stop::new(),
        mux: None,
        masters: None,
        waiting: Arc::default(),
        since,
        rates: Arc::default(),
        metrics: Arc::new(Metrics::new(&engine, since, &audit, &recordings)),
        activities: Activities::new(),
        audit: audit.clone(),
        recordings: recordings.clone(),
    };
    while let Some(stream) = connections.next().await {
        let service = service.clone();
        clients.spawn(async move {
            if let Err(error) = serve(stream, &service).await {
                tracing::warn!("a client was dropped: {error}");
            }
        });
    }
    clients.close();
    let _ = tokio::time::timeout(settle / 2, clients.wait()).await;
    engine.shut_down(settle / 2).await;
    recordings.stop().await;
    audit.stop().await;
    Ok(())
}

/// The reason why a client was dropped.
#[derive(Debug, thiserror::Error)]
enum Dropped {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it did not begin with hello")]
    NoHello,
    #[error("it left before it was answered")]
    Left,
}

/// Serves one client.
async fn serve(stream: UnixStream, service: &Service) -> Result<(), Dropped> {
    check_peer(&stream)?;
    let activity = OfClient::new(&service.activities, &stream, false);
    let recorder = Recorder::for_stream(&service.audit, &stream);
    let (mut reader, writer) = split(stream);
    let Some(protocol) = greet(&mut reader, &writer, service).await? else {
        return Ok(());
    };
    let (replies, mut outgoing) = mpsc::channel::<Reply>(16);
    // Interactions with this client, and connections made for it, may hold `replies` longer than the request runs. So
    // the end of the conversation decides, not the last sender.
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
            activity.handle_reply(&reply);
            let sent = match &reply {
                Reply::Lend { line: Some(line) } => writer.send_with(&reply, &[line.as_fd()]).await,
                reply => writer.send(reply).await,
            };
            if sent.is_err() {
                break;
            }
        }
        // Closes the queue, so that no sender waits for room in it.
        outgoing.close();
    };
    let talking = async {
        let result = talk(&mut reader, protocol, service, (&activity, &recorder), &replies).await;
        over.notify_one();
        result
    };
    let (result, ()) = tokio::join!(talking, sending);
    result
}

/// Answers a client's hello and returns its protocol version, or `None` if the client left or never spoke. A client
/// that was not welcomed knows that nothing was started.
///
/// A daemon whose program was updated welcomes no one: its sessions end, and the client starts a daemon of the new
/// program.
async fn greet(
    reader: &mut FrameReader,
    writer: &FrameWriter,
    service: &Service,
) -> Result<Option<u32>, Dropped> {
    let hello = async {
        tokio::select! {
            biased;
            hello = reader.next::<Request>() => hello,
            () = service.stop.after_last_request() => Ok(None),
        }
    };
    let protocol = match tokio::time::timeout(HELLO_LIMIT, hello).await {
        Ok(Ok(Some(Request::Hello { protocol, .. }))) => protocol,
        Ok(Ok(Some(_))) => return Err(Dropped::NoHello),
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(None)) | Err(_) => return Ok(None),
    };
    if service.makes_room() {
        if service.stop.request().is_none() {
            tracing::info!("trunklined was updated: no new clients; waiting for running sessions");
            service.stop.ask(false);
        }
        return Ok(None);
    }
    let welcome = Reply::Welcome {
        protocol: VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        vantage: Some(service.engine.vantage().clone()),
    };
    // A client that has left needs no welcome.
    Ok(writer.send(&welcome).await.is_ok().then_some(protocol))
}

/// Serves a welcomed client's requests one after the other.
async fn talk(
    reader: &mut FrameReader,
    protocol: u32,
    service: &Service,
    (activity, recorder): (&OfClient, &Recorder),
    replies: &mpsc::Sender<Reply>,
) -> Result<(), Dropped> {
    let Service { stop, .. } = service;
    let terminal = CallersTerminal::new(Arc::new(ClientsTerminal(replies.downgrade())));
    loop {
        // An idle client does not delay the daemon's shutdown.
        let request = tokio::select! {
            biased;
            request = reader.next::<Request>() => request?,
            () = stop.after_last_request() => break,
        };
        let Some(mut request) = request else { break };
        for world in request.worlds_mut() {
            world.terminal = terminal.clone();
        }
        if protocol != VERSION && !matches!(request, Request::Stop { .. }) {
            break;
        }
        activity.handle_request(&request);
        let reply = match request {
            Request::Session(session) => {
                let fds = reader.take_fds();
                let last = serve_session(reader, service, (activity, recorder), *session, fds, replies).await;
                activity.handle_end(&last);
                send(replies, last).await?;
                break;
            }
            Request::Warm { .. } | Request::Copy(_) | Request::Tune(_) | Request::MuxListen { .. } => {
                work(reader, service, recorder, request, replies).await
            }
            Request::Subscribe { every } => {
                tell(reader, service, every, replies).await?;
                break;
            }
            Request::Stop { at_once } => {
                send(replies, Reply::Done).await?;
                stop.ask(at_once);
                break;
            }
            request => match answer(service, recorder, request).await {
                Some(reply) => reply,
                None => continue,
            },
        };
        activity.handle_end(&reply);
        send(replies, reply).await?;
    }
    Ok(())
}

/// Serves requests that may ask the user questions.
async fn work(
    reader: &mut FrameReader,
    service: &Service,
    recorder: &Recorder,
    request: Request,
    replies: &mpsc::Sender<Reply>,
) -> Reply {
    let Service { engine, .. } = service;
    match request {
        Request::Warm { host, pin } => {
            let (asked, masters) = ((answerer(&host), Duration::ZERO), service.masters.as_deref());
            serve_questions(reader, replies, asked, async |interaction, _| {
                warm(engine, masters, &host, pin, interaction).await
            })
            .await
        }
        Request::Copy(copy) => {
            let fds = reader.take_fds();
            let entry = recorder.entry(Subject::copy(&copy));
            let asked = (Answerer::Person, Duration::ZERO);
            let stopped = copy::describe_stop(&copy);
            let last = serve_questions(reader, replies, asked, async |interaction, _| {
                let copying = copy::run(engine, &service.rates, *copy, fds, interaction, replies, &entry);
                service.stop.copy(copying).await.unwrap_or(Err(stopped))
            })
            .await;
            entry.end_by(&last);
            service.metrics.copy(&last);
            last
        }
        Request::MuxListen { host, path, client } => {
            let asked = (answerer(&host), Duration::ZERO);
            // If the client leaves, the work stops: no one waits for its result.
            let last = serve_questions(reader, replies, asked, async |interaction, _| {
                let strictly = must_share(engine, &host).await.then_some(interaction);
                service.listen(host, path, client, strictly).await
            })
            .await;
            service.count_declined(&last);
            last
        }
        Request::Tune(tune) => {
            let entry = recorder.entry(Subject::new("tune", &tune.host.destination.host));
            let asked = (answerer(&tune.host), LEAVING);
            let last = serve_questions(reader, replies, asked, async |interaction, stop| {
                entry.begin(|subject| subject).await?;
                tuning::run(engine, *tune, interaction, stop, replies).await
            })
            .await;
            entry.end_by(&last);
            last
        }
        _ => outcome(Err(Error::Bug("this needs no questions"))),
    }
}

/// The terminal of a client that is connected.
struct ClientsTerminal(mpsc::WeakSender<Reply>);

impl Lend for ClientsTerminal {
    fn line(&self) -> Line<'_> {
        Box::pin(async {
            let (ours, theirs) = lent::line().ok()?;
            let line = Some(Arc::new(theirs));
            self.0.upgrade()?.send(Reply::Lend { line }).await.ok()?;
            Some(ours)
        })
    }
}

async fn send(replies: &mpsc::Sender<Reply>, reply: Reply) -> Result<(), Dropped> {
    replies.send(reply).await.map_err(|_| Dropped::Left)
}

/// Sends a client the current state and its changes until the client says anything else or leaves, or the daemon stops.
async fn tell(
    reader: &mut FrameReader,
    service: &Service,
    every: Duration,
    replies: &mpsc::Sender<Reply>,
) -> Result<(), Dropped> {
    let mut told = ClientView::default();
    let mut ticks = subscription::ticks(every);
    let telling = async {
        loop {
            ticks.tick().await;
            let hosts = all_hosts(service).await;
            for update in told.moment(hosts, &service.activities) {
                send(replies, Reply::Update(Box::new(update))).await?;
            }
        }
    };
    tokio::select! {
        told = telling => told,
        _ = reader.next::<Request>() => Ok(()),
        () = service.stop.wait() => Ok(()),
    }
}

/// Answers requests that need no questions to the user. Returns `None` for leftovers of a session that has ended.
async fn answer(service: &Service, recorder: &Recorder, request: Request) -> Option<Reply> {
    let Service {
        engine, place, mux, ..
    } = service;
    let masters = service.masters.as_deref();
    Some(match request {
        Request::MeasureMachine { each } => outcome(tuning::machine(each).await),
        Request::Choices => tuning::choices(engine).await,
        Request::Tuned { host, choice } => outcome(tuning::remember(engine, &host, choice.as_ref()).await),
        Request::Masters { of, action } => {
            let served = crate::requests::masters::serve(engine, place, &of, action).await;
            outcome(served.map(Reply::Masters))
        }
        Request::Aliases {
            pattern,
            world,
            config_file,
        } => outcome(lists::aliases(&pattern, &world, config_file.as_deref())),
        Request::HostNames {
            prefix,
            world,
            config_file,
        } => outcome(completing::host_names(
            engine,
            &prefix,
            &world,
            config_file.as_deref(),
        )),
        Request::RemoteNames {
            host,
            directory,
            prefix,
        } => {
            let subject = Subject::new("listing", &host.destination.host).with_target(&directory);
            let entry = recorder.entry(subject);
            let listed = async {
                entry.begin(|subject| subject).await?;
                completing::remote_names(engine, &host, &directory, &prefix).await
            };
            let reply = outcome(listed.await);
            entry.end_by(&reply);
            reply
        }
        Request::Inventory(request) => outcome(lists::inventory(&request).await),
        Request::ConfigFile => outcome(lists::config_file()),
        Request::MustShare(host) => {
            let request = engine_request(&host);
            let config = engine.resolve(&request).await;
            outcome(config.map(|config| Reply::MustShare(engine.must_share(&config, &request.world))))
        }
        Request::List => Reply::Hosts(all_hosts(service).await),
        Request::Metrics { open_metrics } => Reply::Metrics(match open_metrics {
            true => service.metrics.open_metrics(),
            false => service.metrics.text(),
        }),
        Request::Status => {
            let status = status::of_this_process(engine, place, mux.as_deref(), service.since);
            Reply::Status(Box::new(status))
        }
        Request::Check(host) => outcome(check(engine, masters, &host, &service.activities).await),
        Request::Explain(host) => outcome(explain(engine, masters, &host).await),
        Request::Forget(host) => outcome(forget(engine, &host).await),
        Request::CloseShared { sharing, at_once } => close_shared(engine, masters, &sharing, at_once).await,
        Request::Close { host, at_once } => outcome(close(engine, masters, host.as_ref(), at_once).await),
        _ => return None,
    })
}

/// Connects to a host, through the system's ssh if the host needs it.
async fn warm(
    engine: &Engine,
    masters: Option<&Masters>,
    host: &HostRequest,
    pin: bool,
    interaction: &Interaction,
) -> Result<Reply, Error> {
    let request = engine_request(host);
    let connected = match (engine.host_for(&request, interaction).await, masters) {
        (Err(Error::NeedsSystemSsh { .. }), Some(masters)) => {
            let config = engine.resolve(&request).await?;
            masters.warm(&config, host, pin).await?;
            return Ok(Reply::Done);
        }
        (host, _) => host?,
    };
    connected.warm().await?;
    if pin {
        connected.pin(true);
    }
    Ok(Reply::Done)
}

/// Returns true if the host may only be reached over shared connections. False if the host cannot be resolved; that
/// fails elsewhere.
async fn must_share(engine: &Engine, host: &HostRequest) -> bool {
    let request = engine_request(host);
    let config = engine.resolve(&request).await;
    config.is_ok_and(|config| engine.must_share(&config, &request.world))
}

fn outcome(result: Result<Reply, Error>) -> Reply {
    result.unwrap_or_else(|error| Reply::Failed(error.into()))
}

/// Runs a session and reads its client's frames meanwhile.
async fn serve_session(
    reader: &mut FrameReader,
    service: &Service,
    (activity, recorder): (&OfClient, &Recorder),
    request: SessionRequest,
    fds: Vec<OwnedFd>,
    replies: &mpsc::Sender<Reply>,
) -> Reply {
    service.metrics.session(&request.program);
    let subject = Subject::session(&request.host.destination.host, &request.program)
        .on_behalf(request.on_behalf.as_ref());
    let entry = recorder.entry(subject);
    let (log, mut lines) = Log::new();
    let for_ssh = request.ssh.is_some().then_some(&log);
    let answerer = match request.answers {
        true => answerer(&request.host),
        false => Answerer::Nobody,
    };
    let (asking, interaction) = asking(replies, answerer, for_ssh);
    let (inputs, session_inputs) = mpsc::channel(16);
    let asked = Asked {
        request: &request,
        deadline: request.limit.map(Deadline::from_limit),
        interaction: &interaction,
        replies,
        terminated: CancellationToken::new(),
        detached: AtomicBool::new(false),
        observers: &Observers::new((&entry, activity), for_ssh, &service.recordings, &service.engine),
        engine: &service.engine,
        masters: service.masters.as_deref(),
        waiting: &service.waiting,
    };
    let mut running = std::pin::pin!(session::run(&asked, fds, session_inputs));
    tokio::select! {
        // Log lines go first, so that they precede the result.
        biased;
        never = lines.pass_on(replies) => match never {},
        last = &mut running => {
            lines.pass_on_rest(replies).await;
            return last;
        }
        () = listen(reader, &asking, &asked, inputs) => {}
    }
    // Before a session starts, nothing reads its inputs: a client that leaves then takes its request with it.
    if asked.detached.load(Ordering::Relaxed) {
        running.await
    } else {
        tokio::time::timeout(LEAVING, running)
            .await
            .unwrap_or(Reply::Done)
    }
}

/// Passes on a client's messages about its session until the client leaves.
async fn listen(
    reader: &mut FrameReader,
    asking: &AskedClient,
    asked: &Asked<'_>,
    inputs: mpsc::Sender<Request>,
) {
    while let Ok(Some(frame)) = reader.next::<Request>().await {
        match frame {
            Request::Answer(answer) => {
                asking.answer(answer);
                continue;
            }
            Request::Background => asked.detached.store(true, Ordering::Relaxed),
            // A login that waits for an answer is aborted.
            Request::Terminate => {
                asking.leave();
                asked.terminated.cancel();
            }
            _ => {}
        }
        // The inputs have no reader while a session's leftovers are waited for.
        let _ = inputs.send(frame).await;
    }
    // The client is gone. The session notices the end of its inputs.
    asking.leave();
}

/// The time that clients get to read how their sessions ended when the daemon stops at once.
const TOLD: Duration = Duration::from_secs(1);

/// The time limit for a session to end after its client has left.
const LEAVING: Duration = Duration::from_secs(5);

/// Runs `work`, which may ask the user questions and is notified when its client wants it to stop. If the client
/// leaves, the work has `leaving` to end.
async fn serve_questions(
    reader: &mut FrameReader,
    replies: &mpsc::Sender<Reply>,
    (answerer, leaving): (Answerer, Duration),
    work: impl AsyncFnOnce(&Interaction, &Notify) -> Result<Reply, Error>,
) -> Reply {
    let (asking, interaction) = asking(replies, answerer, None);
    let stop = Notify::new();
    let listening = async {
        while let Ok(Some(frame)) = reader.next::<Request>().await {
            match frame {
                Request::Answer(answer) => asking.answer(answer),
                Request::Terminate => {
                    asking.leave();
                    stop.notify_one();
                }
                _ => {}
            }
        }
        asking.leave();
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

/// Questions to a client, one at a time.
struct Asking {
    state: Mutex<Questions>,
    turn: tokio::sync::Mutex<()>,
}

/// The lock is held only for a look.
struct Questions {
    pending: Option<oneshot::Sender<Option<String>>>,
    replies: mpsc::Sender<Reply>,
    /// `Answerer::Nobody` once the request has ended or the client has left: a connection that the request began may
    /// ask something later.
    answerer: Answerer,
}

/// Returns the sender of questions and messages to a client. A client with a log stands for ssh: warnings, banners and
/// log lines are kept apart from notices.
fn asking(
    replies: &mpsc::Sender<Reply>,
    answerer: Answerer,
    log: Option<&Log>,
) -> (AskedClient, Interaction) {
    let asking = Arc::new(Asking {
        state: Mutex::new(Questions {
            pending: None,
            replies: replies.clone(),
            answerer,
        }),
        turn: tokio::sync::Mutex::default(),
    });
    let (notices, log) = (replies.clone(), log.cloned());
    // A client that does not read its notices loses them. The log has them as well.
    let interaction = Interaction::telling(asking.clone(), move |told, text| {
        let text = text.to_owned();
        let reply = match (told, &log) {
            (MessageKind::Log(level), Some(log)) => {
                let at = SystemTime::now();
                return log.write(LogLine { at, level, text });
            }
            (MessageKind::Log(_), None) => return,
            (MessageKind::Warning, Some(_)) => Reply::Warning(text),
            (MessageKind::Banner, Some(_)) => Reply::Banner(text),
            (MessageKind::Proxy, Some(_)) => Reply::Proxy(text),
            _ => Reply::Notice(text),
        };
        if let Reply::Notice(text) | Reply::Warning(text) = &reply {
            tracing::info!("{text}");
        }
        let _ = notices.try_send(reply);
    });
    let waits = replies.clone();
    let interaction = interaction.showing(move |waiting| {
        let _ = waits.try_send(Reply::Waiting(waiting.cloned()));
    });
    (AskedClient(asking), interaction)
}

/// The client, for as long as its request lives.
struct AskedClient(Arc<Asking>);

impl AskedClient {
    fn answer(&self, answer: Option<String>) {
        self.0.answer(answer);
    }

    /// Stops asking the client: it has left or wants no more of it.
    fn leave(&self) {
        self.0.state().answerer = Answerer::Nobody;
        self.0.answer(None);
    }
}

impl Drop for AskedClient {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns who answers questions about a request.
fn answerer(host: &HostRequest) -> Answerer {
    match host.answers_at_hand {
        true => Answerer::Program,
        false => Answerer::Person,
    }
}

impl Asking {
    fn state(&self) -> MutexGuard<'_, Questions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: Option<String>) {
        let pending = self.state().pending.take();
        if let Some(pending) = pending {
            let _ = pending.send(answer);
        }
    }
}

impl Prompter for Asking {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let (answer, answered) = oneshot::channel();
            let replies = {
                let mut state = self.state();
                if state.answerer == Answerer::Nobody {
                    return None;
                }
                state.pending = Some(answer);
                state.replies.clone()
            };
            replies.send(Reply::Ask(prompt.clone())).await.ok()?;
            drop(replies);
            answered.await.ok().flatten().map(Zeroizing::new)
        })
    }

    fn answerer(&self) -> Answerer {
        self.state().answerer
    }
}

/// Returns a host's configuration if the system's ssh has to connect to it.
async fn for_openssh(
    engine: &Engine,
    request: &trunkline::config::Request,
) -> Result<Option<Arc<HostConfig>>, Error> {
    let config = engine.resolve(request).await?;
    Ok((!engine.reasons_for_system_ssh(&config).is_empty()).then_some(config))
}

async fn check(
    engine: &Engine,
    masters: Option<&Masters>,
    host: &HostRequest,
    activities: &Activities,
) -> Result<Reply, Error> {
    let asked = engine_request(host);
    if let (Some(masters), Some(config)) = (masters, for_openssh(engine, &asked).await?) {
        masters.check(&config, &asked.world).await?;
        return Ok(Reply::Checked { rtt: None });
    }
    let config = engine.resolve(&asked).await?;
    if engine.find_connected(&config).is_none() {
        if let Some(last) = activities.last_failure_to_reach(&host.destination.host) {
            let host = &host.destination.host;
            let message = format!("{host}: no connection; the last attempt failed: {}", last.message);
            return Ok(Reply::Failed(Failure::new(last.kind, message)));
        }
        return Err(Error::NotConnected {
            host: config.original_host.clone(),
            why: Absence::Unmade,
        });
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
        return Ok(close_chosen(engine, masters, at_once, |_| true).await);
    };
    let config = engine.resolve(&engine_request(host)).await?;
    Ok(close_chosen(engine, masters, at_once, |other| config.is_same_account(other)).await)
}

/// Closes the connections with this sharing key.
async fn close_shared(engine: &Engine, masters: Option<&Masters>, sharing: &str, at_once: bool) -> Reply {
    let same = |host: &HostConfig| host.sharing_key().to_string() == sharing;
    close_chosen(engine, masters, at_once, same).await
}

async fn close_chosen(
    engine: &Engine,
    masters: Option<&Masters>,
    at_once: bool,
    choose: impl Fn(&HostConfig) -> bool,
) -> Reply {
    let mut closed = engine.close(at_once, &choose);
    if let Some(masters) = masters {
        closed.now += masters.close(at_once, &choose).await;
    }
    Reply::Closed(closed)
}

/// Forgets what earlier connections to a host have shown, and waits until that is on disk.
async fn forget(engine: &Engine, host: &HostRequest) -> Result<Reply, Error> {
    let config = engine.resolve(&engine_request(host)).await?;
    engine.memory().forget(&HostId::from_config(&config));
    tuning::flush(engine).await;
    Ok(Reply::Done)
}

async fn explain(engine: &Engine, masters: Option<&Masters>, host: &HostRequest) -> Result<Reply, Error> {
    let asked = engine_request(host);
    let mut config = engine.resolve(&asked).await?;
    let mut reasons = engine.reasons_for_system_ssh(&config);
    // `trunkline ssh` runs the local command itself.
    reasons.retain(|reason| reason.directive != "localcommand");
    if !reasons.is_empty() {
        config = config.through_ssh(&asked.world);
    }
    let departures = engine.departures(&asked).await?;
    let key = config.sharing_key();
    let status = engine.find_connected(&config);
    let master = match masters {
        Some(masters) => masters.report(&key).await,
        None => None,
    };
    let facts = engine.memory().facts(&HostId::from_config(&config));
    let mut memory = Vec::new();
    let choice = tune::recall(engine.memory(), &config);
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
        add(
            "round trip",
            facts.rtt.map(|rtt| format!("{:.2} ms", rtt.as_secs_f64() * 1e3)),
        );
        add("tuned for copies", choice.as_ref().map(Choice::describe));
        add("key that worked", key);
        let lessons: Vec<_> = facts
            .lessons
            .iter()
            .map(|(lesson, number)| lesson.describe(number))
            .collect();
        add("learnt", (!lessons.is_empty()).then(|| lessons.join("; ")));
    }
    Ok(Reply::Explained(Box::new(Explanation {
        address: address(&config),
        transport: match reasons.is_empty() {
            true => Transport::Native,
            false => Transport::OpenSsh,
        },
        reasons: reasons.into_iter().map(|reason| reason.to_string()).collect(),
        sharing: config
            .explain_sharing()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        log_in: config
            .explain_log_in()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        sharing_key: key.to_string(),
        memory,
        departures: departures
            .into_iter()
            .map(|departure| Departure {
                keyword: departure.keyword,
                values: departure.values,
                usual: departure.usual,
            })
            .collect(),
        pinned: status.as_ref().is_some_and(|status| status.pinned),
        connections: status
            .iter()
            .flat_map(|status| &status.lanes)
            .map(|lane| lane.report.clone())
            .collect(),
        master,
    })))
}

/// Returns reports on all hosts that have something to show.
async fn all_hosts(service: &Service) -> Vec<HostReport> {
    let mut hosts = list(&service.engine, service.mux.as_deref());
    if let Some(masters) = &service.masters {
        hosts.extend(masters.list().await);
    }
    note_differences(&mut hosts);
    let mut hosts: Vec<_> = hosts.into_iter().map(|(report, _)| report).collect();
    for host in &mut hosts {
        host.resumed = service.activities.resumptions(&host.name);
    }
    hosts
}

/// Returns the hosts with connections, and those that stock ssh may connect to at any time, each with its
/// configuration.
fn list(engine: &Engine, mux: Option<&mux::Sockets>) -> Vec<(HostReport, Arc<HostConfig>)> {
    let mut sockets = mux.map(mux::Sockets::listening).unwrap_or_default();
    let mut hosts: Vec<(HostReport, Arc<HostConfig>)> = Vec::new();
    for HostStatus {
        key,
        host,
        pinned,
        lanes,
        ..
    } in engine.status()
    {
        if lanes.is_empty() && !pinned {
            continue;
        }
        let own = sockets.extract_if(.., |socket| socket.key.may_meet(&key));
        let report = HostReport {
            mux_sockets: own.map(|socket| socket.path).collect(),
            pinned,
            connections: lanes.into_iter().map(|lane| lane.report).collect(),
            ..host_report(&host, key)
        };
        hosts.push((report, host));
    }
    for socket in sockets {
        let sharing = socket.key.to_string();
        match hosts.iter_mut().find(|(host, _)| host.sharing == sharing) {
            Some((host, _)) => host.mux_sockets.push(socket.path),
            None => {
                let report = HostReport {
                    mux_sockets: vec![socket.path],
                    ..host_report(&socket.host, socket.key)
                };
                hosts.push((report, socket.host));
            }
        }
    }
    hosts
}

/// Limits on the text about differences, since one frame may have many rows. `explain` shows everything.
const MOST_DIFFERENCES: usize = 12;
const LONGEST_DIFFERENCE: usize = 100;

/// Notes, on each row of the same account, the settings in which the rows differ.
fn note_differences(hosts: &mut [(HostReport, Arc<HostConfig>)]) {
    let mut accounts: HashMap<String, Vec<usize>> = HashMap::new();
    for (row, (report, _)) in hosts.iter().enumerate() {
        accounts.entry(report.address.clone()).or_default().push(row);
    }
    for rows in accounts.into_values().filter(|rows| rows.len() > 1) {
        let explained: Vec<BTreeMap<_, _>> = rows
            .iter()
            .map(|row| &hosts[*row].1)
            .map(|host| {
                host.explain_sharing()
                    .into_iter()
                    .chain(host.explain_log_in())
                    .collect()
            })
            .collect();
        let names: BTreeSet<_> = explained.iter().flat_map(BTreeMap::keys).copied().collect();
        let differ = |name: &&str| {
            explained
                .iter()
                .any(|row| row.get(name) != explained[0].get(name))
        };
        let names: Vec<_> = names.into_iter().filter(differ).take(MOST_DIFFERENCES).collect();
        for (row, values) in rows.into_iter().zip(&explained) {
            let value = |name: &str| {
                let value = values.get(name).map_or("", String::as_str);
                (
                    name.to_owned(),
                    Printable::short_line(value, LONGEST_DIFFERENCE).into_string(),
                )
            };
            hosts[row].0.differs = names.iter().copied().map(value).collect();
        }
    }
}

/// Returns a report without connections.
fn host_report(host: &HostConfig, key: SharingKey) -> HostReport {
    HostReport {
        sharing: key.to_string(),
        ..HostReport::new(&host.original_host, address(host), Transport::Native)
    }
}
