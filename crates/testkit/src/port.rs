//! Addresses where nobody listens: reserved ports, and sockets left by a program that has ended.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

use crate::Error;

/// Reserves a port of 127.0.0.1 that refuses connections until a server with `SO_REUSEADDR` listens there, as sshd, ssh
/// and trunkline do for forwarded ports. Until this process ends, no program that asks for a free port gets it.
///
/// # Panics
///
/// When no port is free.
pub fn free_port() -> u16 {
    static HELD: Mutex<Vec<PortReservation>> = Mutex::new(Vec::new());
    let held = PortReservation::reserve(&[Ipv4Addr::LOCALHOST.into()]).expect("a port of 127.0.0.1 is free");
    let port = held.port();
    HELD.lock().unwrap_or_else(PoisonError::into_inner).push(held);
    port
}

/// Leaves a socket file like a program that was killed: the file exists, and connections are refused.
///
/// Connections are refused at once, even while another thread starts a program. Such a program would hold a copy of a
/// listener until it is executed, but here there was never a listener.
///
/// # Panics
///
/// When the file cannot be made.
pub fn leave_socket(path: &Path) {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a path that fits a socket's address");
    bind(&socket, &address).expect("the socket's file");
}

/// A port that is reserved on one or several addresses, by sockets that are bound but never listen.
///
/// Linux lets a second socket bind the same port if both set `SO_REUSEADDR` and the first does not listen. Servers set
/// it, so they can come and go on the port, while the kernel gives it to no program that asks for a free port. While no
/// server listens, connections are refused, as on a machine without one.
#[derive(Debug)]
pub(crate) struct PortReservation {
    port: u16,
    _sockets: Vec<OwnedFd>,
}

impl PortReservation {
    /// Reserves one port that is free on all of `addresses`.
    pub(crate) fn reserve(addresses: &[IpAddr]) -> Result<PortReservation, Error> {
        const ATTEMPTS: usize = 64;
        (0..ATTEMPTS)
            .find_map(|_| PortReservation::attempt(addresses))
            .ok_or_else(|| {
                Error::NoFreePort(
                    addresses
                        .iter()
                        .map(|&address| SocketAddr::new(address, 0))
                        .collect(),
                )
            })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Tries once. `None` if the port of the first address is taken on another.
    fn attempt(addresses: &[IpAddr]) -> Option<PortReservation> {
        let mut port = 0;
        let mut sockets = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let (socket, bound) = reserve(SocketAddr::new(address, port)).ok()?;
            port = bound;
            sockets.push(socket);
        }
        Some(PortReservation {
            port,
            _sockets: sockets,
        })
    }
}

fn reserve(address: SocketAddr) -> rustix::io::Result<(OwnedFd, u16)> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &address)?;
    // Set only after the bind: otherwise two reservations could share a port without an error.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?).map_err(|_| rustix::io::Errno::AFNOSUPPORT)?;
    Ok((socket, bound.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{Shutdown, shutdown};

    use super::*;

    #[test]
    fn a_server_comes_and_goes_on_a_reserved_port() {
        let reservation = PortReservation::reserve(&[Ipv4Addr::LOCALHOST.into()]).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, reservation.port()));
        for _ in 0..3 {
            assert!(TcpStream::connect(address).is_err());
            let listener = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            // Other tests start processes, which hold a copy of the listener until they execute their programs.
            shutdown(&listener, Shutdown::Read).unwrap();
        }
    }

    #[test]
    fn two_reservations_never_share_a_port() {
        let held: Vec<_> = (0..200)
            .map(|_| PortReservation::reserve(&[Ipv4Addr::LOCALHOST.into()]).unwrap())
            .collect();
        let mut ports: Vec<_> = held.iter().map(PortReservation::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), held.len());
    }

    #[test]
    fn one_port_serves_several_addresses() {
        let addresses: Vec<IpAddr> = (2..6).map(|last| Ipv4Addr::new(127, 9, 0, last).into()).collect();
        let reservation = PortReservation::reserve(&addresses).unwrap();
        let listeners: Vec<_> = addresses
            .iter()
            .map(|&address| TcpListener::bind((address, reservation.port())).unwrap())
            .collect();
        assert_eq!(listeners.len(), 4);
    }
}
