//! Listening sockets for forwardings: TCP by ssh's rules for bind addresses, and Unix sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use rustix::fs::Mode;
use rustix::net::{AddressFamily as Domain, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

use crate::config::{HostConfig, Listen};
use crate::connection::splice::{LocalStream, is_of};
use crate::error::{Doing, Error};

/// The most connections that wait to be accepted (ssh.h, `SSH_LISTEN_BACKLOG`).
const BACKLOG: u32 = 128;

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The listening sockets, and the reasons why other addresses failed.
pub(super) struct Bound {
    pub(super) listeners: Vec<Listener>,
    pub(super) failed: Vec<Error>,
}

/// Listens according to `listen`. Without an address, GatewayPorts decides. `""` and `*` mean all addresses,
/// `localhost` loopback, each in both families that AddressFamily and the machine allow. As with ssh, one free address
/// suffices; failures of the others are reported.
///
/// # Errors
/// No address is free, or the socket's path is taken.
pub(super) async fn bind(listen: &Listen, host: &HostConfig) -> Result<Bound, Error> {
    match listen {
        Listen::Tcp { host: address, port } => bind_tcp(address.as_deref(), *port, host).await,
        Listen::Socket(path) => {
            let file = bind_unix(path, host.stream_local_bind_mask, host.stream_local_bind_unlink).await?;
            Ok(Bound {
                listeners: vec![file],
                failed: Vec::new(),
            })
        }
    }
}

async fn bind_tcp(name: Option<&str>, port: u16, host: &HostConfig) -> Result<Bound, Error> {
    let mut addresses = match well_known(name, host.gateway_ports) {
        Some(addresses) => addresses.to_vec(),
        None => {
            let name = name.unwrap_or_default();
            tokio::net::lookup_host((name, 0))
                .await
                .map_err(|source| Error::local(Doing::LookUpListener(name.to_owned()), source))?
                .map(|address| address.ip())
                .collect()
        }
    };
    addresses.retain(|address| is_of(SocketAddr::new(*address, 0), host.address_family));
    let (mut listeners, mut failed) = (Vec::new(), Vec::new());
    let mut chosen = port;
    for address in addresses {
        let address = SocketAddr::new(address, chosen);
        let listening = listen_tcp(address).and_then(|listener| {
            // Port 0 is one port for all addresses.
            chosen = listener.local_addr()?.port();
            Ok(Listener::Tcp(listener))
        });
        match listening {
            Ok(listener) => listeners.push(listener),
            Err(source) => {
                // A missing IPv6 is not reported. Another program on the port is: it shares the port with our clients.
                let is_missing = address.is_ipv6()
                    && matches!(
                        source.kind(),
                        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
                    );
                // ssh's message (channels.c, channel_setup_fwd_listener_tcpip), which scripts look for.
                let error = Error::local(format!("bind [{}]:{}", address.ip(), address.port()), source);
                failed.push((error, is_missing));
            }
        }
    }
    if listeners.is_empty() {
        let none = || {
            let name = name.unwrap_or("localhost");
            Error::configuration(
                host,
                format!("{name} has no address of the wanted family (AddressFamily) to listen on"),
            )
        };
        // ssh reports the last address of the resolver: for loopback that is IPv4; for all addresses it is IPv6, if
        // there is IPv6.
        let is_loopback = well_known(name, host.gateway_ports).is_some_and(|[v4, _]| v4.is_loopback());
        failed.sort_by_key(|(_, is_missing)| *is_missing == is_loopback);
        let told = if is_loopback {
            failed.into_iter().next()
        } else {
            failed.pop()
        };
        return Err(told.map_or_else(none, |(error, _)| error));
    }
    let failed = failed
        .into_iter()
        .filter(|(_, is_missing)| !is_missing)
        .map(|(error, _)| error)
        .inspect(|error| tracing::warn!("{error}"))
        .collect();
    Ok(Bound { listeners, failed })
}

/// Returns the addresses of ssh's special names (channels.c, `channel_fwd_bind_addr`). IPv4 is first: its error is the
/// relevant one on a machine without IPv6.
fn well_known(name: Option<&str>, gateway_ports: bool) -> Option<[IpAddr; 2]> {
    const ALL: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    match name {
        None if gateway_ports => Some(ALL),
        Some("" | "*") => Some(ALL),
        None | Some("localhost") => Some(LOOPBACK),
        Some(_) => None,
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        // 0.0.0.0 has its own socket.
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn bind_unix(path: &Path, mask: u32, unlink: bool) -> Result<Listener, Error> {
    // ssh's message (misc.c, unix_listener).
    let doing = || format!("unix_listener: cannot bind to path {}", path.display());
    match create_socket(path, mask) {
        Ok(listener) => return Ok(listener),
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(Error::local(doing(), error)),
        Err(_) => {}
    }
    let taken = |why| Error::Busy(format!("{}: Address already in use: {why}", doing()));
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Err(taken("something else has this name; choose another"));
    }
    if unlink {
        std::fs::remove_file(path)
            .map_err(|source| Error::local(format!("removing {}", path.display()), source))?;
        return create_socket(path, mask).map_err(|source| Error::local(doing(), source));
    }
    Err(taken(match UnixStream::connect(path).await {
        Ok(_) => "another program listens there",
        Err(_) => {
            "an old socket has this name, and nobody listens on it; remove it or set StreamLocalBindUnlink yes"
        }
    }))
}

fn create_socket(path: &Path, mask: u32) -> io::Result<Listener> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(Domain::UNIX, SocketType::STREAM, flags, None)?;
    // ssh sets its umask, which would apply to the whole process. Linux creates the file with the socket's mode, so
    // that it never allows more than the mask, not even for a moment.
    let mode = 0o777 & !mask;
    rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &address)?;
    let file = SocketFile::read(path)?;
    // The umask may have removed what the mask grants.
    if file.mode & 0o777 != mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    rustix::net::listen(&socket, BACKLOG as i32)?;
    Ok(Listener::Unix(UnixListener::from_std(socket.into())?, file))
}

