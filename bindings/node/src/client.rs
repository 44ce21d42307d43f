//! One client of JavaScript: a host with connections of its own, from the first attempt to its end.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use napi::bindgen_prelude::Uint8Array;
use serde_json::{Value, json};
use tokio::sync::{Notify, OnceCell, oneshot, watch};
use tokio_util::sync::CancellationToken;
use trunkline::config::{ForwardAgent, ForwardTarget, HostConfig, Listen};
use trunkline::host_key::HostKeyError;
use trunkline::keys::KeyFile;
use trunkline::prompt::{Answer, Answerer, Answers, Prompt, PromptKind, Prompter, ServerQuestions};
use trunkline::{
    Agreement, Attempt, Authenticator, Connection, Host, HostKeyVerifier, Interaction, KeySigner, Login,
    Method, NewPassword, NextAttempt, Printable, Signing, Verification, WantsProof, refused_by_program,
};
use trunkline_embed::{
    Change, ConnectionHold, ConnectionReport, Destination, Failure, Handshake, Incoming, Listener,
    SessionOptions, Way, Worlds, remove_stale,
};
use zeroize::Zeroizing;

use crate::fault::Fault;
use crate::options::{AttemptMethod, AuthenticationAttempt, ConnectOptions, DestinationOptions, HostKeys};
use crate::outbox::{Kind, Outbox};
use crate::runtime;
use crate::stream::Stream;

/// Towards a JavaScript stream that carries the connection's bytes, so much is held.
const PIPE: usize = 256 * 1024;

/// If connections are shared, the time that streams on the connection which the client has ended may take to learn of that
/// by themselves.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The pause between two attempts to hold the connection that sessions are carried over to.
const PAUSE: Duration = Duration::from_secs(1);

/// A client, which JavaScript holds by its number.
pub(crate) struct Client {
    target: u32,
    outbox: Arc<Outbox>,
    plan: Plan,
    /// Found when it is first needed.
    way: OnceCell<Way>,
    /// The same host, lent the agent.
    lending: OnceCell<Way>,
    program: Arc<Program>,
    /// JavaScript knows that it is ready: what it asked for before may begin.
    told: CancellationToken,
    /// Ends the client.
    cancel: CancellationToken,
    /// The fault that ended it, for the streams that go with it.
    end: OnceLock<Fault>,
    listeners: Mutex<HashMap<u32, CancellationToken>>,
    /// New keys are wanted.
    rekey: Notify,
    /// SFTP sessions that are open.
    sftps: watch::Sender<usize>,
}

/// An open SFTP session of a client.
pub(crate) struct OpenSftp<'a>(&'a Client);

impl Drop for OpenSftp<'_> {
    fn drop(&mut self) {
        self.0.sftps.send_modify(|count| *count -= 1);
    }
}

/// The way to find a client's host.
enum Plan {
    /// The program has said everything.
    Explicit(Host),
    /// A destination of ssh_config.
    Destination(Destination),
}

/// A client that is being made, and what its life needs.
pub(crate) struct Begun {
    pub(crate) client: Arc<Client>,
    /// The other end of the connection's bytes, where JavaScript carries them.
    pub(crate) pipe: Option<tokio::io::DuplexStream>,
    ready_timeout: Option<Duration>,
}

impl Client {
    /// Takes the options; nothing is connected yet.
    ///
    /// # Errors
    /// What cannot be used: a host without a name, a key that is none, algorithms that the engine lacks.
    pub(crate) fn begin(target: u32, options: &ConnectOptions, outbox: &Arc<Outbox>) -> Result<Begun, Fault> {
        let config = options.host_config()?;
        let mut program = Program::new(target, outbox, options.host_keys);
        program.password = options.password.clone().map(Zeroizing::new);
        program.passphrase = Mutex::new(options.passphrase.clone().map(Zeroizing::new));
        let program = Arc::new(program);
        let (login, pipe) = login(options, &config, &program)?;
        let host = runtime::engine()?.private_host(config, login, &program.interaction())?;
        Ok(Begun {
            client: Self::new(target, outbox, Plan::Explicit(host), program),
            pipe,
            ready_timeout: options.ready_timeout(),
        })
    }

