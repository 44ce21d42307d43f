//! The clients' running work and their failures, for those who watch the daemon.
//!
//! All of it comes from the conversation with the client: its request says what it wants, the replies say how far that
//! is and how it ended. Only a request's text is formatted for this.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::UnixStream;
use trunkline::{Error, ErrorKind, Execution, Printable};

use crate::protocol::{
    Activity, ActivityKind, Asker, CopyPlace, CopyProgress, CopyRequest, Failure, FailureReport, HostRequest,
    Program, Reply, Request, Starts, TransferReport,
};
use trunkline_audit::asker::process_of;

/// The number of failures that are kept.
const FAILURES: usize = 100;

/// Shown as a connection's purpose while that is not known.
const FOR_STOCK_SSH: &str = "for stock ssh";

/// The longest text of an activity or a failure, in characters.
const LONGEST: usize = 512;

/// All running work of a daemon.
#[derive(Debug)]
pub(crate) struct Activities {
    begun: Instant,
    /// The lock is held for a look-up.
    known: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<u64, Activity>,
    last: u64,
    failures: VecDeque<FailureReport>,
    /// The number of failures so far, kept or not.
    failed: u64,
    starts: Starts,
}

/// The work and the failures at a moment.
pub(crate) struct Present {
    pub(crate) running: BTreeMap<u64, Activity>,
    /// The failures after `seen` that are kept.
    pub(crate) failures: Vec<FailureReport>,
    /// The number of failures so far: `seen` of the next call.
    pub(crate) failed: u64,
    pub(crate) starts: Starts,
}

impl Activities {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            known: Mutex::default(),
        })
    }

    /// Returns the time since the start, which reports use.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the running work, and the failures since `seen` of them.
    pub(crate) fn present(&self, seen: u64) -> Present {
        let known = self.lock_state();
        let new = usize::try_from(known.failed - seen).unwrap_or(usize::MAX);
        let kept = known.failures.len();
        Present {
            running: known.running.clone(),
            failures: known.failures.range(kept - new.min(kept)..).cloned().collect(),
            failed: known.failed,
            starts: known.starts.clone(),
        }
    }

    /// Returns the last kept failure to reach a host, by the name that clients gave it, in which nothing ran there.
    pub(crate) fn last_failure_to_reach(&self, host: &str) -> Option<FailureReport> {
        let host = line(host);
        let of_host = |report: &&FailureReport| {
            report.host == host
                && report.execution == Execution::DidNotStart
                && !matches!(report.kind, ErrorKind::File | ErrorKind::Limit | ErrorKind::Local)
        };
        self.lock_state().failures.iter().rev().find(of_host).cloned()
    }

    /// Counts how often running sessions of a host were resumed on a new connection.
    pub(crate) fn resumptions(&self, host: &str) -> u32 {
        let host = line(host);
        let known = self.lock_state();
        let of_host = known.running.values().filter(|activity| activity.host == host);
        of_host.map(|activity| activity.resumed).sum()
    }

    /// Returns true if anything is running.
    pub(crate) fn are_any(&self) -> bool {
        !self.lock_state().running.is_empty()
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, kind: ActivityKind, host: String, runs: String, asker: Asker) -> Running {
        let since = self.now();
        let mut known = self.lock_state();
        known.last += 1;
        let id = known.last;
        let activity = Activity {
            id,
            kind,
            host,
            runs,
            asker,
            since,
            started: None,
            transfer: None,
            resumed: 0,
            on_behalf: String::new(),
        };
        known.running.insert(id, activity);
        drop(known);
        Running {
            all: self.clone(),
            id,
        }
    }
}

/// Running work; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Running {
    all: Arc<Activities>,
    id: u64,
}

impl Running {
    /// Notes that it has started, on an existing connection if `warm`.
    pub(crate) fn note_start(&self, warm: bool) {
        let now = self.all.now();
        let mut known = self.all.lock_state();
        let Some(activity) = known.running.get_mut(&self.id) else {
            return;
        };
        if activity.started.is_some() {
            return;
        }
        let took = now.saturating_sub(activity.since);
        activity.started = Some(took);
        match warm {
            true => known.starts.warm.observe(took),
            false => known.starts.cold.observe(took),
        }
    }

    fn is_for_stock_ssh(&self) -> bool {
        let known = self.all.lock_state();
        let activity = known.running.get(&self.id);
        activity.is_some_and(|activity| activity.kind == ActivityKind::Warm && activity.runs == FOR_STOCK_SSH)
    }

    /// Notes on whose behalf it runs.
    fn note_submitter(&self, who: &str) {
        if let Some(activity) = self.all.lock_state().running.get_mut(&self.id) {
            activity.on_behalf = line(who);
        }
    }

    /// Notes that it was resumed on a new connection.
    fn note_resumption(&self) {
        if let Some(activity) = self.all.lock_state().running.get_mut(&self.id) {
            activity.resumed += 1;
        }
    }

