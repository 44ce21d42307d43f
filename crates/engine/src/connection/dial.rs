//! Connects to a server by TCP, over both address families, or through a proxy command's pipes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use nix::{getsockopt_impl, libc, sockopt_impl};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, BufReader, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use trunkline_local::child::{Child, Process};
use trunkline_request::LogLevel;
use trunkline_text::Printable;

use crate::config::{AddressFamily, HostConfig, World};
use crate::connection::socket::Socket;
use crate::connection::socket::acknowledge::Acknowledging;
use crate::connection::socket::gather::Gathering;
use crate::error::{Doing, Error, io_words};
use crate::interaction::Interaction;

/// The delay between two connection attempts (RFC 8305 section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// A connection to a server.
pub(crate) struct Dialed {
    pub(crate) io: Box<dyn Socket>,
    /// The server's address, if known.
    pub(crate) address: Option<SocketAddr>,
    /// The round-trip time that connecting showed.
    pub(crate) rtt: Option<Duration>,
    /// The messages of a proxy command.
    pub(crate) words: Option<ProxyWords>,
}

/// A connection and its round-trip time, or the address that could not be reached.
type Attempt = Result<(TcpStream, SocketAddr, Duration), (SocketAddr, io::Error)>;

/// Connects by TCP, by AddressFamily, BindAddress, ConnectTimeout, ConnectionAttempts and TCPKeepAlive of ssh_config.
pub(crate) async fn tcp(host: &HostConfig, interaction: &Interaction) -> Result<Dialed, Error> {
    let mut attempt = 1;
    loop {
        let connecting = tcp_once(host, interaction);
        let result = match host.connect_timeout {
            None => connecting.await,
            Some(limit) => tokio::time::timeout(limit, connecting).await.unwrap_or_else(|_| {
                Err(Error::Timeout {
                    doing: connect_to(host),
                    after: limit,
                })
            }),
        };
        match result {
            // As in ssh: a second between attempts.
            Err(_) if attempt < host.connection_attempts => tokio::time::sleep(Duration::from_secs(1)).await,
            result => return result,
        }
        attempt += 1;
    }
}

/// A resolver's message if a name has no address of the family (getaddrinfo(3), `EAI_ADDRFAMILY`).
const OTHER_FAMILY: &str = "Address family for hostname not supported";

async fn tcp_once(host: &HostConfig, interaction: &Interaction) -> Result<Dialed, Error> {
    let found = tokio::net::lookup_host((host.hostname.as_str(), host.port))
        .await
        .map_err(|source| Error::lookup(&host.hostname, source))?;
    let wanted = |address: &SocketAddr| match host.address_family {
        AddressFamily::Any => true,
        AddressFamily::Inet => address.is_ipv4(),
        AddressFamily::Inet6 => address.is_ipv6(),
    };
    let addresses = interleave(found.filter(wanted).collect());
    if addresses.is_empty() {
        // sshconnect.c only asks the resolver for this family.
        let none = io::Error::other(OTHER_FAMILY);
        return Err(Error::lookup(&host.hostname, none));
    }
    let mut last_error = Error::Bug("no address was tried");

    // Happy eyeballs: the next address is tried when one fails or has taken too long; the first to answer wins.
    let mut attempts: JoinSet<Attempt> = JoinSet::new();
    let mut remaining = addresses.into_iter();
    let mut next = remaining.next();
    loop {
        if let Some(address) = next.take() {
            let connecting = format!(
                "Connecting to {} [{}] port {}.",
                host.hostname,
                address.ip(),
                host.port
            );
            interaction.log(LogLevel::Debug1, &connecting);
            let socket = match bound_socket(host, address).await {
                Ok(socket) => socket,
                Err(error) => {
                    last_error = error;
                    next = remaining.next();
                    if next.is_some() || !attempts.is_empty() {
                        continue;
                    }
                    return Err(last_error);
                }
            };
            attempts.spawn(async move {
                let begun = Instant::now();
                match socket.connect(address).await {
                    Ok(stream) => {
                        let took = begun.elapsed();
                        let rtt = round_trip(&stream).map_or(took, |rtt| rtt.min(took));
                        Ok((stream, address, rtt))
                    }
                    Err(error) => Err((address, error)),
                }
            });
        }
        let done = tokio::select! {
            done = attempts.join_next() => done,
            () = tokio::time::sleep(ATTEMPT_DELAY), if remaining.len() > 0 => { next = remaining.next(); continue }
        };
        match done {
            Some(Ok(Ok((stream, address, rtt)))) => {
                // Otherwise Nagle's algorithm and delayed acknowledgements cost 40 ms per channel.
                stream
                    .set_nodelay(true)
                    .map_err(|source| Error::local("setting TCP_NODELAY", source))?;
                interaction.log(LogLevel::Debug1, "Connection established.");
                return Ok(Dialed {
                    io: Box::new(Gathering::new(Acknowledging::new(stream))),
                    address: Some(address),
                    rtt: Some(rtt),
                    words: None,
                });
            }
            Some(Ok(Err((address, source)))) => {
                let failed = format!(
                    "connect to address {} port {}: {}",
                    address.ip(),
                    host.port,
                    io_words(&source)
                );
                interaction.log(LogLevel::Debug1, &failed);
                last_error = Error::Network {
                    doing: connect_to(host),
                    address: Some(address),
                    source: source.into(),
                };
            }
            Some(Err(_)) => {}
            None => return Err(last_error),
        }
        next = remaining.next();
    }
}

