//! What a client and a channel send each other, until both have ended.

pub(crate) mod carry;
pub(crate) mod terminal_input;

mod pump;

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use trunkline::{
    ChannelReader, ChannelStream, ChannelWriter, Error, Execution, ExitStatus, Host, SessionControl,
    SessionEnd, SessionParts, TerminalSize,
};

use trunkline_audit::Entry;

use super::forwards::Forwards;
use crate::deadline::Deadline;
use crate::observed::recording::Recording;
use crate::protocol::{Escapes, Exit, Reply, Request, Stdio};
use crate::stdio::{Input, Output};
use carry::Resumption;
use terminal_input::TerminalInput;

/// A command whose output nobody takes any more, or that was sent a signal, gets this long to end before its session is
/// closed.
const GRACE: Duration = Duration::from_secs(2);

/// What sshd says of a command's end and of its session's comes in one packet, or in two that follow each other.
const BURST: Duration = Duration::from_millis(10);

/// The end-of-file character that a terminal has by default, for a session whose user has left it.
const END_OF_TRANSMISSION: u8 = 4;

/// Why a session is closed whose client wanted that.
pub(crate) const TERMINATED: &str = "the command was ended before it was done";

/// The client's side of the three streams.
pub(crate) struct Streams {
    stdin: Source,
    stdout: Sink,
    stderr: Sink,
}

enum Source {
    Fd(Input),
    /// A terminal that stock ssh has passed.
    Terminal(TerminalInput),
    Frames,
    Null,
}

enum Sink {
    Fd(Output),
    Frames,
    Null,
}

impl Streams {
    pub(crate) fn new(kinds: [Stdio; 3], fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut fds = fds.into_iter();
        let mut next = || {
            fds.next()
                .ok_or_else(|| Error::Invalid("the request came without its descriptors".into()))
        };
        let broken = |error: std::io::Error| Error::local("using a descriptor", error);
        let [stdin, stdout, stderr] = kinds;
        let stdin = match stdin {
            Stdio::Passed => Source::Fd(Input::new(next()?).map_err(broken)?),
            Stdio::Framed => Source::Frames,
            Stdio::Null => Source::Null,
        };
        let mut sink = |kind| {
            Ok::<_, Error>(match kind {
                Stdio::Passed => Sink::Fd(Output::new(next()?).map_err(broken)?),
                Stdio::Framed => Sink::Frames,
                Stdio::Null => Sink::Null,
            })
        };
        Ok(Self {
            stdin,
            stdout: sink(stdout)?,
            stderr: sink(stderr)?,
        })
    }

    /// There is no input after all.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = Source::Null;
    }

    /// Takes the input from a terminal that came along instead.
    pub(crate) fn typed(self, typed: TerminalInput) -> Self {
        Self {
            stdin: Source::Terminal(typed),
            ..self
        }
    }
}

/// On what terms a session runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms<'a> {
    pub(crate) deadline: Option<Deadline>,
    /// Whether the session continues when its client leaves; never, by default.
    pub(crate) detached: Option<&'a AtomicBool>,
    /// Its forwardings, where its client may ask for more.
    pub(crate) forwards: Option<&'a Forwards<'a>>,
    /// What its terminal shows, where that is recorded.
    pub(crate) recording: Option<&'a Recording>,
    /// What is recorded of it.
    pub(crate) entry: Option<&'a Entry>,
    /// Without the terminal that was asked for it ends.
    pub(crate) needs_terminal: bool,
    /// Whether its client is told how the command has ended where the session goes on.
    pub(crate) tell_exit: bool,
}

impl Terms<'_> {
    fn detached(self) -> bool {
        self.detached
            .is_some_and(|detached| detached.load(Ordering::Relaxed))
    }
}

/// The beginning of what has no terminal.
pub(crate) fn begun(warm: bool) -> Reply {
    Reply::Begun {
        tty: false,
        escapes: Escapes::default(),
        warm,
        hostname: String::new(),
        predict: None,
    }
}

/// With what is known of the connection by now.
fn with_round_trip(mut begun: Reply, host: &Host) -> Reply {
    if let Reply::Begun {
        predict: Some(predict),
        ..
    } = &mut begun
    {
        predict.round_trip = host.round_trip();
    }
    begun
}

/// Moves a session's data, and carries the session over to another connection where that is to be done.
#[expect(
    clippy::too_many_arguments,
    reason = "all of them are what a session consists of"
)]
pub(crate) async fn move_data(
    parts: SessionParts,
    begun: Reply,
    streams: Streams,
    replies: &mpsc::Sender<Reply>,
    inputs: mpsc::Receiver<Request>,
    terms: Terms<'_>,
    host: &Host,
    resumption: Option<Resumption<'_>>,
) -> Result<ExitStatus, Error> {
    match resumption {
        Some(resumption) => {
            Box::pin(resumption.carry(parts, begun, streams, replies, inputs, terms, host)).await
        }
        None => pump(parts, begun, streams, replies, inputs, terms, host).await,
    }
}