    /// Notes a copy's progress.
    fn progress(&self, progress: &CopyProgress) {
        if let Some(activity) = self.all.lock_state().running.get_mut(&self.id) {
            activity.transfer = Some(TransferReport {
                bytes: progress.bytes,
                total_bytes: progress.total_bytes,
                files: progress.files,
                total_files: progress.total_files,
                failed: progress.failed,
                counted: progress.counted,
                current: line(&progress.current),
            });
        }
    }

    pub(crate) fn note_failure(&self, failure: &Failure) {
        let mut known = self.all.lock_state();
        let Some(activity) = known.running.get(&self.id) else {
            return;
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let report = FailureReport {
            at: at.as_secs(),
            activity: activity.kind,
            host: activity.host.clone(),
            kind: failure.kind,
            execution: failure.execution,
            message: line(&failure.message),
        };
        known.failed += 1;
        if known.failures.len() == FAILURES {
            known.failures.pop_front();
        }
        known.failures.push_back(report);
    }

    /// Notes an engine error as a failure.
    pub(crate) fn failed_by(&self, error: &Error) {
        self.note_failure(&error.into());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.all.lock_state().running.remove(&self.id);
    }
}

/// The work of one client: one thing at a time.
pub(crate) struct OfClient {
    all: Arc<Activities>,
    asker: Asker,
    /// The lock is held while a note is taken.
    running: Mutex<Option<Running>>,
}

impl OfClient {
    /// Returns the still empty work of the client at the other end of a socket.
    pub(crate) fn new(all: &Arc<Activities>, stream: &UnixStream, stock_ssh: bool) -> Self {
        Self {
            all: all.clone(),
            asker: Asker {
                pid: process_of(stream),
                programs: Vec::new(),
                stock_ssh,
            },
            running: Mutex::default(),
        }
    }

    /// Notes that new work begins, which ends the previous.
    pub(crate) fn begins(&self, kind: ActivityKind, host: &str, runs: impl AsRef<[u8]>) {
        let running = self
            .all
            .begin(kind, line(host), line(runs.as_ref()), self.asker.clone());
        *self.running() = Some(running);
    }

    /// Notes a client's request.
    pub(crate) fn handle_request(&self, request: &Request) {
        match request {
            Request::Session(session) => {
                let (kind, runs) = words(&session.program);
                self.begins(kind, name(&session.host), runs);
                if let (Some(who), Some(running)) = (&session.on_behalf, &*self.running()) {
                    running.note_submitter(&who.submitter);
                }
            }
            Request::Warm { host, .. } => self.begins(ActivityKind::Warm, name(host), ""),
            Request::MuxListen { host, .. } => self.begins(ActivityKind::Warm, name(host), FOR_STOCK_SSH),
            Request::Tune(tune) => self.begins(ActivityKind::Tune, name(&tune.host), ""),
            Request::Copy(copy) => self.begins(ActivityKind::Copy, &hosts(copy), paths(copy)),
            _ => {}
        }
    }

    /// Notes that the client's request has started, on an existing connection if `warm`.
    pub(crate) fn note_start(&self, warm: bool) {
        if let Some(running) = &*self.running() {
            running.note_start(warm);
        }
    }

    /// Notes that its session was resumed on a new connection.
    pub(crate) fn note_resumption(&self) {
        self.running().iter().for_each(Running::note_resumption);
    }

    /// Notes what a reply to the client says, except for the last one.
    pub(crate) fn handle_reply(&self, reply: &Reply) {
        match (reply, &*self.running()) {
            (Reply::Begun { warm, .. }, Some(running)) => running.note_start(*warm),
            (Reply::Progress(progress), Some(running)) => running.progress(progress),
            _ => {}
        }
    }

    /// Notes how the request has ended. A request that was left to stock ssh has not failed.
    pub(crate) fn handle_end(&self, last: &Reply) {
        if let (Some(running), Reply::Failed(failure)) = (self.running().take(), last)
            && !(running.is_for_stock_ssh() && failure.kind == ErrorKind::Configuration)
        {
            running.note_failure(failure);
        }
    }

