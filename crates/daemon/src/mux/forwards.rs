//! The forwardings that a socket's clients asked for. They belong to the socket and outlive the client, as with
//! OpenSSH's master.

use std::path::{Path, PathBuf};

use tokio::sync::Mutex;
use trunkline::config::{self, ForwardTarget, Listen};
use trunkline::{Error, ForwardHandle, Host, Invalid};

use super::wire::{Address, Forward, Reply};
use crate::protocol::ForwardKind;
use crate::session::forwards::list;
use trunkline_audit::{Entry, Subject};

/// The open forwardings.
#[derive(Default)]
pub(super) struct Forwards {
    /// The lock is also held while the server is asked. If two clients ask for the same forwarding, the second waits
    /// and finds it open.
    standing: Mutex<Vec<Forwarding>>,
}

struct Forwarding {
    asked: Forward,
    meant: config::Forward,
    handle: ForwardHandle,
    /// The forwarding's record in the audit trail, which ends with it.
    _entry: Entry,
}

impl Forwards {
    /// Opens a forwarding and begins its record, `entry`. Succeeds if the forwarding is open already. Relative paths
    /// start at `cwd`.
    ///
    /// # Errors
    /// The request is invalid, its address cannot be listened on, or the server refuses.
    pub(super) async fn open(
        &self,
        host: &Host,
        cwd: &Path,
        asked: Forward,
        entry: impl FnOnce(Subject) -> Entry,
    ) -> Result<Reply, Error> {
        let wanted = meaning(&asked, cwd)?;
        let mut standing = self.standing.lock().await;
        standing.retain(|forward| !forward.handle.has_ended());
        if let Some(known) = standing.iter().find(|forward| forward.asked == asked) {
            return Ok(known.answer());
        }
        let entry = entry(Subject::forwarding(host.config(), asked.kind, &wanted));
        let handle = trunkline_audit::open(host, asked.kind, &wanted, &entry).await?;
        let opened = Forwarding {
            asked,
            meant: wanted,
            handle,
            _entry: entry,
        };
        let answer = opened.answer();
        standing.push(opened);
        Ok(answer)
    }

    /// Ends a forwarding; its connections continue. Returns false if there is none.
    pub(super) async fn close(&self, asked: &Forward) -> bool {
        let mut standing = self.standing.lock().await;
        let Some(found) = standing.iter().position(|forward| forward.is(asked)) else {
            return false;
        };
        let ended = standing.swap_remove(found);
        ended.handle.close().await;
        true
    }

    /// Lists all forwardings for display.
    pub(super) async fn list(&self) -> String {
        let mut standing = self.standing.lock().await;
        standing.retain(|forward| !forward.handle.has_ended());
        list(
            standing
                .iter()
                .map(|forward| (forward.asked.kind, &forward.meant, &forward.handle)),
        )
    }

    /// Ends all forwardings with their connections.
    pub(super) async fn abort(&self) {
        for ended in self.standing.lock().await.drain(..) {
            ended.handle.abort().await;
        }
    }
}

impl Forwarding {
    /// Returns the reply, with the port if the server chose it (PROTOCOL.mux section 6).
    fn answer(&self) -> Reply {
        match (self.asked.kind, &self.asked.listen) {
            (ForwardKind::Remote, Address::Tcp { port: 0, .. }) => {
                self.handle.port().map_or(Reply::Ok, Reply::RemotePort)
            }
            _ => Reply::Ok,
        }
    }

    /// Returns true if `asked` names this forwarding, either as it was requested or by the port that the server chose.
    fn is(&self, asked: &Forward) -> bool {
        let mut asked = asked.clone();
        if let (Address::Tcp { port: 0, .. }, Address::Tcp { port, .. }) =
            (&self.asked.listen, &mut asked.listen)
            && self.handle.port() == Some(*port)
        {
            *port = 0;
        }
        self.asked == asked
    }
}

/// Converts the request for the engine (mux.c, `mux_master_process_open_fwd`; readconf.c, `parse_forward`).
fn meaning(asked: &Forward, cwd: &Path) -> Result<config::Forward, Error> {
    let invalid = || Error::from(Invalid::ForwardingRequest);
    let path = |path: &str, here: bool| -> PathBuf { if here { cwd.join(path) } else { path.into() } };
    let remote = asked.kind == ForwardKind::Remote;
    let listen = match &asked.listen {
        Address::Socket(_) if asked.kind == ForwardKind::Dynamic => return Err(invalid()),
        Address::Socket(listen) => Listen::Socket(path(listen, !remote)),
        Address::Tcp { host, port } => Listen::Tcp {
            host: (!host.is_empty()).then(|| host.clone()),
            port: *port,
        },
    };
    let target = match &asked.connect {
        _ if asked.kind == ForwardKind::Dynamic => ForwardTarget::Socks,
        Address::Socket(target) => ForwardTarget::Socket(path(target, remote)),
        // ssh sends `-R PORT` alone with port 0 and a name for it.
        Address::Tcp { port: 0, .. } if remote => ForwardTarget::Socks,
        Address::Tcp { host, port } if *port != 0 && !host.is_empty() => ForwardTarget::Tcp {
            host: host.clone(),
            port: *port,
        },
        Address::Tcp { .. } => return Err(invalid()),
    };
    Ok(config::Forward { listen, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp {
            host: host.into(),
            port,
        }
    }

    fn means(kind: ForwardKind, listen: Address, connect: Address) -> Option<config::Forward> {
        let asked = Forward {
            kind,
            listen,
            connect,
        };
        meaning(&asked, Path::new("/home/me")).ok()
    }

    #[test]
    fn an_empty_listen_host_follows_gateway_ports_and_a_star_is_every_address() {
        for (host, meant) in [("", None), ("*", Some("*")), ("::1", Some("::1"))] {
            let forward = means(ForwardKind::Local, tcp(host, 80), tcp("db", 5432)).unwrap();
            let expected = Listen::Tcp {
                host: meant.map(Into::into),
                port: 80,
            };
            assert_eq!(forward.listen, expected);
        }
    }

    #[test]
    fn a_remote_forward_without_a_target_is_socks_and_a_local_one_makes_no_sense() {
        let forward = means(ForwardKind::Remote, tcp("", 0), tcp("socks", 0)).unwrap();
        assert_eq!(forward.target, ForwardTarget::Socks);
        assert!(means(ForwardKind::Local, tcp("", 80), tcp("db", 0)).is_none());
        assert!(means(ForwardKind::Local, tcp("", 80), tcp("", 80)).is_none());
        assert!(means(ForwardKind::Dynamic, Address::Socket("/s".into()), tcp("", 0)).is_none());
    }

    #[test]
    fn relative_paths_begin_where_the_caller_is_on_this_side_only() {
        let socket = |path: &str| Address::Socket(path.into());
        let forward = means(ForwardKind::Local, socket("here"), socket("there")).unwrap();
        assert_eq!(forward.listen, Listen::Socket("/home/me/here".into()));
        assert_eq!(forward.target, ForwardTarget::Socket("there".into()));
        let forward = means(ForwardKind::Remote, socket("there"), socket("here")).unwrap();
        assert_eq!(forward.listen, Listen::Socket("there".into()));
        assert_eq!(forward.target, ForwardTarget::Socket("/home/me/here".into()));
    }
}