/// Moves a session's data until it has ended and its output is written. `begun` is said when the server has started the
/// command, and not before: until then questions may come up, for which the client's terminal must be as it was.
async fn pump(
    parts: SessionParts,
    begun: Reply,
    streams: Streams,
    replies: &mpsc::Sender<Reply>,
    inputs: mpsc::Receiver<Request>,
    terms: Terms<'_>,
    host: &Host,
) -> Result<ExitStatus, Error> {
    let SessionParts {
        stdin,
        mut stdout,
        mut stderr,
        control,
        mut end,
    } = parts;
    let name = &host.config().original_host;
    let Streams {
        stdin: source,
        stdout: output_sink,
        stderr: error_sink,
    } = streams;
    let ended = Notify::new();
    let output = async {
        let written = drain_to_end(&mut stdout, output_sink, replies, Reply::Output, terms.recording).await;
        if written.is_err() && terms.detached() {
            // The client has left the session to itself: nobody reads, and nobody minds.
            discard(&mut stdout).await;
            return Ok(());
        }
        if written.is_err() {
            // As ssh: the command is told that nobody reads, and dies of SIGPIPE at its next write.
            control.end_of_write();
            if tokio::time::timeout(GRACE, ended.notified()).await.is_err() {
                control.close();
            }
        }
        written
    };
    let error_output = async {
        // A closed standard error is not a reason to end a command, nor to let it wait for room to write.
        if drain_to_end(&mut stderr, error_sink, replies, Reply::ErrorOutput, None)
            .await
            .is_err()
        {
            discard(&mut stderr).await;
        }
    };
    let status = async {
        let status = match end.started().await {
            Ok(()) => {
                // ssh ends then, whatever becomes of the command.
                if terms.needs_terminal && control.is_terminal_refused() {
                    control.close();
                    Err(Error::terminal_refused(name))
                } else {
                    let _ = replies.send(with_round_trip(begun, host)).await;
                    until_over(&mut end, replies, terms).await
                }
            }
            Err(error) => Err(error),
        };
        ended.notify_one();
        status
    };
    let (framed, frames) = mpsc::unbounded_channel();
    let mut whole = pin!(async { tokio::join!(biased; status, output, error_output) });
    let stopped = tokio::select! {
        biased;
        (status, written, ()) = &mut whole => return settled(written, status),
        never = feed(source, stdin, frames, Some(&control), host) => match never {},
        error = Deadline::wait(terms.deadline, name) => error,
        left = attend(inputs, framed, replies, Some(&control), host, terms) => match left {
            // Closing tells the command.
            Departure::Gone => {
                let execution = match control.withdraw() {
                    true => Execution::DidNotStart,
                    false => Execution::MayHaveStarted,
                };
                control.close();
                return Err(closed(name, "the client left").with_execution(execution));
            }
            Departure::Terminated => closed(name, TERMINATED),
        },
    };
    if control.withdraw() {
        return Err(stopped.with_execution(Execution::DidNotStart));
    }
    control.signal("TERM");
    let timed_out = matches!(stopped, Error::TimeUp { .. });
    match tokio::time::timeout(GRACE, &mut whole).await {
        // How it ended is the better answer, but for the one that time was up.
        Ok((status, written, ())) if !timed_out => return settled(written, status),
        Ok((Ok(ExitStatus::Exited(_)), _, ())) => return Err(stopped.with_execution(Execution::Finished)),
        Ok((Err(error), _, ())) => return Err(stopped.with_execution(error.execution())),
        Ok(_) => return Err(stopped.with_execution(Execution::MayHaveStarted)),
        Err(_) => {}
    }
    control.close();
    let execution = match tokio::time::timeout(GRACE, whole).await {
        Ok((Err(error), _, ())) => error.execution(),
        Ok((Ok(_), _, ())) => Execution::Finished,
        Err(_) => Execution::MayHaveStarted,
    };
    Err(stopped.with_execution(execution))
}