    /// Locks the running work.
    pub(crate) fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(host: &HostRequest) -> &str {
    &host.destination.host
}

/// Returns the kind of a session, and its command.
fn words(program: &Program) -> (ActivityKind, Vec<u8>) {
    match program {
        Program::Configured => (ActivityKind::Shell, Vec::new()),
        Program::Exec(command) => (ActivityKind::Command, command.clone()),
        Program::Subsystem(name) => (ActivityKind::Subsystem, name.clone().into()),
        Program::Nothing => (ActivityKind::Hold, Vec::new()),
        Program::Stdio(host, port) => (ActivityKind::Tunnel, format!("{host}:{port}").into()),
        Program::StdioSocket(path) => (ActivityKind::Tunnel, path.clone().into()),
        Program::Listen(address, port) => {
            let address = address.as_deref().unwrap_or("localhost");
            (ActivityKind::Listener, format!("{address}:{port}").into())
        }
        Program::ListenSocket(path) => (ActivityKind::Listener, path.clone().into()),
        Program::Incoming(number) => (ActivityKind::Listener, format!("connection {number}").into()),
    }
}

fn hosts(copy: &CopyRequest) -> String {
    let mut hosts: Vec<&str> = Vec::new();
    for place in copy.sources.iter().chain([&copy.target]) {
        if let CopyPlace::Host(host, _) = place
            && !hosts.contains(&name(host))
        {
            hosts.push(name(host));
        }
    }
    hosts.join(", ")
}

/// Returns a copy's sources and target as text.
fn paths(copy: &CopyRequest) -> Vec<u8> {
    let mut words = Vec::new();
    for place in copy.sources.iter().chain([&copy.target]) {
        if !words.is_empty() {
            words.extend_from_slice(if std::ptr::eq(place, &copy.target) {
                " → ".as_bytes()
            } else {
                b" "
            });
        }
        match place {
            CopyPlace::Local(path) | CopyPlace::Passed(path) => {
                words.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
            CopyPlace::Host(host, path) => {
                words.extend_from_slice(name(host).as_bytes());
                words.push(b':');
                words.extend_from_slice(path);
            }
        }
        // A glob may have named a million files.
        if words.len() > LONGEST {
            break;
        }
    }
    words
}

/// Returns a printable line that fits into a table.
fn line(text: impl AsRef<[u8]>) -> String {
    let text = text.as_ref();
    let mut line = Printable::line(&text[..text.len().min(4 * LONGEST)]).into_string();
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        let (last, _) = line[..end].char_indices().next_back().unwrap_or_default();
        line.truncate(last);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(all: &Arc<Activities>) -> OfClient {
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        OfClient::new(all, &UnixStream::from_std(stream).unwrap(), false)
    }

    #[tokio::test]
    async fn an_activity_is_there_from_its_request_to_its_end() {
        let all = Activities::new();
        let client = client(&all);
        client.begins(ActivityKind::Command, "web1", "echo \x1b[2J");
        let present = all.present(0);
        let activity = present.running.values().next().unwrap();
        assert_eq!(activity.runs, "echo \\033[2J");
        assert_eq!(activity.asker.pid, Some(std::process::id()));
        assert_eq!(activity.started, None);
        let begun = Reply::Begun {
            tty: false,
            escapes: crate::protocol::Escapes::default(),
            warm: true,
            hostname: String::new(),
            predict: None,
        };
        client.handle_reply(&begun);
        client.handle_reply(&begun);
        let present = all.present(0);
        assert!(
            present
                .running
                .values()
                .all(|activity| activity.started.is_some())
        );
        assert_eq!((present.starts.warm.total(), present.starts.cold.total()), (1, 0));
        client.handle_end(&Reply::Done);
        assert!(all.present(0).running.is_empty());
        client.begins(ActivityKind::Shell, "web1", "");
        drop(client);
        assert!(all.present(0).running.is_empty(), "the client has left");
    }

    #[tokio::test]
    async fn failures_are_told_once_and_only_so_many_are_kept() {
        let all = Activities::new();
        let client = client(&all);
        for number in 0..FAILURES + 7 {
            client.begins(ActivityKind::Warm, "web1", "");
            client.handle_end(&Reply::Failed(Failure::new(
                ErrorKind::Network,
                format!("no {number}\n"),
            )));
        }
        let present = all.present(0);
        assert_eq!(present.failures.len(), FAILURES);
        assert_eq!(
            present.failures[FAILURES - 1].message,
            format!("no {}\\012", FAILURES + 6)
        );
        client.begins(ActivityKind::Warm, "web1", FOR_STOCK_SSH);
        client.handle_end(&Reply::Failed(Failure::new(
            ErrorKind::Configuration,
            "it needs the system's ssh",
        )));
        assert!(all.present(present.failed).failures.is_empty());
        let last = all.last_failure_to_reach("web1").unwrap();
        assert_eq!(last, present.failures[FAILURES - 1]);
        assert_eq!(all.last_failure_to_reach("web2"), None);
        assert_eq!(
            all.present(present.failed - 2).failures,
            present.failures[FAILURES - 2..]
        );
    }

    #[test]
    fn no_text_is_longer_than_a_table_can_use() {
        for text in ["x".repeat(5_000), "é\u{1b}".repeat(2_000), String::new()] {
            assert!(line(&text).chars().count() <= LONGEST);
        }
        assert!(line("x".repeat(513)).ends_with("x…"));
        assert_eq!(line("x".repeat(512)), "x".repeat(512));
    }
}
