//! A server's offers while its connection lives: forwarded connections, and its list of host keys.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trunkline_proto::GlobalRequest;

use crate::config::{HostConfig, UpdateHostKeys};
use crate::connection::channel::Op;
use crate::connection::driver::Offer;
use crate::connection::incoming::Incoming;
use crate::connection::login::HostKeyVerifier;
use crate::connection::queue;
use crate::host_key::{KeyUpdate, Policy, Server, Trust, UnprovenKeys};
use crate::interaction::Interaction;
use crate::prompt::{Prompt, PromptKind};

/// The time limit for a server to prove its host keys. A connection that ends waits for that.
const PROOF_LIMIT: Duration = Duration::from_secs(10);

/// UpdateHostKeys for one connection, or what a program's verifier gets instead.
pub(super) struct HostKeyUpdates {
    pub(super) verifier: Option<Arc<dyn HostKeyVerifier>>,
    pub(super) policy: Policy,
    pub(super) trust: Trust,
    pub(super) host: Arc<HostConfig>,
    pub(super) address: Option<IpAddr>,
    pub(super) session_id: Bytes,
    pub(super) host_key_algorithm: String,
    pub(super) interaction: Interaction,
}

impl HostKeyUpdates {
    /// Gives the program the keys that the server proves to have, if it wants them.
    async fn tell(self, verifier: &dyn HostKeyVerifier, advertised: &[u8], incoming: &Incoming) {
        let Some(listed) = UnprovenKeys::parse_advertised(advertised) else {
            return;
        };
        let Some(request) = listed.proof_request() else {
            return;
        };
        if !verifier.wants_proof().await {
            return;
        }
        let Some(reply) = incoming.global(GlobalRequest::HostKeysProve(request)).await else {
            return;
        };
        let host = &self.host.hostname;
        match listed.prove(host, &self.session_id, &self.host_key_algorithm, &reply) {
            Ok(keys) => verifier.proven(keys),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    async fn learn(self, advertised: Bytes, incoming: &Incoming) {
        if let Some(verifier) = self.verifier.clone() {
            let telling = self.tell(&*verifier, &advertised, incoming);
            let _ = tokio::time::timeout(PROOF_LIMIT, telling).await;
            return;
        }
        if self.policy.update == UpdateHostKeys::No {
            return;
        }
        let server = Server {
            name: &self.host.hostname,
            port: self.host.port,
            alias: self.host.host_key_alias.as_deref(),
            address: self.address,
        };
        let algorithms = &self.host.host_key_algorithms;
        let Some(plan) = KeyUpdate::plan(&self.policy, &self.trust, &server, &advertised, algorithms) else {
            return;
        };
        let reply = match plan.proof_request() {
            None => Bytes::new(),
            Some(keys) => {
                let asked = incoming.global(GlobalRequest::HostKeysProve(keys));
                match tokio::time::timeout(PROOF_LIMIT, asked).await {
                    Ok(Some(reply)) => reply,
                    Ok(None) | Err(_) => return,
                }
            }
        };
        let proven = match plan.prove(&self.session_id, &self.host_key_algorithm, &reply) {
            Ok(proven) => proven,
            Err(error) => return tracing::warn!("{error}"),
        };
        if self.policy.update == UpdateHostKeys::Ask {
            let prompt = Prompt::new(PromptKind::Confirm, proven.question(), true);
            match self.interaction.prompter().ask(&prompt).await {
                Some(answer) if answer.trim().eq_ignore_ascii_case("yes") => {}
                _ => return,
            }
        }
        let applied = tokio::task::spawn_blocking(move || proven.apply()).await;
        if let Ok(Err(error)) = applied {
            self.interaction.notice(&format!("Warning: {error}"));
        }
    }
}

/// Serves what the server offers: forwarded connections, and its list of host keys.
pub(super) async fn serve_offers(
    mut offers: queue::Receiver<Box<Offer>>,
    incoming: &Arc<Incoming>,
    mut updates: Option<Box<HostKeyUpdates>>,
) -> std::convert::Infallible {
    loop {
        match offers.recv().await.map(|offer| *offer) {
            Some(Offer::Channel { id, kind }) => incoming.offer(id, kind),
            Some(Offer::HostKeys(advertised)) => {
                let (Some(ops), updates, incoming) = (incoming.hold(), updates.take(), incoming.clone())
                else {
                    continue;
                };
                tokio::spawn(async move {
                    if let Some(updates) = updates {
                        updates.learn(advertised, &incoming).await;
                    }
                    let _ = ops.send(Op::HostKeysLearned);
                });
            }
            None => std::future::pending().await,
        }
    }
}