/// Waits for the session's end. On the way it is recorded how the command has ended, and told to who wants to know.
async fn until_over(
    end: &mut SessionEnd,
    replies: &mpsc::Sender<Reply>,
    terms: Terms<'_>,
) -> Result<ExitStatus, Error> {
    let exit = end.exited().await;
    if let (Some(entry), Some(exit)) = (terms.entry, &exit) {
        entry.exited(exit);
    }
    let mut over = pin!(end.wait());
    let Some(exit) = exit.filter(|_| terms.tell_exit) else {
        return over.await;
    };
    match tokio::time::timeout(BURST, &mut over).await {
        Ok(ended) => ended,
        Err(_) => {
            let _ = replies.send(Reply::Exited(as_told(exit))).await;
            over.await
        }
    }
}

/// How a command ended, in the protocol's words.
pub(crate) fn as_told(exit: ExitStatus) -> Exit {
    match exit {
        ExitStatus::Exited(status) => Exit::Status(status),
        ExitStatus::Signaled { signal, core_dumped } => Exit::Signal(signal, core_dumped),
        ExitStatus::Unknown => Exit::Unknown,
    }
}

/// How a session ended whose streams have.
fn settled(written: std::io::Result<()>, status: Result<ExitStatus, Error>) -> Result<ExitStatus, Error> {
    let status = status?;
    // A reader that has left had enough; a full disk is a loss that nobody asked for.
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(unwritten(error, &status)),
        _ => Ok(status),
    }
}

pub(crate) fn closed(host: &str, why: &str) -> Error {
    Error::Closed {
        host: host.to_owned(),
        why: why.into(),
    }
}

/// Output that could not be written, after a session that has ended so.
fn unwritten(error: std::io::Error, status: &ExitStatus) -> Error {
    let execution = match status {
        ExitStatus::Exited(_) => Execution::Finished,
        _ => Execution::MayHaveStarted,
    };
    let doing = "writing the command's output".into();
    let cause = Arc::new(Error::Local {
        doing,
        source: Arc::new(error),
    });
    Error::Lost { execution, cause }
}

/// Moves a tunnel's data. Each direction ends by itself, and the client is told of the server's end; returns the last frame
/// when both have ended, or the client leaves.
pub(crate) async fn tunnel(
    streams: Streams,
    stream: ChannelStream,
    replies: &mpsc::Sender<Reply>,
    mut inputs: mpsc::Receiver<Request>,
) -> Reply {
    let (mut reader, mut writer) = stream.into_split();
    let (framed, frames) = mpsc::unbounded_channel();
    let attend = async {
        while let Some(request) = inputs.recv().await {
            match request {
                Request::Input(data) => drop(framed.send(data)),
                Request::Terminate => break,
                _ => {}
            }
        }
    };
    let Streams {
        stdin: source,
        stdout: sink,
        ..
    } = streams;
    let down = async {
        let written = drain_to_end(&mut reader, sink, replies, Reply::Output, None).await;
        if written.is_ok() && reader.is_complete() {
            let _ = replies.send(Reply::Output(Vec::new())).await;
        }
        written
    };
    let carry = async {
        match tokio::join!(down, up(source, frames, &mut writer)).0 {
            // Closing discards what the server's window has not let out yet; sshd closes once it has both ends.
            Ok(()) => writer.closed().await,
            // A client that takes no more waits for no end of what it is sent.
            Err(_) => drop(writer.drained().await),
        }
    };
    tokio::select! {
        () = carry => {}
        () = attend => {}
    }
    Reply::Exit(Exit::Status(0))
}

/// Gives a tunnel its input, until the client's end or the channel's.
async fn up(mut source: Source, mut frames: mpsc::UnboundedReceiver<Vec<u8>>, writer: &mut ChannelWriter) {
    loop {
        let next = async {
            match &mut source {
                Source::Fd(input) => input.read().await.unwrap_or_default(),
                Source::Frames => frames.recv().await.unwrap_or_default().into(),
                // What is typed on a terminal that came along is a session's.
                Source::Null | Source::Terminal(_) => Bytes::new(),
            }
        };
        let data = tokio::select! {
            biased;
            data = next => data,
            () = writer.closed() => return,
        };
        if data.is_empty() || writer.send(data).await.is_err() {
            break;
        }
    }
    writer.finish();
}

/// Waits while only forwardings are wanted (`-N`): until the client leaves, or the connection is lost.
pub(crate) async fn hold(
    host: &Host,
    inputs: mpsc::Receiver<Request>,
    replies: &mpsc::Sender<Reply>,
    terms: Terms<'_>,
) -> Result<Reply, Error> {
    let (framed, _frames) = mpsc::unbounded_channel();
    // Held: what is used for nothing but tunnels that may come is not idle.
    let connection = host.hold();
    let mut apart = host.apart();
    let mut attended = pin!(attend(inputs, framed, replies, None, host, terms));
    loop {
        tokio::select! {
            error = connection.ended() => return Err(error),
            _ = &mut attended => return Ok(Reply::Exit(Exit::Status(0))),
            Ok(()) = apart.changed() => {
                let apart = *apart.borrow_and_update();
                let connections = host.lanes().into_iter().map(|lane| lane.report).collect();
                let _ = replies.send(Reply::Placement { apart, connections }).await;
            }
        }
    }
}

