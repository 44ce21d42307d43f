//! Programs of the user's that can ask at the caller's terminal: a ProxyCommand that wants a second factor, a `Match
//! exec`.
//!
//! A terminal belongs to a session of processes, which the daemon is not part of. So the process with the terminal
//! starts the program ([`serve`]), with descriptors that arrive over a line, and reports its end.
//!
//! It treats the program like a shell's background job, in a process group of its own. The kernel stops a background
//! program that reads from the terminal or changes its modes (SIGTTIN, SIGTTOU), which shows that it asks. Only then is
//! the terminal lent, in turn, until the program has ended or is known to have asked. So no input is taken from others,
//! Ctrl-C does not reach a program whose connection others use, and the program survives its caller: while the caller
//! lives, its session keeps the program from being orphaned; afterwards reading from the terminal is an error.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use trunkline_request::World;

use crate::program::local_program;
use crate::prompt::{Terminal, Turn};

/// A request to the process with the terminal.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Starts a program. Brings its standard streams.
    Start {
        #[serde(with = "trunkline_request::os_bytes")]
        program: OsString,
        #[serde(with = "trunkline_request::os_bytes::list")]
        arguments: Vec<OsString>,
        world: Box<World>,
    },
    /// Takes the terminal back: the program will not ask again.
    GiveBack,
    /// Kills the program and its process group.
    Kill,
}

/// A reply of the process with the terminal.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// The program runs. Brings a descriptor of its process.
    Started,
    /// The program could not be started, for this reason.
    NotStarted(String),
    /// The program has ended. `success`: with status 0. `asked`: it had the terminal.
    Ended { success: bool, asked: bool },
    /// It wanted the terminal, which is not lent, and was killed.
    WantedTerminal,
}

/// The longest packet: room for the largest environment that the kernel accepts, and the limit of the socket.
const LONGEST: usize = 160 * 1024;

/// The most descriptors in a packet.
const MAX_FDS: usize = 3;

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited, or was ended by a signal.
    Exited {
        /// True if its status was 0.
        success: bool,
        /// True if it asked on its caller's terminal.
        asked: bool,
    },
    /// It wanted to ask on the terminal of a caller that lends none, and was killed.
    WantedTerminal,
}

/// A program that its caller has started.
#[derive(Debug)]
pub struct Lent {
    line: AsyncFd<OwnedFd>,
    process: AsyncFd<OwnedFd>,
    end: Option<End>,
}

impl Lent {
    /// Makes the caller start `program`. Returns `None` if the caller has no terminal, or has left.
    pub(crate) async fn start(
        program: &OsStr,
        arguments: &[OsString],
        world: &World,
        streams: &[OwnedFd; 3],
    ) -> Option<io::Result<Self>> {
        Self::start_over(world.terminal.line().await?, program, arguments, world, streams).await
    }

    /// Starts `program` at this process's own terminal without lending it: if it asks there it is killed, whereas any
    /// other background program would stay stopped forever. Returns `None` without a terminal.
    pub(crate) async fn start_refused(
        program: &OsStr,
        arguments: &[OsString],
        world: &World,
        streams: &[OwnedFd; 3],
    ) -> Option<io::Result<Self>> {
        // Only a process with a terminal can open this; before Linux 5.3 there are no process descriptors.
        File::open("/dev/tty").ok()?;
        pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
        let (ours, theirs) = line().ok()?;
        serve(theirs, Lending::Refused);
        Self::start_over(ours, program, arguments, world, streams).await
    }

    async fn start_over(
        line: OwnedFd,
        program: &OsStr,
        arguments: &[OsString],
        world: &World,
        streams: &[OwnedFd; 3],
    ) -> Option<io::Result<Self>> {
        rustix::io::ioctl_fionbio(&line, true).ok()?;
        let line = watch(line).ok()?;
        let order = Order::Start {
            program: program.to_owned(),
            arguments: arguments.to_vec(),
            world: Box::new(world.clone()),
        };
        let [input, output, errors] = streams;
        send(
            line.get_ref(),
            &order,
            &[input.as_fd(), output.as_fd(), errors.as_fd()],
        )
        .ok()?;
        let (told, fds) = receive_from(&line).await.ok()??;
        match told {
            Told::Started => {
                let process = watch(fds.into_iter().next()?).ok()?;
                Some(Ok(Self {
                    line,
                    process,
                    end: None,
                }))
            }
            Told::NotStarted(why) => Some(Err(io::Error::other(why))),
            Told::Ended { .. } | Told::WantedTerminal => None,
        }
    }

