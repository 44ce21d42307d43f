//! One client of JavaScript: a host with connections of its own, from the first attempt to its end.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Notify, OnceCell, oneshot};
use tokio_util::sync::CancellationToken;
use trunkline::config::{Forward, ForwardTarget, HostConfig, Listen, Request};
use trunkline::host_key::HostKeyError;
use trunkline::keys::KeyFile;
use trunkline::prompt::{Answer, Answers, Prompt, PromptKind, Prompter, ServerQuestions};
use trunkline::{
    Attempt, Authenticator, Connection, Error, HeldConnection, Host, HostKeyVerifier, Interaction, KeySigner,
    Login, Method, NextAttempt, Printable, Signing, Verification, refused_by_program,
};
use trunkline_daemon::client::session;
use trunkline_daemon::protocol::{self, ConnectionReport, Reply};
use trunkline_daemon::sink::remove_stale;
use zeroize::Zeroizing;

use crate::fault::Fault;
use crate::options::{AuthenticationAttempt, ConnectOptions, DestinationOptions, Worlds};
use crate::outbox::{Kind, Outbox};
use crate::reach::{Daemon, Incoming, Listener, Preference, Way, lanes, reports};
use crate::runtime;
use crate::stream::Stream;

/// Towards a JavaScript stream that carries the connection's bytes, so much is held.
const PIPE: usize = 256 * 1024;

/// What JavaScript holds by its number.
pub(crate) struct Client {
    target: u32,
    outbox: Arc<Outbox>,
    plan: Plan,
    /// Found when it is first needed.
    way: OnceCell<Way>,
    program: Arc<Program>,
    /// Ends the client.
    cancel: CancellationToken,
    /// What ended it, for the streams that go with it.
    end: OnceLock<Fault>,
    listeners: Mutex<HashMap<u32, CancellationToken>>,
    /// New keys are wanted.
    rekey: Notify,
}