fn connect_to(host: &HostConfig) -> Doing {
    Doing::Connect {
        host: host.hostname.clone(),
        port: host.port,
    }
}

/// Returns the round trip as timed by the kernel. Connecting takes longer if this process waits for a CPU.
#[cfg(target_os = "linux")]
fn round_trip(stream: &TcpStream) -> Option<Duration> {
    use std::mem::offset_of;

    // Linux fills as much of `struct tcp_info` as fits. `libc::tcp_info` is longer than that of old kernels.
    const RTT: usize = offset_of!(libc::tcp_info, tcpi_rtt) / size_of::<u32>();
    sockopt_impl!(Info, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, [u32; RTT + 1]);
    let rtt = nix::sys::socket::getsockopt(stream, Info).ok()?[RTT];
    (rtt > 0).then(|| Duration::from_micros(rtt.into()))
}

#[cfg(not(target_os = "linux"))]
fn round_trip(_: &TcpStream) -> Option<Duration> {
    None
}

/// Alternates the families, starting with the resolver's first choice (RFC 8305 section 4).
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|a| a.is_ipv6() == first_is_v6);
    let longest = first.len().max(second.len());
    (0..longest)
        .flat_map(|n| [first.get(n).copied(), second.get(n).copied()])
        .flatten()
        .collect()
}

/// Returns a socket, bound as configured.
async fn bound_socket(host: &HostConfig, remote: SocketAddr) -> Result<TcpSocket, Error> {
    let local = bind_address(host, remote).await?;
    let socket = socket(host, remote)?;
    if let Some(local) = local {
        let bound = socket.bind(local);
        bound.map_err(|source| Error::local(Doing::Bind(local.ip()), source))?;
    }
    Ok(socket)
}

fn socket(host: &HostConfig, address: SocketAddr) -> Result<TcpSocket, Error> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    let opening = |source| Error::local("opening a socket", source);
    let socket = socket.map_err(opening)?;
    socket.set_keepalive(host.tcp_keep_alive).map_err(opening)?;
    if let Some(interface) = &host.bind_interface {
        let bound = socket.bind_device(Some(interface.as_bytes()));
        bound.map_err(|source| Error::local(format!("binding to BindInterface {interface}"), source))?;
    }
    Ok(socket)
}

async fn bind_address(host: &HostConfig, remote: SocketAddr) -> Result<Option<SocketAddr>, Error> {
    let Some(name) = &host.bind_address else {
        return Ok(None);
    };
    let doing = || Doing::LookUpBindAddress(name.clone());
    let mut found = tokio::net::lookup_host((name.as_str(), 0))
        .await
        .map_err(|source| Error::local(doing(), source))?;
    found
        .find(|local| local.is_ipv4() == remote.is_ipv4())
        .map(Some)
        .ok_or_else(|| Error::local(doing(), io::Error::other(OTHER_FAMILY)))
}

/// Runs a ProxyCommand in the caller's environment, with its terminal if a client waits there. Its messages go to
/// [`ProxyWords`].
pub(crate) async fn proxy_command(
    command: &str,
    world: &World,
    interaction: &Interaction,
) -> Result<Dialed, Error> {
    // As in ssh: exec saves the shell's process.
    let arguments = ["-c".into(), format!("exec {command}").into()];
    let child = Child::start(world.shell(), &arguments, world, interaction.lends_terminal())
        .await
        .map_err(|source| Error::local(format!("running ProxyCommand {command:?}"), source))?;
    Ok(Dialed {
        io: Box::new(ProxyPipes {
            process: Some(child.process),
            stdin: child.stdin,
            stdout: child.stdout,
            has_answered: false,
        }),
        address: None,
        rtt: None,
        words: Some(ProxyWords::read_from(child.stderr, interaction.clone())),
    })
}

