//! Agent forwarding: `auth-agent@openssh.com` channels, each to a connection of its own to the agent here.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::splice::{Ahead, LocalStream, Traffic, splice};
use crate::agent::{Agent, AgentError};
use crate::config::{ForwardAgent, HostConfig};
use crate::connection::incoming::{Incoming, ListenKey, Offered};
use crate::connection::timing::idle::{Activity, Idle};
use crate::connection::{ConnectionInfo, SessionBinding};

/// Lends the host's agent to the server from now on. The first session that asks for it does this; sshd shares the
/// agent between all sessions of a connection anyway.
pub(crate) fn lend(incoming: &Incoming, host: &Arc<HostConfig>, info: &Arc<OnceLock<ConnectionInfo>>) {
    let Some(socket) = socket(host) else { return };
    let (socket, host, info) = (socket.to_owned(), host.clone(), info.clone());
    let told = AtomicBool::new(false);
    incoming.listen(
        ListenKey::Agent,
        Arc::new(move |offered| {
            let Some(info) = info.get() else { return };
            if info.unverified {
                // Once: the server may ask as often as it likes.
                if told.swap(true, Ordering::Relaxed) {
                    return;
                }
                tracing::warn!(host = %host.original_host, "the agent is not forwarded: the host key was not verified");
                return;
            }
            tokio::spawn(carry(offered, socket.clone(), info.binding.clone(), host.clone()));
        }),
    );
}

/// The agent that the host may use; `None` if it may use none.
fn socket(host: &HostConfig) -> Option<&Path> {
    match &host.forward_agent {
        ForwardAgent::No => None,
        ForwardAgent::Yes => host.identity_agent.as_deref(),
        ForwardAgent::Socket(path) => Some(path),
    }
}

/// Returns whether the agent that the host may use takes connections now. Where it does not (an SSH_AUTH_SOCK of a
/// session that has ended), ssh does not offer it, and a shell over there finds none (ssh.c, `check_agent_present`).
pub(crate) async fn is_there(host: &HostConfig) -> bool {
    match socket(host) {
        Some(path) => Agent::connect(path).await.is_ok(),
        None => false,
    }
}

async fn carry(offered: Offered, socket: PathBuf, binding: SessionBinding, host: Arc<HostConfig>) {
    // One of the connection, not of a request.
    let idle = Idle::for_channel(&host, "agent-connection", &Activity::new());
    match connect(&socket, &binding).await {
        Ok(agent) => splice(agent, offered.accept(idle), Ahead::default(), &Traffic::default()).await,
        Err(error) => tracing::warn!(host = %host.original_host, %error, "the agent could not be forwarded"),
    }
}

/// The binding comes before anything the server may say. An agent that does not know it, or does not want it, decides
/// about each signature by itself, as with OpenSSH.
async fn connect(socket: &Path, binding: &SessionBinding) -> Result<LocalStream, AgentError> {
    let mut agent = Agent::connect(socket).await?;
    let SessionBinding {
        host_key,
        session_id,
        signature,
    } = binding;
    if !agent.bind_session(host_key, session_id, signature, true).await? {
        tracing::debug!("the agent does not bind its keys to sessions");
    }
    Ok(LocalStream::Unix(agent.into_stream()))
}