    /// Takes a destination of ssh_config; nothing is looked up yet.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn begin_at(
        target: u32,
        options: &DestinationOptions,
        outbox: &Arc<Outbox>,
        worlds: &Worlds,
    ) -> Result<Begun, Fault> {
        let mut program = Program::new(target, outbox, HostKeys::Known);
        program.password = options.password.clone().map(Zeroizing::new);
        program.passphrase = Mutex::new(options.passphrase.clone().map(Zeroizing::new));
        program.answers = options.try_keyboard;
        let answers = options.try_keyboard || options.password.is_some() || options.passphrase.is_some();
        let program = Arc::new(program);
        let plan = Plan::Destination(Destination {
            request: options.request(worlds)?,
            preference: options.preference(),
            interaction: program.interaction(),
            answers,
            on_behalf: None,
        });
        Ok(Begun {
            client: Self::new(target, outbox, plan, program),
            pipe: None,
            ready_timeout: options.ready_timeout(),
        })
    }

    fn new(target: u32, outbox: &Arc<Outbox>, plan: Plan, program: Arc<Program>) -> Arc<Self> {
        Arc::new(Self {
            target,
            outbox: outbox.clone(),
            plan,
            way: OnceCell::new(),
            lending: OnceCell::new(),
            program,
            told: CancellationToken::new(),
            cancel: CancellationToken::new(),
            end: OnceLock::new(),
            listeners: Mutex::default(),
            rekey: Notify::new(),
            sftps: watch::Sender::new(0),
        })
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.target
    }

    /// Returns the way on which its sessions and tunnels are opened, once JavaScript has been told that it is ready.
    pub(crate) async fn way(&self) -> Result<&Way, Failure> {
        tokio::select! {
            biased;
            () = self.told.cancelled() => self.find_way().await,
            () = self.cancel.cancelled() => Err(Failure::closed_locally("connection")),
        }
    }

    async fn find_way(&self) -> Result<&Way, Failure> {
        let find = || async {
            match &self.plan {
                Plan::Explicit(host) => Ok(Way::to_host(host.clone(), &runtime::engine()?)),
                Plan::Destination(destination) => Way::find(destination, async || runtime::engine()).await,
            }
        };
        self.way.get_or_try_init(find).await
    }

    /// The host, where nobody else uses its connections.
    fn own(&self) -> Option<&Host> {
        match &self.plan {
            Plan::Explicit(host) => Some(host),
            Plan::Destination(_) => None,
        }
    }

    /// Returns the way on which a session is opened. One that is to be lent the agent, alone among those of its client,
    /// has a connection that only such sessions share: sshd lends it to all that come after the first which asks.
    pub(crate) async fn way_for(&self, options: &SessionOptions) -> Result<&Way, Failure> {
        match self.own() {
            Some(host) if options.agent_forwarding && host.config().forward_agent == ForwardAgent::No => {
                self.way().await?;
                let lend = async || {
                    let engine = runtime::engine()?;
                    Ok(Way::to_host(engine.lending_agent(host)?, &engine))
                };
                self.lending.get_or_try_init(lend).await
            }
            _ => self.way().await,
        }
    }

    /// Runs a stream's life until it is over or the client ends.
    pub(crate) async fn run_during(&self, stream: &Stream, life: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = life => {}
            fault = self.cuts_off() => stream.cut_off(&fault),
        }
    }

    /// Waits until the client's end cuts off the work under way, and returns the reason. What goes over a connection
    /// that has ended learns of it by itself, behind all that the server had said before. Only where connections are
    /// shared is something left that does not.
    pub(crate) async fn cuts_off(&self) -> Fault {
        self.cancel.cancelled().await;
        if self.own().is_some() {
            std::future::pending::<()>().await;
        }
        if self.end.get().is_some() {
            tokio::time::sleep(LAST_WORDS).await;
        }
        self.end()
    }

    /// Waits until the server has read what it was sent, but not for longer than `limit`: sshd drops what it has not yet given to a
    /// command when the connection is closed.
    pub(crate) async fn read(&self, limit: Duration) {
        let connections = self.own().map(Host::connections).unwrap_or_default();
        let ready = connections.iter().filter(|connection| connection.is_ready());
        join_all(ready.map(|connection| connection.ping(limit))).await;
    }

    /// Ends it, and everything that goes over its connections.
    pub(crate) fn close(&self) {
        self.cancel.cancel();
    }

    /// Waits for its end.
    pub(crate) async fn wait_for_end(&self) {
        self.cancel.cancelled().await;
    }

    /// Returns the fault that has ended it.
    pub(crate) fn end(&self) -> Fault {
        let closed = || Fault::closed_client().after_start();
        self.end.get().cloned().unwrap_or_else(closed)
    }

    /// An SFTP session of it is open until what is returned is dropped.
    pub(crate) fn opened_sftp(&self) -> OpenSftp<'_> {
        self.sftps.send_modify(|count| *count += 1);
        OpenSftp(self)
    }

    /// Exchanges keys anew on its first connection, once that is there.
    pub(crate) fn rekey(&self) {
        self.rekey.notify_one();
    }

    /// Its connections, for people and dashboards; null where they are not this process's.
    pub(crate) fn lanes(&self) -> Value {
        let host = self.way.get().and_then(Way::host);
        host.map_or(Value::Null, |host| {
            host.lanes()
                .iter()
                .map(|lane| connection_json(&lane.report))
                .collect()
        })
    }

    /// Tells of its connections, whosever they are, under the request's number.
    pub(crate) async fn stats(self: Arc<Self>, request: u32) {
        let stats = async {
            let way = self.way().await?;
            let lanes = all_shown(&way.connections().await?);
            Ok::<_, Failure>(json!({ "daemon": way.host().is_none(), "lanes": lanes }))
        };
        let told = tokio::select! {
            biased;
            told = stats => told.map_err(Fault::from),
            fault = self.cuts_off() => Err(fault),
        };
        match told {
            Ok(stats) => self.outbox.tell(request, Kind::Open, stats),
            Err(fault) => self.outbox.tell(request, Kind::Fail, fault.to_json()),
        }
    }

    /// Has the server listen until the connection ends or [`Self::unlisten`] is called. The request's number names the
    /// listener; its clients are offered through `offer`.
    pub(crate) async fn listen(
        self: Arc<Self>,
        request: u32,
        listen: Listen,
        offer: impl Fn(Incoming) -> u32 + Send,
    ) {
        // The end of a connection of its own ends what its server listens on.
        let cancel = match self.own() {
            Some(_) => CancellationToken::new(),
            None => self.cancel.child_token(),
        };
        self.listeners().insert(request, cancel.clone());
        let listening = async { Ok(self.way().await?.listen(&listen).await?) };
        let answer: Result<_, Fault> = tokio::select! {
            biased;
            answer = listening => answer,
            fault = self.cuts_off() => Err(fault),
        };
        match answer {
            Err(fault) => self.outbox.tell(request, Kind::Fail, fault.to_json()),
            Ok(listener) => self.serve(request, listener, &cancel, offer).await,
        }
        self.listeners().remove(&request);
        self.outbox.tell(request, Kind::Close, Value::Null);
    }

    async fn serve(
        &self,
        request: u32,
        mut listener: Listener,
        cancel: &CancellationToken,
        offer: impl Fn(Incoming) -> u32,
    ) {
        self.outbox
            .tell(request, Kind::Open, json!({ "port": listener.port() }));
        loop {
            let incoming = tokio::select! {
                incoming = listener.next() => incoming,
                () = cancel.cancelled() => return listener.close().await,
            };
            let Some(incoming) = incoming else { return };
            let originator = incoming.originator().to_owned();
            let number = offer(incoming);
            let details = json!({ "number": number, "originator": originator });
            self.outbox.tell(request, Kind::Incoming, details);
        }
    }

    /// Listens on a Unix socket of this machine and carries its clients to the target, which the server connects to, until
    /// the client ends or [`Self::unlisten`] is called. A socket in its place that nobody listens on is replaced.
    pub(crate) async fn forward_socket(self: Arc<Self>, request: u32, path: PathBuf, target: ForwardTarget) {
        let cancel = self.cancel.child_token();
        self.listeners().insert(request, cancel.clone());
        remove_stale(&path).await;
        let opened = || self.outbox.tell(request, Kind::Open, Value::Null);
        let carried = async {
            let way = self.way().await?;
            way.forward_socket(path, target, opened, cancel.cancelled()).await
        };
        if let Err(failure) = carried.await {
            self.outbox
                .tell(request, Kind::Fail, Fault::from(failure).to_json());
        }
        self.listeners().remove(&request);
        self.outbox.tell(request, Kind::Close, Value::Null);
    }

    /// Ends a listening; its own end says when the server has done so.
    pub(crate) fn unlisten(&self, request: u32) {
        if let Some(cancel) = self.listeners().get(&request) {
            cancel.cancel();
        }
    }

    /// Guards the table, for as long as a look-up takes.
    fn listeners(&self) -> std::sync::MutexGuard<'_, HashMap<u32, CancellationToken>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// JavaScript's opinion on a host key.
    pub(crate) fn answer_host_key(&self, question: u32, accept: bool) {
        if let Some(Waiting::HostKey(reply)) = self.program.take(question) {
            // A handshake that has ended meanwhile needs no answer.
            let _ = reply.send(accept);
        }
    }

    /// Whether JavaScript wants the keys that the server lists proven.
    pub(crate) fn answer_listed_keys(&self, question: u32, wanted: bool) {
        if let Some(Waiting::ListedKeys(reply)) = self.program.take(question) {
            let _ = reply.send(wanted);
        }
    }

    /// Takes JavaScript's next attempt to log in; `None`: none is left.
    ///
    /// # Errors
    /// What cannot be tried; the question stays open.
    pub(crate) fn answer_authentication(
        &self,
        question: u32,
        attempt: Option<AuthenticationAttempt>,
    ) -> Result<(), Fault> {
        let attempt = attempt.map(|attempt| self.attempt(attempt)).transpose()?;
        if let Some(Waiting::Attempt(reply)) = self.program.take(question) {
            let _ = reply.send(attempt);
        }
        Ok(())
    }

    fn attempt(&self, attempt: AuthenticationAttempt) -> Result<Attempt, Fault> {
        let method = match attempt.method {
            AttemptMethod::None => Method::None,
            AttemptMethod::KeyboardInteractive => Method::KeyboardInteractive,
            AttemptMethod::Password => Method::Password(attempt.password.unwrap_or_default().into()),
            AttemptMethod::Key => Method::Key(self.key_to_try(attempt.key, attempt.passphrase)?),
            AttemptMethod::HostBased => Method::HostBased {
                key: self.key_to_try(attempt.key, attempt.passphrase)?,
                host: attempt.local_hostname.unwrap_or_default(),
                user: attempt.local_username.unwrap_or_default(),
            },
            AttemptMethod::Agent => Method::Agent(attempt.agent.unwrap_or_default().into()),
            AttemptMethod::Keys => {
                let keys = attempt.keys.unwrap_or_default();
                let blobs = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
                Method::Keys(
                    blobs,
                    Arc::new(KeysOfProgram(self.program.clone(), attempt.login)),
                )
            }
        };
        Ok(Attempt {
            user: attempt.username,
            method,
        })
    }

    /// An attempt's private key, whose passphrase the engine will ask for.
    fn key_to_try(
        &self,
        content: Option<Uint8Array>,
        passphrase: Option<String>,
    ) -> Result<Box<KeyFile>, Fault> {
        let content = content.map(|key| key.to_vec()).unwrap_or_default();
        let key = KeyFile::in_memory("privateKey", content.into())
            .map_err(|error| Fault::usage(&format!("Cannot parse privateKey: {error}")))?;
        *self.program.passphrase() = passphrase.map(Zeroizing::new);
        Ok(Box::new(key))
    }

    /// JavaScript's signature; `None` if there is none to be had.
    pub(crate) fn answer_signature(&self, question: u32, signature: Option<Vec<u8>>) {
        if let Some(Waiting::Signature(reply)) = self.program.take(question) {
            let _ = reply.send(signature);
        }
    }

    /// JavaScript's answers to a server's questions.
    pub(crate) fn answer_questions(&self, question: u32, answers: Vec<String>) {
        if let Some(Waiting::Questions(reply)) = self.program.take(question) {
            let _ = reply.send(answers.into_iter().map(Zeroizing::new).collect());
        }
    }
}

