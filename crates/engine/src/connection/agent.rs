//! Agent forwarding: `auth-agent@openssh.com` channels, each with its own connection to this side's agent.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::splice::{Ahead, LocalStream, Traffic, splice};
use crate::agent::{Agent, AgentError};
use crate::config::{ForwardAgent, HostConfig};
use crate::connection::incoming::{Incoming, ListenKey, Offered};
use crate::connection::timing::idle::{Activity, Idle};
use crate::connection::{ConnectionInfo, SessionBinding};

/// Lends the host's agent to the server from now on, for the first session that requests it. sshd shares the agent
/// between all sessions of a connection anyway.
pub(crate) fn lend(incoming: &Incoming, host: &Arc<HostConfig>, info: &Arc<OnceLock<ConnectionInfo>>) {
    let Some(socket) = socket(host) else { return };
    let (socket, host, info) = (socket.to_owned(), host.clone(), info.clone());
    let told = AtomicBool::new(false);
    incoming.listen(
        ListenKey::Agent,
        Arc::new(move |offered| {
            let Some(info) = info.get() else { return };
            if info.unverified {
                // Warn once: the server may ask as often as it likes.
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

/// Returns the agent that the host may use, if any.
fn socket(host: &HostConfig) -> Option<&Path> {
    match &host.forward_agent {
        ForwardAgent::No => None,
        ForwardAgent::Yes => host.identity_agent.as_deref(),
        ForwardAgent::Socket(path) => Some(path),
    }
}

/// Returns whether the host's agent accepts connections now. If it does not (an SSH_AUTH_SOCK of a session that has
/// ended), ssh does not offer it, and a remote shell finds none (ssh.c, `check_agent_present`).
pub(crate) async fn is_there(host: &HostConfig) -> bool {
    match socket(host) {
        Some(path) => Agent::connect(path).await.is_ok(),
        None => false,
    }
}

async fn carry(offered: Offered, socket: PathBuf, binding: SessionBinding, host: Arc<HostConfig>) {
    // The timeout counts for the connection, not for a request.
    let idle = Idle::for_channel(&host, "agent-connection", &Activity::new());
    match connect(&socket, &binding).await {
        Ok(agent) => splice(agent, offered.accept(idle), Ahead::default(), &Traffic::default()).await,
        Err(error) => tracing::warn!(host = %host.original_host, %error, "the agent could not be forwarded"),
    }
}

/// Connects to the agent, and binds it to the session before anything the server may send. An agent that does not know
/// or want the binding decides about each signature by itself, as with OpenSSH.
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