/// How a client's host is found.
enum Plan {
    /// The program has said everything.
    Explicit(Host),
    /// A destination of ssh_config.
    Destination {
        request: Request,
        preference: Preference,
        interaction: Interaction,
        /// Whether the program answers questions.
        answers: bool,
    },
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
        let host_keys = match options.host_keys.as_str() {
            "any" => HostKeys::Any,
            "program" => HostKeys::Program,
            "known or new" => HostKeys::KnownOrNew,
            _ => HostKeys::Known,
        };
        let mut program = Program::new(target, outbox, host_keys);
        program.password = options.password.clone().map(Zeroizing::new);
        program.passphrase = Mutex::new(options.passphrase.clone().map(Zeroizing::new));
        let program = Arc::new(program);
        let (login, pipe) = login(options, &config, &program)?;
        let host = runtime::engine()?
            .private_host(config, login, &program.interaction())
            .map_err(|error| Fault::from(&error))?;
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
        let plan = Plan::Destination {
            request: options.request(worlds)?,
            preference: options.preference(),
            interaction: program.interaction(),
            answers,
        };
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
            program,
            cancel: CancellationToken::new(),
            end: OnceLock::new(),
            listeners: Mutex::default(),
            rekey: Notify::new(),
        })
    }

    /// What its sessions and tunnels are opened on.
    pub(crate) async fn way(&self) -> Result<&Way, Fault> {
        let find = || async {
            match &self.plan {
                Plan::Explicit(host) => Ok(Way::Engine {
                    host: host.clone(),
                    own: true,
                    world: None,
                }),
                Plan::Destination {
                    request,
                    preference,
                    interaction,
                    answers,
                } => Way::find(request, preference, &runtime::engine()?, interaction, *answers).await,
            }
        };
        self.way.get_or_try_init(find).await
    }

    /// Runs a stream's life until it is over or the client ends. Where connections are shared, their end does not come with
    /// the client's, and the stream is cut off.
    pub(crate) async fn during(&self, stream: &Stream, life: impl Future<Output = ()>) {
        let own = |way: &Way| matches!(way, Way::Engine { own: true, .. });
        let ended = async {
            self.cancel.cancelled().await;
            if self.way.get().is_some_and(own) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = life => {}
            () = ended => {
                stream.cut_off(&self.end());
            }
        }
    }

    /// Ends it, and everything that goes over its connections.
    pub(crate) fn close(&self) {
        self.cancel.cancel();
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        self.cancel.cancelled().await;
    }

    /// What has ended it.
    pub(crate) fn end(&self) -> Fault {
        let closed = || Fault::closed().after_start();
        self.end.get().cloned().unwrap_or_else(closed)
    }

    /// Exchanges keys anew on its first connection, once that is there.
    pub(crate) fn rekey(&self) {
        self.rekey.notify_one();
    }

    /// Its connections, for people and dashboards; null where they are not this process's.
    pub(crate) fn lanes(&self) -> Value {
        match self.way.get() {
            Some(Way::Engine { host, .. }) => lanes(host),
            _ => Value::Null,
        }
    }

    /// Tells of its connections, whosever they are, under the request's number.
    pub(crate) async fn stats(self: Arc<Self>, request: u32) {
        let stats = async { self.way().await?.stats().await };
        match stats.await {
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
        let cancel = self.cancel.child_token();
        self.listeners().insert(request, cancel.clone());
        let listening = async { self.way().await?.listen(&listen).await };
        match cancel.run_until_cancelled(listening).await {
            None => {}
            Some(Err(fault)) => self.outbox.tell(request, Kind::Fail, fault.to_json()),
            Some(Ok(listener)) => self.serve(request, listener, &cancel, offer).await,
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
        let outcome = match self.way().await {
            Err(fault) => Err(fault),
            Ok(Way::Engine { host, .. }) => {
                let forward = Forward {
                    listen: Listen::Socket(path),
                    target,
                };
                match host.forward_local(&forward).await {
                    Err(error) => Err(Fault::from(&error)),
                    Ok(handle) => {
                        opened();
                        cancel.cancelled().await;
                        handle.close().await;
                        Ok(())
                    }
                }
            }
            Ok(Way::Daemon(daemon)) => {
                let carried = daemon.forward_socket(&path, &target, opened);
                cancel.run_until_cancelled(carried).await.unwrap_or(Ok(()))
            }
        };
        if let Err(fault) = outcome {
            self.outbox.tell(request, Kind::Fail, fault.to_json());
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

    /// What JavaScript tries next to log in; `None`: nothing is left.
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
        let method = match attempt.method.as_str() {
            "none" => Method::None,
            "keyboard-interactive" => Method::KeyboardInteractive,
            "password" => Method::Password(attempt.password.unwrap_or_default().into()),
            "key" => {
                let content = attempt.key.map(|key| key.to_vec()).unwrap_or_default();
                let key = KeyFile::in_memory("privateKey", content.into())
                    .map_err(|error| Fault::usage(&format!("Cannot parse privateKey: {error}")))?;
                *self.program.passphrase() = attempt.passphrase.map(Zeroizing::new);
                Method::Key(Box::new(key))
            }
            "agent" => Method::Agent(attempt.agent.unwrap_or_default().into()),
            "keys" => {
                let keys = attempt.keys.unwrap_or_default();
                let blobs = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
                Method::Keys(
                    blobs,
                    Arc::new(KeysOfProgram(self.program.clone(), attempt.login)),
                )
            }
            other => return Err(Fault::usage(&format!("there is no method {other}"))),
        };
        Ok(Attempt {
            user: attempt.username,
            method,
        })
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
            Some(Ok(held)) => {
                let details = held.details().await;
                client.outbox.tell(client.target, Kind::Open, details);
                let attending = Box::pin(client.attend(held));
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

/// A client's connection, kept open while this is there.
enum Held<'a> {
    Engine(&'a Host, HeldConnection),
    Daemon(&'a Daemon, session::Control, session::End),
}

impl Held<'_> {
    /// What ssh2 tells of a handshake.
    async fn details(&self) -> Value {
        match self {
            Self::Engine(_, connection) => details(connection),
            // What the daemon does not tell is missing; the client works without.
            Self::Daemon(daemon, ..) => daemon
                .lanes()
                .await
                .ok()
                .and_then(|lanes| Some(daemon_details(lanes.first()?)))
                .unwrap_or(Value::Null),
        }
    }
}

impl Client {
    /// Connects.
    async fn hold(&self) -> Result<Held<'_>, Fault> {
        match self.way().await? {
            Way::Engine { host, .. } => {
                let connection = host.hold();
                connection.ready().await.map_err(|error| match error {
                    // One of the engine's steps took as long as the whole may.
                    Error::Timeout { .. } if matches!(self.plan, Plan::Explicit(_)) => {
                        Fault::not_ready_in_time()
                    }
                    error => Fault::from(&error),
                })?;
                Ok(Held::Engine(host, connection))
            }
            Way::Daemon(daemon) => {
                let (control, end) = daemon.hold().await?;
                Ok(Held::Daemon(daemon, control, end))
            }
        }
    }

    /// Tells of placement, and has keys exchanged, until the connection has ended.
    async fn attend(&self, held: Held<'_>) -> Fault {
        match held {
            Held::Engine(host, connection) => {
                let mut apart = host.apart();
                loop {
                    tokio::select! {
                        error = connection.ended() => return Fault::from(&error),
                        () = self.rekey.notified() => connection.rekey(),
                        Ok(()) = apart.changed() => {
                            let told = json!({ "apart": *apart.borrow_and_update(), "lanes": lanes(host) });
                            self.outbox.tell(self.target, Kind::Placement, told);
                        }
                    }
                }
            }
            Held::Daemon(_, control, mut end) => loop {
                tokio::select! {
                    told = end.next() => match told {
                        Some(Reply::Placement { apart, connections }) => {
                            let told = json!({ "apart": apart, "lanes": reports(&connections) });
                            self.outbox.tell(self.target, Kind::Placement, told);
                        }
                        Some(_) => {}
                        None => return end.wait().await.map_or_else(Fault::from, |_| Fault::closed()),
                    },
                    () = self.rekey.notified() => control.send(protocol::Request::Rekey),
                }
            },
        }
    }

    /// Closes all connections of its own, and returns when the first one has ended.
    async fn finish(&self) {
        // Listeners and whoever else waits for the client's end.
        self.cancel.cancel();
        if let Some(Way::Engine { host, own: true, .. }) = self.way.get() {
            let connection = host.connection();
            host.end();
            connection.ended().await;
        }
    }
}

/// What ssh2 tells of a handshake.
fn details(connection: &Connection) -> Value {
    connection.info().map_or(Value::Null, |info| {
        json!({
            "server": info.server,
            "kex": info.kex.name(),
            "serverHostKey": info.host_key_algorithm,
            "cipher": info.cipher,
            "mac": info.mac,
            "compressed": info.compressed,
            "greeting": info.greeting,
        })
    })
}

/// The same of one of the daemon's.
fn daemon_details(lane: &ConnectionReport) -> Value {
    let mut algorithms = lane.algorithms.split(", ");
    json!({
        "server": lane.server,
        "kex": algorithms.next(),
        "serverHostKey": algorithms.next(),
        "cipher": algorithms.next(),
        "compressed": Value::Null,
    })
}

/// What the engine logs in with, and the far end of a stream that JavaScript carries.
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
    Ok((login.over(near), Some(far)))
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
    next_question: AtomicU32,
    waiting: Mutex<HashMap<u32, Waiting>>,
}

/// Who judges host keys.
enum HostKeys {
    /// Nobody.
    Any,
    /// known_hosts.
    Known,
    /// known_hosts, and hosts that they do not name pass, as for ssh2.
    KnownOrNew,
    Program,
}

/// Who waits for an answer of JavaScript's.
enum Waiting {
    HostKey(oneshot::Sender<bool>),
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

    /// Has the program answer a server's questions.
    fn ask_program(
        &self,
        details: Value,
    ) -> impl Future<Output = Option<Vec<Zeroizing<String>>>> + Send + use<> {
        let (reply, answers) = oneshot::channel();
        self.put(Kind::Questions, Waiting::Questions(reply), details);
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
}

impl Prompter for Program {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        let answer = match prompt.kind {
            PromptKind::Password => self.password.clone(),
            PromptKind::Passphrase => self.passphrase().clone(),
            // One question at a time: as the daemon asks.
            PromptKind::KeyboardInteractive if self.answers => {
                let prompts = vec![json!({ "prompt": prompt.text, "echo": prompt.echo })];
                let answers = self.ask_program(json!({ "name": "", "instructions": "", "prompts": prompts }));
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
        Some(Box::pin(self.ask_program(details)))
    }
}
