//! One client of JavaScript: a host with connections of its own, from the first attempt to its end.

use std::collections::HashMap;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use trunkline::config::{Forward, ForwardTarget, HostConfig, Listen};
use trunkline::host_key::HostKeyError;
use trunkline::keys::KeyFile;
use trunkline::prompt::{Answer, Answers, Prompt, PromptKind, Prompter, ServerQuestions};
use trunkline::{
    Connection, Error, HeldConnection, Host, HostKeyVerifier, IncomingConnection, Interaction, Login,
    RemoteListener, Verification, refused_by_program,
};
use zeroize::Zeroizing;

use crate::fault::Fault;
use crate::options::ConnectOptions;
use crate::outbox::{Kind, Outbox};
use crate::runtime;

/// Towards a JavaScript stream that carries the connection's bytes, so much is held.
const PIPE: usize = 256 * 1024;

/// What JavaScript holds by its number.
pub(crate) struct Client {
    target: u32,
    outbox: Arc<Outbox>,
    host: Host,
    program: Arc<Program>,
    /// Ends the client.
    cancel: CancellationToken,
    listeners: Mutex<HashMap<u32, CancellationToken>>,
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
        let program = Arc::new(Program {
            target,
            outbox: outbox.clone(),
            password: options.password.clone().map(Zeroizing::new),
            passphrase: options.passphrase.clone().map(Zeroizing::new),
            host_keys: match options.host_keys.as_str() {
                "any" => HostKeys::Any,
                "files" => HostKeys::Files,
                _ => HostKeys::Program,
            },
            next_question: AtomicU32::new(0),
            waiting: Mutex::default(),
        });
        let (login, pipe) = login(options, &config, &program)?;
        let notices = program.clone();
        let interaction = Interaction::new(program.clone(), move |text| {
            notices.outbox.tell(target, Kind::Notice, Value::from(text));
        });
        let host = runtime::engine()?
            .private_host(config, login, &interaction)
            .map_err(|error| Fault::from(&error))?;
        let client = Arc::new(Self {
            target,
            outbox: outbox.clone(),
            host,
            program,
            cancel: CancellationToken::new(),
            listeners: Mutex::default(),
        });
        Ok(Begun {
            client,
            pipe,
            ready_timeout: options.ready_timeout(),
        })
    }

    /// What its sessions and tunnels are opened on.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Ends it, and everything that goes over its connections.
    pub(crate) fn close(&self) {
        self.cancel.cancel();
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        self.cancel.cancelled().await;
    }

    /// Exchanges keys anew on its first connection.
    pub(crate) fn rekey(&self) {
        self.host.connection().rekey();
    }

    /// Its connections, for people and dashboards.
    pub(crate) fn lanes(&self) -> Value {
        let lanes = self.host.lanes().into_iter().map(|lane| {
            json!({
                "server": lane.info.as_ref().map(|info| info.server.clone()),
                "cipher": lane.info.as_ref().map(|info| info.cipher),
                "rtt": lane.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
                "sessions": lane.sessions,
                "tunnels": lane.tunnels,
                "busy": lane.busy,
                "bytesSent": lane.bytes.0,
                "bytesReceived": lane.bytes.1,
            })
        });
        lanes.collect()
    }

    /// Has the server listen until the connection ends or [`Self::unlisten`] is called. The request's number names the
    /// listener; its clients are offered through `offer`.
    pub(crate) async fn listen(
        self: Arc<Self>,
        request: u32,
        listen: Listen,
        offer: impl Fn(IncomingConnection) -> u32 + Send,
    ) {
        let cancel = self.cancel.child_token();
        self.listeners().insert(request, cancel.clone());
        let outcome = cancel.run_until_cancelled(self.host.listen_remote(&listen)).await;
        match outcome {
            None => {}
            Some(Err(error)) => self
                .outbox
                .tell(request, Kind::Fail, Fault::from(&error).to_json()),
            Some(Ok(listener)) => self.serve(request, listener, &cancel, offer).await,
        }
        self.listeners().remove(&request);
        self.outbox.tell(request, Kind::Close, Value::Null);
    }

    async fn serve(
        &self,
        request: u32,
        mut listener: RemoteListener,
        cancel: &CancellationToken,
        offer: impl Fn(IncomingConnection) -> u32,
    ) {
        let port = match listener.listening() {
            Listen::Tcp { port, .. } => Some(*port),
            Listen::Socket(_) => None,
        };
        self.outbox.tell(request, Kind::Open, json!({ "port": port }));
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
        let forward = Forward {
            listen: Listen::Socket(path),
            target,
        };
        match self.host.forward_local(&forward).await {
            Err(error) => self
                .outbox
                .tell(request, Kind::Fail, Fault::from(&error).to_json()),
            Ok(handle) => {
                self.outbox.tell(request, Kind::Open, Value::Null);
                cancel.cancelled().await;
                handle.close().await;
            }
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
        let connection = client.host.hold();
        let ready = async {
            match ready_timeout {
                None => connection.ready().await.map_err(|error| Fault::from(&error)),
                Some(limit) => match tokio::time::timeout(limit, connection.ready()).await {
                    Ok(ready) => ready.map_err(|error| match error {
                        Error::Timeout { after, .. } if after == limit => Fault::not_ready_in_time(),
                        error => Fault::from(&error),
                    }),
                    Err(_) => Err(Fault::not_ready_in_time()),
                },
            }
        };
        let outcome = client.cancel.run_until_cancelled(ready).await;
        if let Some(Ok(())) = outcome {
            client
                .outbox
                .tell(client.target, Kind::Open, details(&connection));
        }
        let end = match outcome {
            None => Value::Null,
            Some(Err(fault)) => {
                client.outbox.tell(client.target, Kind::Fail, fault.to_json());
                Value::Null
            }
            Some(Ok(())) => match client.cancel.run_until_cancelled(connection.ended()).await {
                Some(error) => Fault::from(&error).to_json(),
                None => Value::Null,
            },
        };
        client.finish(connection).await;
        end
    }
}