    pub(crate) async fn wait(&mut self) -> io::Result<End> {
        if let Some(end) = self.end {
            return Ok(end);
        }
        let end = match receive_from(&self.line).await? {
            Some((Told::Ended { success, asked }, _)) => End::Exited { success, asked },
            Some((Told::WantedTerminal, _)) => End::WantedTerminal,
            _ => return Err(io::Error::other("whoever has started it has left")),
        };
        self.end = Some(end);
        Ok(end)
    }

    pub(crate) async fn wait_until_gone(&mut self) {
        // A process descriptor becomes readable when the process ends (pidfd_open(2)).
        let _ = self.process.readable().await;
    }

    pub(crate) fn give_back(&self) {
        let _ = send(self.line.get_ref(), &Order::GiveBack, &[]);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.process, signal);
        // A stopped process must be continued to receive it.
        let _ = pidfd_send_signal(&self.process, Signal::CONT);
    }

    pub(crate) fn kill_group(&self) {
        if self.end.is_none() {
            let _ = send(self.line.get_ref(), &Order::Kill, &[]);
        }
    }
}

async fn receive_from(line: &AsyncFd<OwnedFd>) -> io::Result<Option<(Told, Vec<OwnedFd>)>> {
    loop {
        let mut ready = line.readable().await?;
        match ready.try_io(|line| receive(line.get_ref())) {
            Ok(received) => return received,
            Err(_would_block) => {}
        }
    }
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe to call, for descriptors that lie; these are owned"
)]
fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

/// Returns both ends of a line.
///
/// # Errors
/// The system's.
pub fn line() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((ours, theirs))
}