impl Begun {
    /// Connects, tells of it, and stays until the end, which it returns: a fault, or null.
    pub(crate) async fn live(self) -> Value {
        let Self {
            client,
            ready_timeout,
            ..
        } = self;
        // What connecting takes is given back before the client's long life.
        let ready = Box::pin(async {
            match ready_timeout {
                None => client.hold().await,
                Some(limit) => tokio::time::timeout(limit, client.hold())
                    .await
                    .unwrap_or_else(|_| Err(Fault::not_ready_in_time())),
            }
        });
        let end = match client.cancel.run_until_cancelled(ready).await {
            None => Value::Null,
            Some(Err(fault)) => {
                client.outbox.tell(client.target, Kind::Fail, fault.to_json());
                Value::Null
            }
            Some(Ok(mut held)) => {
                let attending = Box::pin(async {
                    let details = Box::pin(held.handshake()).await.map_or(Value::Null, details);
                    client.outbox.tell(client.target, Kind::Open, details);
                    client.told.cancel();
                    client.attend(&mut held).await
                });
                let ended = client.cancel.run_until_cancelled(attending).await;
                match ended {
                    Some(fault) => client.end.get_or_init(|| fault.after_start()).to_json(),
                    None => Value::Null,
                }
            }
        };
        client.finish().await;
        end
    }
}

