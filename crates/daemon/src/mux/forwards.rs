//! The forwardings that clients of a socket asked for. They belong to the socket: they continue when the client has left,
//! as with OpenSSH's master.

use std::path::{Path, PathBuf};

use tokio::sync::Mutex;
use trunkline::config::{self, ForwardTarget, Listen};
use trunkline::{Error, ForwardHandle, Host, Invalid};

use super::wire::{Address, Forward, Reply};
use crate::protocol::ForwardKind;
use crate::session::forwards::list;
use trunkline_audit::{Entry, Subject};

/// Those that stand.
#[derive(Default)]
pub(super) struct Forwards {
    /// Guards the list, also while the server is asked, so that of two clients that ask for the same one waits and is
    /// told that it is there.
    standing: Mutex<Vec<Forwarding>>,
}

struct Forwarding {
    asked: Forward,
    meant: config::Forward,
    handle: ForwardHandle,
    /// Its record in the audit trail, to its end.
    _entry: Entry,
}

impl Forwards {
    /// Opens a forwarding, of which `entry` records the beginning; one that stands already is fine. Relative paths begin at
    /// `cwd`.
    ///
    /// # Errors
    /// It makes no sense; it cannot be listened; the server refuses.
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

    /// Ends a forwarding; what it carries continues. `false` when there is none such.
    pub(super) async fn close(&self, asked: &Forward) -> bool {
        let mut standing = self.standing.lock().await;
        let Some(found) = standing.iter().position(|forward| forward.is(asked)) else {
            return false;
        };
        let ended = standing.swap_remove(found);
        ended.handle.close().await;
        true
    }

    /// All of them, for people.
    pub(super) async fn list(&self) -> String {
        let mut standing = self.standing.lock().await;
        standing.retain(|forward| !forward.handle.has_ended());
        list(
            standing
                .iter()
                .map(|forward| (forward.asked.kind, &forward.meant, &forward.handle)),
        )
    }

    /// Ends all of them, with what they carry.
    pub(super) async fn abort(&self) {
        for ended in self.standing.lock().await.drain(..) {
            ended.handle.abort().await;
        }
    }
}

impl Forwarding {
    /// The port that the server chose, where it was to choose one (PROTOCOL.mux section 6).
    fn answer(&self) -> Reply {
        match (self.asked.kind, &self.asked.listen) {
            (ForwardKind::Remote, Address::Tcp { port: 0, .. }) => {
                self.handle.port().map_or(Reply::Ok, Reply::RemotePort)
            }
            _ => Reply::Ok,
        }
    }

    /// Returns whether this is the one that is meant: by what was asked for, or by the port that became of it.
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

/// Returns the request in the engine's terms (mux.c, `mux_master_process_open_fwd`, and readconf.c, `parse_forward`).
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
        // `-R PORT` alone is asked for with port 0 and a name that says so.
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