impl Client {
    /// Closes all connections, and returns when the first one has ended.
    async fn finish(&self, connection: HeldConnection) {
        // Listeners and whoever else waits for the client's end.
        self.cancel.cancel();
        self.host.end();
        connection.ended().await;
    }
}

/// Removes a socket that a program has left behind: one that refuses connections. One in use answers, and stays.
async fn remove_stale(path: &Path) {
    let is_socket = tokio::fs::symlink_metadata(path)
        .await
        .is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return;
    }
    let refused = tokio::net::UnixStream::connect(path)
        .await
        .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    if refused {
        // What cannot be removed is told by the attempt to listen.
        let _ = tokio::fs::remove_file(path).await;
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
            "compressed": info.compressed,
        })
    })
}

/// What the engine logs in with, and the far end of a stream that JavaScript carries.
fn login(
    options: &ConnectOptions,
    config: &HostConfig,
    program: &Arc<Program>,
) -> Result<(Login, Option<tokio::io::DuplexStream>), Fault> {
    let mut login = Login::new().verify_host_key(program.clone());
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
        login = login.key(key);
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
    passphrase: Option<Zeroizing<String>>,
    host_keys: HostKeys,
    next_question: AtomicU32,
    waiting: Mutex<HashMap<u32, Waiting>>,
}

/// Who judges host keys.
enum HostKeys {
    Any,
    /// known_hosts; unknown hosts pass, as for ssh2.
    Files,
    Program,
}

/// Who waits for an answer of JavaScript's.
enum Waiting {
    HostKey(oneshot::Sender<bool>),
    Questions(oneshot::Sender<Vec<Zeroizing<String>>>),
}

impl Program {
    /// Asks JavaScript: the question's number is put into `details`.
    fn put(&self, kind: Kind, waiting: Waiting, mut details: Value) {
        let question = self.next_question.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(question, waiting);
        details["question"] = question.into();
        self.outbox.tell(self.target, kind, details);
    }

    fn take(&self, question: u32) -> Option<Waiting> {
        self.waiting().remove(&question)
    }

    /// Guards the questions, for as long as a look-up takes.
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
                HostKeys::Files => match files {
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
            PromptKind::Passphrase => self.passphrase.clone(),
            _ => None,
        };
        Box::pin(std::future::ready(answer))
    }

    fn ask_together<'a>(&'a self, asked: &'a ServerQuestions) -> Option<Answers<'a>> {
        let prompts: Vec<Value> = asked
            .prompts
            .iter()
            .map(|prompt| json!({ "prompt": prompt.text, "echo": prompt.echo }))
            .collect();
        let details = json!({ "name": asked.name, "instructions": asked.instruction, "prompts": prompts });
        let (reply, answers) = oneshot::channel();
        self.put(Kind::Questions, Waiting::Questions(reply), details);
        Some(Box::pin(async move { answers.await.ok() }))
    }
}
