//! One JavaScript environment: everything it holds, by number.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use napi::bindgen_prelude::{BufferSlice, Either3, Env, Function, Uint8Array};
use napi_derive::napi;
use serde_json::Value;
use trunkline::config::{ForwardTarget, Listen};
use trunkline::keys::KeyError;
use trunkline::{Settings, TerminalSize};
use trunkline_embed::{Failure, Incoming, Tunnel, Worlds};
use zeroize::Zeroizing;

use crate::client::{Begun, Client};
use crate::fault::Fault;
use crate::options::{
    AuthenticationAttempt, ConnectOptions, DestinationOptions, EngineSettings, SessionOptions, variables,
};
use crate::outbox::{Kind, Outbox, Payload};
use crate::runtime;
use crate::sftp::{SftpCall, SftpSession};
use crate::stdio::routes;
use crate::stream::{LINGER, Outlet, Stream};
use crate::{opened_key, words};

/// A number, a chunk or anything else: a third of a triple of [`Hub::drain`].
type Third<'env> = Either3<u32, BufferSlice<'env>, Value>;

/// The engine, as one environment sees it. All methods return at once; what comes of them is told by
/// [`drain`](Self::drain).
#[napi]
pub struct Hub {
    inner: Arc<Inner>,
}

struct Inner {
    outbox: Arc<Outbox>,
    /// Numbers of clients, streams and requests come from one sequence, so that an event needs no more than one.
    next: AtomicU32,
    held: Mutex<Objects>,
    worlds: Worlds,
}

#[derive(Default)]
struct Objects {
    clients: HashMap<u32, Arc<Client>>,
    streams: HashMap<u32, Arc<Stream>>,
    sftps: HashMap<u32, Arc<SftpSession>>,
    /// Clients of listeners, until JavaScript takes or refuses them.
    incoming: HashMap<u32, (Arc<Client>, Incoming)>,
}

impl Objects {
    /// Forgets a client, with what nobody has taken of its listeners.
    fn forget(&mut self, number: u32) {
        if let Some(client) = self.clients.remove(&number) {
            self.incoming.retain(|_, (taker, _)| !Arc::ptr_eq(taker, &client));
        }
    }
}

#[napi]
impl Hub {
    /// `wake` is called, without arguments, when [`drain`](Self::drain) has something. Everything of the hub ends with its
    /// environment.
    ///
    /// # Errors
    /// The environment refuses.
    #[napi(constructor)]
    pub fn new(env: Env, wake: Function<'_, (), ()>) -> napi::Result<Self> {
        let wake = wake
            .build_threadsafe_function()
            .weak::<true>()
            .callee_handled::<false>()
            .build()?;
        let inner = Arc::new(Inner {
            outbox: Outbox::new(wake),
            next: AtomicU32::new(1),
            held: Mutex::default(),
            worlds: Worlds::default(),
        });
        let _ = env.add_env_cleanup_hook(inner.clone(), |inner| inner.shut())?;
        Ok(Self { inner })
    }