impl Client {
    /// Connects.
    async fn hold(&self) -> Result<ConnectionHold<'_>, Fault> {
        let held = async { self.find_way().await?.hold().await };
        held.await.map_err(|failure| {
            let fault = Fault::from(failure);
            // One of the engine's steps took as long as the whole may.
            if fault.is_timeout() && self.own().is_some() {
                return Fault::not_ready_in_time();
            }
            fault
        })
    }

    /// Tells of placement, and has keys exchanged, until the connection has ended.
    async fn attend<'a>(&'a self, held: &mut ConnectionHold<'a>) -> Fault {
        loop {
            let change = tokio::select! {
                change = held.next() => change,
                () = self.rekey.notified() => {
                    held.rekey();
                    continue;
                }
            };
            match change {
                // In a box, as what few clients need: each idle one would have room for it.
                Change::Ended(failure) => match Box::pin(self.hold_again(failure.into())).await {
                    Ok(again) => *held = again,
                    Err(lost) => return lost,
                },
                Change::Placement { apart, connections } => {
                    let told = json!({ "apart": apart, "lanes": all_shown(&connections) });
                    self.outbox.tell(self.target, Kind::Placement, told);
                }
            }
        }
    }

    /// A client whose connection was lost stays for the SFTP sessions that the daemon carries over to a new one (`sftp_resume`), as
    /// long as there are any. Those that are not carried over end at once.
    async fn hold_again(&self, lost: Fault) -> Result<ConnectionHold<'_>, Fault> {
        if self.way.get().is_none_or(|way| way.host().is_some()) {
            return Err(lost);
        }
        let mut open = self.sftps.subscribe();
        if tokio::time::timeout(LAST_WORDS, open.wait_for(|count| *count == 0))
            .await
            .is_ok()
        {
            return Err(lost);
        }
        let connecting = async {
            loop {
                match self.hold().await {
                    Ok(held) => return held,
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        tokio::select! {
            _ = open.wait_for(|count| *count == 0) => Err(lost),
            held = connecting => Ok(held),
        }
    }

    /// Closes all connections of its own, and returns when they have ended.
    async fn finish(&self) {
        // Listeners and whoever else waits for the client's end.
        self.cancel.cancel();
        if let Some(lending) = self.lending.get().and_then(Way::host) {
            lending.end();
        }
        if let Some(host) = self.own() {
            let connections = host.connections();
            host.end();
            join_all(connections.iter().map(Connection::wait_for_end)).await;
        }
    }
}

/// Returns ssh2's details of a handshake.
fn details(handshake: Handshake) -> Value {
    json!({
        "server": handshake.server,
        "kex": handshake.kex,
        "serverHostKey": handshake.host_key,
        "cipher": handshake.cipher,
        "mac": handshake.mac,
        "compressed": handshake.compressed,
        "greeting": handshake.greeting,
    })
}

fn all_shown(connections: &[ConnectionReport]) -> Value {
    connections.iter().map(connection_json).collect()
}

/// A connection, for people and dashboards.
fn connection_json(connection: &ConnectionReport) -> Value {
    let handshake = connection.handshake.as_ref();
    json!({
        "server": handshake.map(|handshake| &handshake.server),
        "cipher": handshake.map(|handshake| &handshake.cipher),
        "rtt": connection.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
        "sessions": connection.sessions,
        "tunnels": connection.tunnels,
        "busy": connection.busy,
        "silent": connection.silent,
        "rate": connection.rate,
        "bytesSent": connection.sent,
        "bytesReceived": connection.received,
    })
}

/// Returns the engine's credentials, and the far end of a stream that JavaScript carries.
fn login(
    options: &ConnectOptions,
    config: &HostConfig,
    program: &Arc<Program>,
) -> Result<(Login, Option<tokio::io::DuplexStream>), Fault> {
    let mut login = Login::new()
        .verify_host_key(program.clone())
        .connections(options.connections as usize);
    if let Some(content) = &options.private_key {
        let content = Zeroizing::new(content.to_vec());
        let cannot =
            |error: trunkline::keys::KeyError| Fault::usage(&format!("Cannot parse privateKey: {error}"));
        let key = KeyFile::in_memory("privateKey", content).map_err(cannot)?;
        if !key.has_private_half() {
            return Err(Fault::usage(
                "privateKey value does not contain a (valid) private key",
            ));
        }
        if key.is_encrypted() && options.passphrase.is_none() {
            return Err(Fault::usage(
                "Cannot parse privateKey: Encrypted private key detected, but no passphrase given",
            ));
        }
        if !options.asks_how {
            login = login.key(key);
        }
    }
    if options.asks_how {
        login = login.authenticate(program.clone());
    }
    debug_assert!(config.identity_files.is_empty());
    if !options.over_stream {
        return Ok((login, None));
    }
    let (near, far) = tokio::io::duplex(PIPE);
    Ok((login.with_stream(near), Some(far)))
}

/// The JavaScript program, as the engine asks it.
struct Program {
    target: u32,
    outbox: Arc<Outbox>,
    password: Option<Zeroizing<String>>,
    passphrase: Mutex<Option<Zeroizing<String>>>,
    host_keys: HostKeys,
    /// Whether it answers the questions of a server.
    answers: bool,
    /// Whether it was told what was agreed on.
    has_agreed: AtomicBool,
    next_question: AtomicU32,
    waiting: Mutex<HashMap<u32, Waiting>>,
}

/// The requester that waits for an answer of JavaScript's.
enum Waiting {
    HostKey(oneshot::Sender<bool>),
    ListedKeys(oneshot::Sender<bool>),
    Questions(oneshot::Sender<Vec<Zeroizing<String>>>),
    Attempt(oneshot::Sender<Option<Attempt>>),
    Signature(oneshot::Sender<Option<Vec<u8>>>),
}

impl Program {
    fn new(target: u32, outbox: &Arc<Outbox>, host_keys: HostKeys) -> Self {
        Self {
            target,
            outbox: outbox.clone(),
            password: None,
            passphrase: Mutex::default(),
            host_keys,
            answers: true,
            has_agreed: AtomicBool::new(false),
            next_question: AtomicU32::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Asks the program, and tells it things.
    fn interaction(self: &Arc<Self>) -> Interaction {
        let notices = self.clone();
        Interaction::new(self.clone(), move |text| {
            let (target, text) = (notices.target, Value::from(text));
            notices.outbox.tell(target, Kind::Notice, text);
        })
    }

    /// Asks JavaScript: the question's number is put into `details`.
    fn put(&self, kind: Kind, waiting: Waiting, mut details: Value) {
        let question = self.next_question.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(question, waiting);
        details["question"] = question.into();
        self.outbox.tell(self.target, kind, details);
    }

    /// Has the program answer a server's questions, of this kind.
    fn ask_program(
        &self,
        kind: Kind,
        details: Value,
    ) -> impl Future<Output = Option<Vec<Zeroizing<String>>>> + Send + use<> {
        let (reply, answers) = oneshot::channel();
        self.put(kind, Waiting::Questions(reply), details);
        async move { answers.await.ok() }
    }

    fn take(&self, question: u32) -> Option<Waiting> {
        self.waiting().remove(&question)
    }

    /// Guards the passphrase of the key that is tried.
    fn passphrase(&self) -> std::sync::MutexGuard<'_, Option<Zeroizing<String>>> {
        self.passphrase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Guards the questions, for as long as a look-up takes.
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authenticator for Program {
    fn note_agreement(&self, _login: u32, agreement: Agreement) {
        // Of further connections nobody is told.
        if self.has_agreed.swap(true, Ordering::Relaxed) {
            return;
        }
        let details = json!({
            "server": agreement.server,
            "kex": agreement.kex,
            "serverHostKey": agreement.host_key,
            "cipher": agreement.cipher,
            "mac": agreement.mac,
            "compressed": agreement.compressed,
            "greeting": agreement.greeting,
        });
        self.outbox.tell(self.target, Kind::Agreed, details);
    }

    fn next<'a>(&'a self, login: u32, methods: Option<&'a [String]>, partial: bool) -> NextAttempt<'a> {
        let (reply, answer) = oneshot::channel();
        let turn = json!({ "login": login, "methods": methods, "partial": partial });
        self.put(Kind::Authenticate, Waiting::Attempt(reply), turn);
        Box::pin(async move { answer.await.ok().flatten() })
    }

    fn unusable(&self, login: u32, why: &str) {
        let told = json!({ "login": login, "why": &*Printable::text(why) });
        self.outbox.tell(self.target, Kind::Unusable, told);
    }

    fn new_password<'a>(&'a self, login: u32, prompt: &'a str) -> NewPassword<'a> {
        let details = json!({ "login": login, "prompt": &*Printable::text(prompt) });
        let answers = self.ask_program(Kind::NewPassword, details);
        Box::pin(async move { answers.await?.into_iter().next() })
    }
}

/// Keys that JavaScript signs with.
struct KeysOfProgram(Arc<Program>, u32);

impl fmt::Debug for KeysOfProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeysOfProgram").field(&self.0.target).finish()
    }
}

impl KeySigner for KeysOfProgram {
    fn sign<'a>(&'a self, blob: &'a [u8], algorithm: &'a str, data: &'a [u8]) -> Signing<'a> {
        let (reply, answer) = oneshot::channel();
        let wanted = json!({ "login": self.1, "key": blob, "algorithm": algorithm, "data": data });
        self.0.put(Kind::Sign, Waiting::Signature(reply), wanted);
        Box::pin(async move { answer.await.ok().flatten() })
    }
}

impl HostKeyVerifier for Program {
    fn verify<'a>(
        &'a self,
        host: &'a str,
        key: &'a [u8],
        files: Result<(), HostKeyError>,
    ) -> Verification<'a> {
        Box::pin(async move {
            match self.host_keys {
                HostKeys::Any => Ok(()),
                HostKeys::Known => files,
                HostKeys::KnownOrNew => match files {
                    Err(HostKeyError::Unknown { .. }) => Ok(()),
                    files => files,
                },
                HostKeys::Program => {
                    let (reply, answer) = oneshot::channel();
                    self.put(Kind::HostKey, Waiting::HostKey(reply), json!({ "key": key }));
                    match answer.await {
                        Ok(true) => Ok(()),
                        _ => Err(refused_by_program(host, key)),
                    }
                }
            }
        })
    }

    fn wants_proof(&self) -> WantsProof<'_> {
        let (reply, answer) = oneshot::channel();
        self.put(Kind::ListedKeys, Waiting::ListedKeys(reply), json!({}));
        Box::pin(async move { answer.await.unwrap_or(false) })
    }

    fn proven(&self, keys: Vec<Bytes>) {
        let keys: Value = keys.iter().map(|key| Value::from(&key[..])).collect();
        self.outbox.tell(self.target, Kind::ProvenKeys, keys);
    }
}