/// A socket's file, removed on drop unless another file has taken its name.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    mode: u32,
}

impl SocketFile {
    fn read(path: &Path) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self {
            path: path.to_owned(),
            identity: identity(&found),
            mode: found.mode(),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self
            .path
            .symlink_metadata()
            .is_ok_and(|now| identity(&now) == self.identity)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl Listener {
    /// Returns its address, with the port that was chosen.
    pub(super) fn address(&self) -> Listen {
        match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr().ok();
                Listen::Tcp {
                    host: address.map(|address| address.ip().to_string()),
                    port: address.map_or(0, |address| address.port()),
                }
            }
            Self::Unix(_, file) => Listen::Socket(file.path.clone()),
        }
    }

    /// Returns the next client, and its address; a Unix socket's has none.
    pub(super) fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(LocalStream, Option<SocketAddr>)>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, peer)| {
                // If it fails, the client is gone, which its first use shows.
                let _ = stream.set_nodelay(true);
                (LocalStream::Tcp(stream), Some(peer))
            }),
            Self::Unix(listener, _) => listener
                .poll_accept(cx)
                .map_ok(|(stream, _)| (LocalStream::Unix(stream), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_ssh() {
        let all = |name, gateway| well_known(name, gateway).map(|[v4, _]| v4.is_unspecified());
        assert_eq!(all(None, false), Some(false));
        assert_eq!(all(None, true), Some(true));
        assert_eq!(all(Some(""), false), Some(true));
        assert_eq!(all(Some("*"), false), Some(true));
        assert_eq!(
            all(Some("localhost"), true),
            Some(false),
            "a given address overrides GatewayPorts"
        );
        assert_eq!(all(Some("10.0.0.1"), true), None);
    }

    #[tokio::test]
    async fn a_socket_has_the_masks_mode_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        for (name, mask, mode) in [("private", 0o177, 0o600), ("open", 0, 0o777)] {
            let path = directory.path().join(name);
            let listener = bind_unix(&path, mask, false).await.unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o777, mode);
            drop(listener);
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_only_when_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        trunkline_testkit::leave_socket(&path);
        let error = bind_unix(&path, 0o177, false).await.unwrap_err();
        assert!(error.to_string().contains("StreamLocalBindUnlink"), "{error}");
        let first = bind_unix(&path, 0o177, true).await.unwrap();
        let error = bind_unix(&path, 0o177, false).await.unwrap_err();
        assert!(error.to_string().contains("another program listens"), "{error}");
        // The new socket's file outlives the listener whose name it took.
        let second = bind_unix(&path, 0o177, true).await.unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    #[tokio::test]
    async fn a_file_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        bind_unix(&path, 0o177, true).await.unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