    /// Everything that has happened since the last call: triples of target, kind and value.
    ///
    /// # Errors
    /// The environment is ending.
    #[napi]
    pub fn drain<'env>(&self, env: &'env Env) -> napi::Result<Vec<Third<'env>>> {
        let events = self.inner.outbox.drain();
        let mut triples = Vec::with_capacity(3 * events.len());
        for (target, kind, told) in events {
            let told = match told {
                Payload::Bytes(block) => Either3::B(block.into_buffer(env)?),
                Payload::Value(value) => Either3::C(value),
            };
            triples.extend([Either3::A(target), Either3::A(kind as u32), told]);
        }
        Ok(triples)
    }

    /// Sets what of the engine can be set; `false` if it is in use already.
    ///
    /// # Errors
    /// No threads; a `config.toml` that cannot be used.
    #[napi]
    pub fn configure(&self, settings: EngineSettings) -> napi::Result<bool> {
        Ok(runtime::configure(Settings::from(&settings))?)
    }

    /// Waits until the audit trail has what was recorded so far: the environment ends, and with it the process if it is the
    /// main thread's.
    #[napi]
    pub fn leave(&self, ends_process: bool) {
        runtime::leave(ends_process);
    }

    /// Begins to connect a client, whose number it returns. The stream under it, with `over_stream`, has the next number.
    ///
    /// # Errors
    /// Options that cannot be used.
    #[napi]
    pub fn connect(&self, options: ConnectOptions) -> napi::Result<u32> {
        let number = self.inner.numbers(2);
        let begun = Client::begin(number, &options, &self.inner.outbox)?;
        self.inner.live(number, begun)
    }

    /// Begins to connect a client to a destination of ssh_config; returns its number.
    ///
    /// # Errors
    /// It is not a destination.
    #[napi]
    pub fn connect_to(&self, options: DestinationOptions) -> napi::Result<u32> {
        let number = self.inner.numbers(1);
        let begun = Client::begin_at(number, &options, &self.inner.outbox, &self.inner.worlds)?;
        self.inner.live(number, begun)
    }

    /// Ends a client with everything that goes over its connections, behind what was written to its streams.
    ///
    /// # Errors
    /// The engine's threads cannot be started.
    #[napi]
    pub fn close_client(&self, client: u32) -> napi::Result<()> {
        let held = self.inner.lock_held();
        let Some(ended) = held.clients.get(&client).cloned() else {
            return Ok(());
        };
        let streams = held.streams.values();
        let writing: Vec<_> = streams
            .filter(|stream| stream.is_on(client) && stream.is_writing())
            .cloned()
            .collect();
        drop(held);
        if writing.is_empty() {
            ended.close();
            return Ok(());
        }
        runtime::runtime()?.spawn(async move {
            join_all(writing.iter().map(|stream| stream.wait_until_flushed())).await;
            ended.read(LINGER).await;
            ended.close();
        });
        Ok(())
    }

    /// Says whether a host key is accepted.
    #[napi]
    pub fn answer_host_key(&self, client: u32, question: u32, accept: bool) {
        if let Some(client) = self.inner.client(client) {
            client.answer_host_key(question, accept);
        }
    }

    /// Says whether the keys that a server lists are to be proven.
    #[napi]
    pub fn answer_listed_keys(&self, client: u32, question: u32, wanted: bool) {
        if let Some(client) = self.inner.client(client) {
            client.answer_listed_keys(question, wanted);
        }
    }

    /// Answers a server's questions.
    #[napi]
    pub fn answer_questions(&self, client: u32, question: u32, answers: Vec<String>) {
        if let Some(client) = self.inner.client(client) {
            client.answer_questions(question, answers);
        }
    }

    /// Says what is tried next to log in; nothing: there is nothing left.
    ///
    /// # Errors
    /// It cannot be tried.
    #[napi]
    pub fn answer_authentication(
        &self,
        client: u32,
        question: u32,
        attempt: Option<AuthenticationAttempt>,
    ) -> napi::Result<()> {
        match self.inner.client(client) {
            Some(client) => Ok(client.answer_authentication(question, attempt)?),
            None => Ok(()),
        }
    }

    /// Gives a signature that was wanted; nothing: there is none.
    #[napi]
    pub fn answer_signature(&self, client: u32, question: u32, signature: Option<Uint8Array>) {
        if let Some(client) = self.inner.client(client) {
            client.answer_signature(question, signature.map(|bytes| bytes.to_vec()));
        }
    }

    /// Opens a private key with a passphrase, as [`crate::open_key`] does, on the engine's threads. Tells of it under the
    /// number that is returned; of a cipher that the engine does not read, by null.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn open_key(&self, content: Uint8Array, passphrase: String) -> napi::Result<u32> {
        let request = self.inner.numbers(1);
        let (content, passphrase) = (content.to_vec(), Zeroizing::new(passphrase));
        let outbox = self.inner.outbox.clone();
        runtime::runtime()?.spawn_blocking(move || match opened_key(content, Some(&*passphrase)) {
            Ok(opened) => outbox.tell(request, Kind::Open, Payload::Bytes(opened.into())),
            Err(KeyError::Cipher { .. }) => outbox.tell(request, Kind::Fail, Value::Null),
            Err(error) => outbox.tell(request, Kind::Fail, Value::from(words(&error))),
        });
        Ok(request)
    }

    /// Exchanges keys anew.
    #[napi]
    pub fn rekey(&self, client: u32) {
        if let Some(client) = self.inner.client(client) {
            client.rekey();
        }
    }

    /// Tells of a client's connections, under the number that is returned.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn stats(&self, client: u32) -> napi::Result<u32> {
        let runtime = runtime::runtime()?;
        let request = self.inner.numbers(1);
        match self.inner.client(client) {
            Some(client) => drop(runtime.spawn(client.stats(request))),
            None => self.inner.refuse(request),
        }
        Ok(request)
    }

    /// A client's connections; null if it is gone.
    #[napi]
    pub fn lanes(&self, client: u32) -> Value {
        self.inner
            .client(client)
            .map_or(Value::Null, |client| client.lanes())
    }

    /// Opens a session; returns the stream's number. A descriptor among its streams may be closed afterwards.
    ///
    /// # Errors
    /// A number that is not an open descriptor; no threads.
    #[napi]
    pub fn open_session(&self, client: u32, options: SessionOptions) -> napi::Result<u32> {
        let (stdio, directory) = (options.stdio()?, PathBuf::from(&options.directory));
        let asked = Box::new((stdio, directory, trunkline_embed::SessionOptions::from(options)));
        self.inner.open(client, async move |client, stream, mut outlet| {
            // Apart from the stream's life: opening may mean connecting, whose state nested calls hold several times over.
            // As a part of it, the task of an idle stream had 125 KB (measured by what malloc was asked for).
            let opening = Box::pin(async {
                let (stdio, directory, options) = *asked;
                let routes = routes(stdio, &directory).await?;
                let session = client.way_for(&options).await?.session(&options, routes).await?;
                Ok::<_, Fault>(Box::new(session))
            });
            match opening.await {
                Ok(mut opened) => stream.carry_session(&mut opened, &mut outlet).await,
                Err(fault) => stream.fail(&fault),
            }
        })
    }

    /// Opens a tunnel to a TCP port as seen from the server; returns the stream's number.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn open_tcp(
        &self,
        client: u32,
        host: String,
        port: u16,
        from_host: String,
        from_port: u16,
    ) -> napi::Result<u32> {
        self.inner.open(client, async move |client, stream, mut outlet| {
            let from = (&*from_host, from_port);
            let tunnel = Box::pin(async { client.way().await?.tcp(&host, port, from).await });
            carry(&stream, tunnel, &mut outlet).await;
        })
    }

    /// Opens a tunnel to a Unix socket of the server; returns the stream's number.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn open_socket(&self, client: u32, path: String) -> napi::Result<u32> {
        self.inner.open(client, async move |client, stream, mut outlet| {
            let tunnel = Box::pin(async { client.way().await?.socket(&path).await });
            carry(&stream, tunnel, &mut outlet).await;
        })
    }

    /// Opens an SFTP session, with names and values for its server's environment; returns its number.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn open_sftp(&self, client: u32, env: Vec<Vec<String>>) -> napi::Result<u32> {
        let runtime = runtime::runtime()?;
        let env = variables(env);
        let number = self.inner.numbers(1);
        let Some(client) = self.inner.client(client) else {
            self.inner.refuse(number);
            return Ok(number);
        };
        let session = SftpSession::new(runtime, number, &self.inner.outbox);
        self.inner.lock_held().sftps.insert(number, session.clone());
        let inner = self.inner.clone();
        runtime.spawn(async move {
            let opened = session.live(client, env).await;
            inner.lock_held().sftps.remove(&number);
            if opened {
                inner.outbox.tell(number, Kind::Close, Value::Null);
            }
        });
        Ok(number)
    }

    /// Begins an operation of an SFTP session; returns the number under which its outcome is told.
    #[napi]
    pub fn sftp_call(&self, sftp: u32, call: SftpCall) -> u32 {
        let number = self.inner.numbers(1);
        let session = self.inner.lock_held().sftps.get(&sftp).cloned();
        match session {
            Some(session) => session.call(number, call),
            None => self.inner.refuse(number),
        }
        number
    }

    /// Closes an SFTP session.
    #[napi]
    pub fn close_sftp(&self, sftp: u32) {
        let session = self.inner.lock_held().sftps.get(&sftp).cloned();
        if let Some(session) = session {
            session.close();
        }
    }

    /// Has the server listen, on a TCP port or (without one) on a Unix socket; returns the request's number.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn listen(&self, client: u32, address: String, port: Option<u16>) -> napi::Result<u32> {
        let runtime = runtime::runtime()?;
        let request = self.inner.numbers(1);
        let listen = match port {
            Some(port) => Listen::Tcp {
                host: Some(address),
                port,
            },
            None => Listen::Socket(PathBuf::from(address)),
        };
        let Some(client) = self.inner.client(client) else {
            self.inner.refuse(request);
            return Ok(request);
        };
        let inner = self.inner.clone();
        let taker = client.clone();
        let offer = move |incoming| {
            let number = inner.numbers(1);
            inner
                .lock_held()
                .incoming
                .insert(number, (taker.clone(), incoming));
            number
        };
        runtime.spawn(client.listen(request, listen, offer));
        Ok(request)
    }

    /// Listens on a Unix socket of this machine and carries its clients to a TCP port or (without one) a Unix socket, as
    /// seen from the server; returns the request's number.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn forward_socket(
        &self,
        client: u32,
        path: String,
        target: String,
        port: Option<u16>,
    ) -> napi::Result<u32> {
        let runtime = runtime::runtime()?;
        let request = self.inner.numbers(1);
        let target = match port {
            Some(port) => ForwardTarget::Tcp { host: target, port },
            None => ForwardTarget::Socket(PathBuf::from(target)),
        };
        match self.inner.client(client) {
            Some(client) => drop(runtime.spawn(client.forward_socket(request, path.into(), target))),
            None => self.inner.refuse(request),
        }
        Ok(request)
    }

    /// Ends a listening.
    #[napi]
    pub fn unlisten(&self, client: u32, request: u32) {
        if let Some(client) = self.inner.client(client) {
            client.unlisten(request);
        }
    }

    /// Takes a listener's client: its number is the stream's from now on. `false` if it is gone.
    ///
    /// # Errors
    /// No threads.
    #[napi]
    pub fn accept(&self, number: u32) -> napi::Result<bool> {
        let Some((client, incoming)) = self.inner.lock_held().incoming.remove(&number) else {
            return Ok(false);
        };
        self.inner
            .begin(number, client, async move |_, stream, mut outlet| {
                let tunnel = Box::pin(incoming.accept());
                carry(&stream, tunnel, &mut outlet).await;
            })?;
        Ok(true)
    }

    /// Refuses a listener's client.
    #[napi]
    pub fn reject(&self, number: u32) {
        let refused = self.inner.lock_held().incoming.remove(&number);
        drop(refused);
    }

    /// Wants a chunk of a stream, or of its standard error. The next one comes only when it is wanted again.
    #[napi]
    pub fn read(&self, stream: u32, standard_error: bool) {
        if let Some(stream) = self.inner.stream(stream) {
            stream.read(standard_error);
        }
    }

    /// Writes; `false` if there is no more room, until an event says so.
    #[napi]
    pub fn write(&self, stream: u32, data: Uint8Array) -> bool {
        self.inner
            .stream(stream)
            .is_none_or(|stream| stream.write(Bytes::copy_from_slice(&data)))
    }

    /// Ends what is written to a stream.
    #[napi]
    pub fn finish(&self, stream: u32) {
        if let Some(stream) = self.inner.stream(stream) {
            stream.finish();
        }
    }

    /// Forgets a stream, and ends it if it is not over. Nothing more is told of it but what is on its way.
    #[napi]
    pub fn destroy(&self, stream: u32) {
        let forgotten = self.inner.lock_held().streams.remove(&stream);
        if let Some(stream) = forgotten {
            stream.destroy();
        }
    }

    /// Sends a signal, by name without "SIG".
    #[napi]
    pub fn signal(&self, stream: u32, name: String) {
        if let Some(control) = self.inner.stream(stream).as_ref().and_then(|s| s.control()) {
            control.signal(&name);
        }
    }

    /// Tells of a terminal's new size: characters, then pixels.
    #[napi]
    pub fn resize(&self, stream: u32, cols: u32, rows: u32, width: u32, height: u32) {
        if let Some(control) = self.inner.stream(stream).as_ref().and_then(|s| s.control()) {
            control.resize(TerminalSize {
                columns: cols,
                rows,
                width,
                height,
            });
        }
    }

    /// Returns the number of clients and streams in the hub.
    #[napi]
    pub fn held(&self) -> Vec<u32> {
        let held = self.inner.lock_held();
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        vec![count(held.clients.len()), count(held.streams.len())]
    }
}