/// Gives the session its input. When that has ended, there is nothing more to do here.
async fn feed(
    source: Source,
    mut stdin: ChannelWriter,
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
    control: Option<&SessionControl>,
    host: &Host,
) -> std::convert::Infallible {
    match source {
        Source::Null => {}
        Source::Terminal(typed) => typed.feed(&mut stdin, control, host).await,
        // A command that takes no more input ends the feeding, not the session.
        Source::Frames => {
            while let Some(data) = frames.recv().await {
                if data.is_empty() || stdin.send(data.into()).await.is_err() {
                    break;
                }
            }
        }
        Source::Fd(mut input) => pump::feed(&mut input, &mut stdin).await,
    }
    stdin.finish();
    std::future::pending().await
}

/// Why a client's requests have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Departure {
    /// It is gone.
    Gone,
    /// It wants the session to end, and to hear how.
    Terminated,
}

/// Serves what the client says about its session, until it leaves or wants the session to end: what its forwardings
/// carry ends with that, as with an ssh that is killed. Framed input goes to `framed`, which has no bound: it is what
/// somebody types.
async fn attend(
    mut inputs: mpsc::Receiver<Request>,
    framed: mpsc::UnboundedSender<Vec<u8>>,
    replies: &mpsc::Sender<Reply>,
    control: Option<&SessionControl>,
    host: &Host,
    terms: Terms<'_>,
) -> Departure {
    let departure = loop {
        let Some(request) = inputs.recv().await else {
            break Departure::Gone;
        };
        match (request, control) {
            (Request::Terminate, _) => break Departure::Terminated,
            (Request::Input(data), _) => {
                let _ = framed.send(data);
            }
            (Request::Resize(columns, rows, width, height), Some(control)) => {
                control.resize(terminal_size((columns, rows, width, height)));
                if let Some(recording) = terms.recording {
                    recording.resize(columns, rows);
                }
            }
            (Request::Signal(name), Some(control)) => control.signal(&name),
            (Request::Break(milliseconds), Some(control)) => {
                control.send_break(milliseconds).await;
            }
            (Request::Rekey, _) => host.connection().rekey(),
            (Request::Forward(request), _) => {
                if let Some(forwards) = terms.forwards {
                    forwards.handle(request).await;
                }
            }
            (Request::Background, _) => {
                if let Some(forwards) = terms.forwards {
                    forwards.stop_listening().await;
                }
                let _ = framed.send(vec![END_OF_TRANSMISSION]);
                let _ = replies.send(Reply::Done).await;
            }
            _ => {}
        }
    };
    if departure == Departure::Gone && terms.detached() {
        std::future::pending::<()>().await;
    }
    if let Some(forwards) = terms.forwards {
        forwards.abort().await;
    }
    departure
}

/// Reads a stream that nobody wants, so that its command is not held up.
async fn discard(reader: &mut ChannelReader) {
    while reader.chunk().await.is_some() {}
}

/// Writes a stream to its sink, and closes that behind its end: whoever reads there sees it while the other direction goes on.
async fn drain_to_end(
    reader: &mut ChannelReader,
    mut sink: Sink,
    replies: &mpsc::Sender<Reply>,
    frame: impl Fn(Vec<u8>) -> Reply,
    recording: Option<&Recording>,
) -> std::io::Result<()> {
    drain(reader, &mut sink, replies, frame, recording).await
}

/// Writes a stream to its sink. Fails when nobody takes the output any more.
async fn drain(
    reader: &mut ChannelReader,
    sink: &mut Sink,
    replies: &mpsc::Sender<Reply>,
    frame: impl Fn(Vec<u8>) -> Reply,
    recording: Option<&Recording>,
) -> std::io::Result<()> {
    let note = |piece: &Bytes| {
        if let Some(recording) = recording {
            recording.output(piece);
        }
    };
    if let Sink::Fd(output) = sink {
        return pump::drain(reader, output, note).await;
    }
    while let Some(data) = reader.chunk().await {
        note(&data);
        if let Sink::Frames = sink {
            replies
                .send(frame(data.to_vec()))
                .await
                .map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        }
    }
    Ok(())
}

pub(crate) fn terminal_size((columns, rows, width, height): (u32, u32, u32, u32)) -> TerminalSize {
    TerminalSize {
        columns,
        rows,
        width,
        height,
    }
}