/// The standard error of a proxy command: where to log in, why it failed. The client the connection is made for gets
/// each line. Once this is dropped, the connection is shared, and lines go to the log.
pub(crate) struct ProxyWords {
    _telling: Arc<Interaction>,
    last: Arc<Mutex<Printable>>,
    reading: JoinHandle<()>,
}

impl ProxyWords {
    /// Longer lines are reported in pieces.
    const MAX_LINE: u64 = 4096;
    /// An unfinished line followed by a pause is a question, and reported.
    const PAUSE: Duration = Duration::from_millis(200);
    /// A failing command may close its standard error after its standard output.
    const GRACE: Duration = Duration::from_millis(200);

    fn read_from(stderr: Receiver, interaction: Interaction) -> Self {
        let telling = Arc::new(interaction);
        let last = Arc::new(Mutex::default());
        let reading = tokio::spawn(read_words(stderr, Arc::downgrade(&telling), last.clone()));
        Self {
            _telling: telling,
            last,
            reading,
        }
    }

    /// Returns the last line of a command that is ending.
    pub(crate) async fn last(mut self) -> Printable {
        let _ = tokio::time::timeout(Self::GRACE, &mut self.reading).await;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn read_words(stderr: Receiver, telling: Weak<Interaction>, last: Arc<Mutex<Printable>>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!(stderr.fill_buf().await, Ok([_, ..])) {
        let mut limited = (&mut stderr).take(ProxyWords::MAX_LINE);
        let reading = limited.read_until(b'\n', &mut line);
        // The part of the line read so far is kept.
        let _ = tokio::time::timeout(ProxyWords::PAUSE, reading).await;
        let words = Printable::line(line.trim_ascii_end());
        line.clear();
        match telling.upgrade() {
            Some(interaction) => {
                interaction.proxy(&words);
                *last.lock().unwrap_or_else(PoisonError::into_inner) = words;
            }
            None => tracing::info!("ProxyCommand: {words}"),
        }
    }
}

/// A proxy command's pipes as one stream. Dropping it ends the command.
struct ProxyPipes {
    process: Option<Process>,
    stdin: Sender,
    stdout: Receiver,
    /// The server has sent something: the command has no questions left.
    has_answered: bool,
}

/// The time that a proxy command has to clean up before it gets a stronger signal.
const CLEANING_UP: Duration = Duration::from_secs(10);

impl Drop for ProxyPipes {
    /// Sends SIGHUP, as ssh does (sshconnect.c, `ssh_kill_proxy_command`), so that it can clean up.
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        process.signal(Signal::HUP);
        // Outside a runtime, this process is ending: like ssh, it does not wait for the command.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            for firmer in [Signal::TERM, Signal::KILL] {
                if tokio::time::timeout(CLEANING_UP, process.wait_until_gone())
                    .await
                    .is_ok()
                {
                    return;
                }
                process.signal(firmer);
            }
            process.wait_until_gone().await;
        });
    }
}

impl Socket for ProxyPipes {}

impl AsyncRead for ProxyPipes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stdout).poll_read(cx, buf);
        if !self.has_answered && buf.filled().len() > before {
            self.has_answered = true;
            if let Some(process) = &self.process {
                process.give_back_terminal();
            }
        }
        read
    }
}

impl AsyncWrite for ProxyPipes {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stdin).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdin).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdin).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_tells_the_round_trip_of_a_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let begun = Instant::now();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let rtt = round_trip(&stream).unwrap();
        assert!(!rtt.is_zero() && rtt <= begun.elapsed(), "{rtt:?}");
    }

    #[test]
    fn address_families_alternate_from_the_resolvers_first_choice() {
        let parse = |list: &[&str]| {
            list.iter()
                .map(|a| a.parse().unwrap())
                .collect::<Vec<SocketAddr>>()
        };
        let found = parse(&["[::1]:22", "[::2]:22", "1.1.1.1:22"]);
        assert_eq!(interleave(found), parse(&["[::1]:22", "1.1.1.1:22", "[::2]:22"]));
    }
}