impl Inner {
    /// The first of so many numbers in a row.
    fn numbers(&self, count: u32) -> u32 {
        self.next.fetch_add(count, Ordering::Relaxed)
    }

    /// Guards what is held, for as long as a look-up takes.
    fn lock_held(&self) -> MutexGuard<'_, Objects> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, number: u32) -> Option<Arc<Client>> {
        self.lock_held().clients.get(&number).cloned()
    }

    fn stream(&self, number: u32) -> Option<Arc<Stream>> {
        self.lock_held().streams.get(&number).cloned()
    }

    /// Makes a stream whose life `life` is, on the engine's threads.
    fn open<L, F>(self: &Arc<Self>, client: u32, life: L) -> napi::Result<u32>
    where
        L: FnOnce(Arc<Client>, Arc<Stream>, Outlet) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let number = self.numbers(1);
        match self.client(client) {
            Some(client) => self.begin(number, client, life)?,
            None => self.refuse(number),
        }
        Ok(number)
    }

    /// The same under a number that is there already.
    fn begin<L, F>(&self, number: u32, client: Arc<Client>, life: L) -> napi::Result<()>
    where
        L: FnOnce(Arc<Client>, Arc<Stream>, Outlet) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = runtime::runtime()?;
        let (stream, outlet) = Stream::new(number, Some(client.number()), &self.outbox);
        self.lock_held().streams.insert(number, stream.clone());
        runtime.spawn(async move {
            // In a box: each future that is given another one by value holds it twice, and an idle stream's task had 28 KB.
            let life = Box::pin(life(client.clone(), stream.clone(), outlet));
            stream.until_destroyed(client.run_during(&stream, life)).await;
        });
        Ok(())
    }

    /// Runs a client's life on the engine's threads.
    fn live(self: &Arc<Self>, number: u32, mut begun: Begun) -> napi::Result<u32> {
        let runtime = runtime::runtime()?;
        if let Some(pipe) = begun.pipe.take() {
            let (stream, mut outlet) = Stream::new(number + 1, None, &self.outbox);
            self.lock_held().streams.insert(number + 1, stream.clone());
            runtime.spawn(async move {
                let life = stream.carry_pipe(pipe, &mut outlet);
                stream.until_destroyed(life).await;
            });
        }
        self.lock_held().clients.insert(number, begun.client.clone());
        let inner = self.clone();
        runtime.spawn(async move {
            let end = begun.live().await;
            // Who hears of the end finds nothing left.
            inner.lock_held().forget(number);
            inner.outbox.tell(number, Kind::Close, end);
        });
        Ok(number)
    }

    /// Says that what was asked for has no client any more.
    fn refuse(&self, number: u32) {
        self.outbox
            .tell(number, Kind::Fail, Fault::usage("Not connected").to_json());
    }

    /// Ends everything: the environment is going away.
    fn shut(&self) {
        self.outbox.close();
        let held = std::mem::take(&mut *self.lock_held());
        for stream in held.streams.values() {
            stream.destroy();
        }
        for session in held.sftps.values() {
            session.close();
        }
        for client in held.clients.values() {
            client.close();
        }
    }
}

async fn carry(stream: &Stream, tunnel: impl Future<Output = Result<Tunnel, Failure>>, outlet: &mut Outlet) {
    match tunnel.await {
        Ok(tunnel) => stream.carry_tunnel(tunnel, outlet).await,
        Err(failure) => stream.fail(&failure.into()),
    }
}
