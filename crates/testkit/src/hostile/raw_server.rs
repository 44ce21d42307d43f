//! A server that runs a script for each client.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::Notify;

use super::few_sessions::Oddity;
use super::identity::Identity;
use super::key_exchange::KeyExchange;
use super::misbehaviour::Misbehaviour;
use super::payload::Payload;
use super::session_misbehaviour::SessionMisbehaviour;
use super::steering::Steering;
use super::wire::{BANNER, Wire};
use crate::Error;
use crate::background::Background;
use crate::log::PATIENCE;

/// A server on loopback that runs the same script for each client that connects.
///
/// A script is an async function of the connection's [`Wire`]. When it returns, the connection is closed. Its result,
/// or its panic, is available from [`RawServer::outcome`], so a script can contain the test's assertions.
#[derive(Debug)]
pub struct RawServer {
    identity: Identity,
    outcomes: Arc<Outcomes>,
    executed: Arc<Mutex<Vec<String>>>,
    _background: Background,
}

impl Deref for RawServer {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl RawServer {
    /// Runs `script` as soon as a client has connected. Not even a banner has been sent then.
    ///
    /// # Errors
    /// When no port is free, or ssh-keygen, which makes a key for the client, is missing.
    pub fn from_connect<S, F>(script: S) -> Result<RawServer, Error>
    where
        S: Fn(Wire) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let (listener, identity) = Identity::listen("raw", false)?;
        let host_key = Arc::new(Ed25519KeyPair::generate().map_err(io::Error::other)?);
        let outcomes = Arc::new(Outcomes::default());
        let (script, key, told) = (Arc::new(script), Arc::clone(&host_key), Arc::clone(&outcomes));
        let background = Background::accept("raw-server", listener, move |stream| {
            told.lock().connections += 1;
            let wire = Wire::new(stream, Arc::clone(&key));
            let (script, outcomes) = (Arc::clone(&script), Arc::clone(&told));
            tokio::spawn(async move {
                // A separate task, so that a panic is an outcome too.
                let outcome = match tokio::spawn(async move { script(wire).await }).await {
                    Ok(outcome) => outcome.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                outcomes.lock().ended.push_back(outcome);
                outcomes.told.notify_waiters();
            });
        })?;

        let blob = Payload::empty()
            .string("ssh-ed25519")
            .string(host_key.public_key().as_ref());
        identity.trust(&format!("ssh-ed25519 {}", STANDARD.encode(&blob)))?;
        Ok(RawServer {
            identity,
            outcomes,
            executed: Arc::default(),
            _background: background,
        })
    }

    /// Runs `script` after a correct key exchange. The client's next message is SERVICE_REQUEST.
    ///
    /// # Errors
    /// As [`RawServer::from_connect`].
    pub fn script<S, F>(script: S) -> Result<RawServer, Error>
    where
        S: Fn(Wire) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        RawServer::script_after(KeyExchange::default(), script)
    }

    /// Runs `script` after this key exchange.
    ///
    /// # Errors
    /// As [`RawServer::from_connect`].
    pub fn script_after<S, F>(exchange: KeyExchange, script: S) -> Result<RawServer, Error>
    where
        S: Fn(Wire) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let played = Arc::new((exchange, script));
        RawServer::from_connect(move |mut wire| {
            let played = Arc::clone(&played);
            async move {
                let (exchange, script) = &*played;
                wire.exchange_banners(BANNER).await?;
                wire.exchange_keys(exchange).await?;
                script(wire).await
            }
        })
    }

    /// Runs one of the kit's [`Misbehaviour`]s.
    ///
    /// # Errors
    /// As [`RawServer::from_connect`].
    pub fn misbehaving(misbehaviour: Misbehaviour) -> Result<RawServer, Error> {
        RawServer::from_connect(move |wire| misbehaviour.play(wire))
    }

    /// Runs one of the kit's [`SessionMisbehaviour`]s, in the middle of a session.
    ///
    /// # Errors
    /// As [`RawServer::from_connect`].
    pub fn misbehaving_in_session(misbehaviour: SessionMisbehaviour) -> Result<RawServer, Error> {
        RawServer::script(move |wire| misbehaviour.play(wire))
    }

    /// Runs one of the kit's [`Oddity`]s, with the identification `banner`. Each command that it runs is in
    /// [`RawServer::executed_commands`].
    ///
    /// # Errors
    /// As [`RawServer::from_connect`].
    pub fn odd(oddity: Oddity, banner: &'static str) -> Result<RawServer, Error> {
        let executed = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&executed);
        let mut server = RawServer::from_connect(move |mut wire| {
            let told = Arc::clone(&told);
            async move {
                wire.exchange_banners(banner).await?;
                wire.exchange_keys(&KeyExchange::default()).await?;
                let tell = |command: &str| {
                    told.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(command.to_owned());
                };
                oddity.play(wire, tell).await
            }
        })?;
        server.executed = executed;
        Ok(server)
    }

    /// Returns the commands that an [odd](RawServer::odd) server has run, in order.
    pub fn executed_commands(&self) -> Vec<String> {
        self.executed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends control sequences for a terminal, in one of the texts that a server sends.
    ///
    /// # Errors
    /// As [`RawServer::from_connect`].
    pub fn steering(steering: Steering) -> Result<RawServer, Error> {
        RawServer::from_connect(move |wire| steering.play(wire))
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.outcomes.lock().connections
    }

    /// Waits for the next connection's script to end, and returns its outcome. Each outcome is returned once.
    ///
    /// # Errors
    /// [`Error::Script`] when the script failed (the client did something else than it expected) or panicked;
    /// [`Error::Timeout`] after a minute.
    pub async fn outcome(&self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            // Requested before the check, so that an outcome in between is not missed.
            let told = self.outcomes.told.notified();
            if let Some(outcome) = self.outcomes.lock().ended.pop_front() {
                return outcome.map_err(Error::Script);
            }
            let left = PATIENCE.saturating_sub(started.elapsed());
            tokio::time::timeout(left, told)
                .await
                .map_err(|_| Error::Timeout {
                    what: "a script to end".to_owned(),
                    seconds: PATIENCE.as_secs(),
                    log: format!("{} connections accepted", self.connections()),
                })?;
        }
    }
}

#[derive(Debug, Default)]
struct Outcomes {
    state: Mutex<OutcomeState>,
    told: Notify,
}

#[derive(Debug, Default)]
struct OutcomeState {
    connections: usize,
    ended: VecDeque<Result<(), String>>,
}

impl Outcomes {
    fn lock(&self) -> MutexGuard<'_, OutcomeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