fn send<T: Serialize>(line: impl AsFd, said: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(said).map_err(io::Error::other)?;
    if bytes.len() > LONGEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(line, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next packet; `None` at the end.
fn receive<T: DeserializeOwned>(line: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(line.as_fd(), &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    let said = rmp_serde::from_slice(&bytes[..received.bytes]).map_err(io::Error::other)?;
    Ok(Some((said, fds)))
}

/// The treatment of a program that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lending {
    /// It gets the terminal.
    Lent,
    /// It is killed, and the caller is told: another program will run it again and let it ask.
    Refused,
}

/// Serves a line in separate threads: starts a program on this process's terminal and lends the terminal as `lending`
/// says. If this process has no terminal, the line ends, and the other side starts the program.
pub fn serve(line: OwnedFd, lending: Lending) {
    let serving = move || match serve_line(line, lending) {
        Ok(()) => {}
        Err(error) => tracing::warn!(%error, "cannot lend the terminal"),
    };
    let thread = std::thread::Builder::new().name("terminal".into());
    if let Err(error) = thread.spawn(serving) {
        tracing::warn!(%error, "cannot lend the terminal");
    }
}

fn serve_line(line: OwnedFd, lending: Lending) -> io::Result<()> {
    let Ok(terminal) = File::options().read(true).write(true).open("/dev/tty") else {
        return Ok(());
    };
    let Some((
        Order::Start {
            program,
            arguments,
            world,
        },
        fds,
    )) = receive(&line)?
    else {
        return Ok(());
    };
    let Ok([input, output, errors]) = <[OwnedFd; 3]>::try_from(fds) else {
        return Ok(());
    };
    let complaints = match lending {
        Lending::Refused => Some(errors.try_clone()?),
        Lending::Lent => None,
    };
    let mut command = local_program(program, &world).into_std();
    command.args(arguments).process_group(0);
    command.stdin(input).stdout(output).stderr(errors);
    let started = command.spawn();
    // Closes our copies of the program's streams.
    drop(command);
    let program = match started {
        Ok(child) => Pid::from_child(&child),
        Err(error) => return send(&line, &Told::NotStarted(error.to_string()), &[]),
    };
    let process = match pidfd_open(program, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(error) => {
            let _ = kill_process_group(program, Signal::KILL);
            let _ = waitid(WaitId::Pid(program), WaitIdOptions::EXITED);
            return send(&line, &Told::NotStarted(error.to_string()), &[]);
        }
    };
    let job = Arc::new(Job {
        program,
        terminal,
        lending,
        complaints: Mutex::new(complaints),
        state: Mutex::default(),
    });
    // If this cannot be sent, the reader sees the end of the line.
    let _ = send(&line, &Told::Started, &[process.as_fd()]);
    let line = Arc::new(line);
    let (orders, ordered) = (line.clone(), job.clone());
    let reader = std::thread::Builder::new().name("terminal's line".into());
    reader.spawn(move || ordered.take_orders(&orders))?;
    let told = job.attend();
    let _ = send(&*line, &told, &[]);
    // The reader thread and the line last as long as the other end.
    Ok(())
}

/// A program in the background of a terminal.
struct Job {
    program: Pid,
    terminal: File,
    lending: Lending,
    /// The standard error of a program that does not get the terminal. Locked while it is written to.
    complaints: Mutex<Option<OwnedFd>>,
    /// Locked while the terminal changes hands.
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    /// Set while the program has the terminal.
    loan: Option<Loan>,
    /// It may not ask any more.
    over: bool,
    /// It has ended and was waited for, so its number may be reused.
    ended: bool,
}

/// The terminal while a program has it.
struct Loan {
    modes: Option<Termios>,
    /// Keeps the witness alive, which sees its keys.
    _witness: ChildStdin,
    _turn: Turn,
}

/// The message of a program that is killed because it asks.
const WANTED_TERMINAL: &str = "killed, as it asks on the terminal, which only trunkline's own programs lend: log in with trunkline \
                               ssh, and use the daemon's connection\n";

/// The number of times that this process is stopped if it is not brought to the foreground.
const STOPS: usize = 20;

impl Job {
    /// Handles orders until the other end closes.
    fn take_orders(&self, line: &OwnedFd) {
        without_stops();
        while let Ok(Some((order, _))) = receive(line) {
            match order {
                Order::GiveBack => self.lend_no_more(),
                Order::Kill => self.signal(Signal::KILL),
                Order::Start { .. } => break,
            }
        }
        self.lend_no_more();
    }

    /// Handles the program's stops until it has ended.
    fn attend(self: &Arc<Self>) -> Told {
        without_stops();
        let (mut asked, mut refused) = (false, false);
        loop {
            // The process stays a zombie, and keeps its number, until the state says that it has ended.
            let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            let Ok(Some(status)) = retry_on_intr(|| waitid(WaitId::Pid(self.program), options)) else {
                return Told::Ended {
                    success: false,
                    asked,
                };
            };
            if status.stopped() {
                let taken = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
                let _ = waitid(WaitId::Pid(self.program), taken);
                let signal = status.stopping_signal().and_then(Signal::from_named_raw);
                match self.stopped_by(signal) {
                    true => asked = true,
                    false => refused = true,
                }
                continue;
            }
            let mut state = self.state();
            self.take_back(&mut state);
            state.ended = true;
            self.complaints().take();
            let _ = waitid(WaitId::Pid(self.program), WaitIdOptions::EXITED);
            drop(state);
            if refused && self.lending == Lending::Refused {
                return Told::WantedTerminal;
            }
            return Told::Ended {
                success: status.exit_status() == Some(0),
                asked,
            };
        }
    }

    /// Handles a stop of the program. Returns false if it wanted the terminal but does not get it.
    fn stopped_by(self: &Arc<Self>, signal: Option<Signal>) -> bool {
        match signal {
            Some(Signal::TTIN | Signal::TTOU) => {
                let lent = self.lending == Lending::Lent && self.lend();
                if !lent {
                    // As if the terminal were gone: the next read there fails.
                    self.signal(Signal::HUP);
                    self.signal(Signal::CONT);
                    if self.lending == Lending::Refused {
                        self.complain();
                        self.signal(Signal::KILL);
                    }
                }
                lent
            }
            // Ctrl-Z applies to everything that the user has started there.
            Some(Signal::TSTP) => {
                let had_it = self.take_back(&mut self.state());
                let _ = kill_process_group(getpgrp(), Signal::TSTP);
                if had_it {
                    // The signal may first take effect in another thread.
                    std::thread::sleep(Duration::from_millis(10));
                    return self.lend();
                }
                self.signal(Signal::CONT);
                true
            }
            // Another process sent it.
            _ => true,
        }
    }

    /// Writes the reason for its end to the program's standard error.
    fn complain(&self) {
        if let Some(errors) = self.complaints().take() {
            let _ = rustix::io::write(errors, WANTED_TERMINAL.as_bytes());
        }
    }

    fn complaints(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends the terminal as soon as no other question is on it.
    fn lend(self: &Arc<Self>) -> bool {
        let waits = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(waits) = waits else { return false };
        for _ in 0..STOPS {
            let over = {
                let mut state = self.state();
                // It may have had the terminal before and be in the background again.
                self.take_back(&mut state);
                state.over
            };
            if over {
                return false;
            }
            let Some(turn) = waits.block_on(Terminal::default().turn()) else {
                return false;
            };
            let mut state = self.state();
            if state.over {
                return false;
            }
            if tcgetpgrp(&self.terminal) == Ok(getpgrp()) {
                let modes = tcgetattr(&self.terminal).ok();
                let Ok(witness) = self.witness() else {
                    return false;
                };
                if tcsetpgrp(&self.terminal, self.program).is_err() {
                    return false;
                }
                state.loan = Some(Loan {
                    modes,
                    _witness: witness,
                    _turn: turn,
                });
                drop(state);
                self.signal(Signal::CONT);
                return true;
            }
            drop((state, turn));
            // This process itself is in the background: it stops like any other that asks, until it is brought to the
            // foreground.
            let _ = kill_process_group(getpgrp(), Signal::TTIN);
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Starts a process beside the program that dies of the interrupt and quit keys. These are for everything that the
    /// user has started there, so this process learns of them. Dropping the result ends the witness.
    fn witness(self: &Arc<Self>) -> io::Result<ChildStdin> {
        let mut witness = Command::new("cat");
        witness
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        witness.process_group(self.program.as_raw_pid());
        let mut witness = witness.spawn()?;
        let ends = witness.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let job = self.clone();
        std::thread::Builder::new()
            .name("terminal's keys".into())
            .spawn(move || {
                without_stops();
                let ended = witness.wait().ok().and_then(|status| status.signal());
                if let Some(key @ (Signal::INT | Signal::QUIT)) = ended.and_then(Signal::from_named_raw) {
                    job.lend_no_more();
                    let _ = kill_process_group(getpgrp(), key);
                }
            })?;
        Ok(ends)
    }

    fn lend_no_more(&self) {
        let mut state = self.state();
        state.over = true;
        self.take_back(&mut state);
    }

    /// Takes the terminal back with its earlier modes. Returns true if it was lent.
    fn take_back(&self, state: &mut JobState) -> bool {
        let Some(loan) = state.loan.take() else {
            return false;
        };
        if tcgetpgrp(&self.terminal) == Ok(self.program) {
            let _ = tcsetpgrp(&self.terminal, getpgrp());
            if let Some(modes) = &loan.modes {
                let _ = tcsetattr(&self.terminal, OptionalActions::Drain, modes);
            }
        }
        true
    }

    fn signal(&self, signal: Signal) {
        let state = self.state();
        if !state.ended {
            let _ = kill_process_group(self.program, signal);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets this thread change the terminal from the background, which would otherwise stop the process (tcsetpgrp(3)).
fn without_stops() {
    let mut signals = SigSet::empty();
    signals.add(Blocked::SIGTTOU);
    let _ = signals.thread_block();
}