impl Prompter for Program {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        let answer = match prompt.kind {
            PromptKind::Password => self.password.clone(),
            PromptKind::Passphrase => self.passphrase().clone(),
            // One question at a time: as the daemon asks.
            PromptKind::KeyboardInteractive if self.answers => {
                let prompts = vec![json!({ "prompt": prompt.text, "echo": prompt.echo })];
                let details = json!({ "name": "", "instructions": "", "prompts": prompts });
                let answers = self.ask_program(Kind::Questions, details);
                return Box::pin(async move { answers.await?.into_iter().next() });
            }
            // A server that asks for a password in other words.
            PromptKind::KeyboardInteractive if !prompt.echo => self.password.clone(),
            _ => None,
        };
        Box::pin(std::future::ready(answer))
    }

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        if !self.answers {
            return None;
        }
        let prompts: Vec<Value> = asked
            .prompts
            .iter()
            .map(|prompt| json!({ "prompt": prompt.text, "echo": prompt.echo }))
            .collect();
        let details = json!({ "name": asked.name, "instructions": asked.instruction, "prompts": prompts });
        Some(Box::pin(self.ask_program(Kind::Questions, details)))
    }

    fn answerer(&self) -> Answerer {
        match self.answers {
            true => Answerer::Person,
            false => Answerer::Program,
        }
    }
}
