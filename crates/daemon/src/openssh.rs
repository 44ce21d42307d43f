//! The OpenSSH transport: masters of the system's ssh, kept for hosts that the engine cannot serve.
//!
//! A master is an ssh that was told to stay (ControlMaster, ControlPersist), one for each sharing key, with its socket
//! in our directory. The key covers the caller's environment, since ssh reads it. For a session, ssh is run with the
//! same options: it uses the master, or becomes it. If there is a user to ask, the client itself runs it on the user's
//! terminal; otherwise the daemon does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::Stdio as Pipe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use trunkline::config::{HostConfig, SharingKey, World};
use trunkline::openssh::{Master, MasterState, complaint, ssh_for};
use trunkline::{Absence, Engine, Error, ErrorKind, Invalid};

use crate::deadline::Deadline;
use crate::place::{Place, make_private};
use crate::protocol::{
    ExitStatus, Failure, HostReport, HostRequest, MasterReport, Program, Reply, Request, SessionRequest,
    Stdio, Transport,
};
use crate::reports;
use crate::reports::unusable_directory;
use crate::reports::{address, engine_request, plain_begun};

/// Bytes of a session's output that are read at a time.
const CHUNK: usize = 32 * 1024;

/// The masters that this daemon knows. They outlive it by as long as ControlPersist says.
pub(crate) struct Masters {
    directory: PathBuf,
    mux: PathBuf,
    engine: Engine,
    /// The lock is held for a look-up.
    known: Mutex<BTreeMap<SharingKey, MasterHost>>,
}

/// A host that is reached through a master.
#[derive(Clone)]
struct MasterHost {
    host: Arc<HostConfig>,
    master: Master,
    world: Arc<World>,
    pinned: bool,
}

impl Masters {
    /// Returns an empty table. Masters stay as long as the engine's settings let a connection be idle.
    pub(crate) fn new(place: &Place, engine: Engine) -> Self {
        Self {
            directory: place.masters(),
            mux: place.mux(),
            engine,
            known: Mutex::default(),
        }
    }

    /// Returns the options with which ssh uses the host's master. A ControlPath of the user's own is left alone.
    pub(crate) fn options(&self, host: &Arc<HostConfig>, world: &Arc<World>) -> Result<Vec<OsString>, Error> {
        let known = self.know(host, world)?;
        if known.master.path.parent() == Some(&self.directory) {
            let idle = self.engine.settings().idle_timeout;
            let idle = if known.pinned { FOREVER } else { idle };
            return Ok(known.master.options(idle, self.engine.confirms_use(host)));
        }
        Ok(Vec::new())
    }

    fn know(&self, host: &Arc<HostConfig>, world: &Arc<World>) -> Result<MasterHost, Error> {
        make_private(&self.directory).map_err(unusable_directory)?;
        let host = host.through_ssh(world);
        let key = host.sharing_key();
        let mut table = self.lock_known();
        let known = table.entry(key).or_insert_with(|| {
            let own = Master::of_user(&host, &self.mux);
            MasterHost {
                host,
                master: own.unwrap_or_else(|| Master::at_path(self.directory.join(key.to_string()))),
                world: world.clone(),
                pinned: false,
            }
        });
        Ok(known.clone())
    }

    /// Starts a master without asking anyone.
    pub(crate) async fn warm(
        &self,
        host: &Arc<HostConfig>,
        request: &HostRequest,
        pin: bool,
    ) -> Result<(), Error> {
        let request = engine_request(request);
        self.know(host, &request.world)?;
        if pin
            && let Some(known) = self
                .lock_known()
                .get_mut(&host.through_ssh(&request.world).sharing_key())
        {
            known.pinned = true;
        }
        let mut options = batch();
        options.extend(self.options(host, &request.world)?);
        options.extend(["-fN".into(), "-o".into(), "ClearAllForwardings=yes".into()]);
        let mut ssh = ssh_for(&request, &options)?;
        ssh.stdin(Pipe::null()).stdout(Pipe::null()).stderr(Pipe::piped());
        let output = ssh
            .spawn()
            .map_err(|source| Error::local("running ssh", source))?
            .wait_with_output()
            .await
            .map_err(|source| Error::local("running ssh", source))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::SystemSsh {
            about: host.original_host.clone(),
            said: complaint(&output.stderr),
            unattended: true,
        })
    }

    /// Returns true if the host has a master that answers.
    pub(crate) async fn is_warm(&self, host: &Arc<HostConfig>, world: &World) -> bool {
        let key = host.through_ssh(world).sharing_key();
        let known = self.lock_known().get(&key).cloned();
        match known {
            Some(known) => matches!(known.master.state().await, MasterState::Alive(_)),
            None => false,
        }
    }

    /// Checks that the host's master answers.
    pub(crate) async fn check(&self, host: &Arc<HostConfig>, world: &Arc<World>) -> Result<(), Error> {
        let why = match self.know(host, world)?.master.state().await {
            MasterState::Alive(_) => return Ok(()),
            MasterState::Missing => Absence::Unmade,
            MasterState::Stale => Absence::Dead,
            MasterState::Silent => Absence::Silent,
        };
        Err(Error::NotConnected {
            host: host.original_host.clone(),
            why,
        })
    }

    /// Ends the masters of the chosen hosts: the idle ones, or all if `at_once`. Returns their number.
    pub(crate) async fn close(&self, at_once: bool, choose: impl Fn(&HostConfig) -> bool) -> usize {
        let chosen: Vec<(SharingKey, MasterHost)> = self
            .lock_known()
            .iter()
            .filter(|(_, known)| choose(&known.host))
            .map(|(key, known)| (*key, known.clone()))
            .collect();
        let mut closed = 0;
        for (key, known) in chosen {
            let busy = match known.master.state().await {
                MasterState::Alive(report) => report.clients.is_some_and(|clients| clients > 0),
                _ => false,
            };
            if busy && !at_once {
                tracing::info!(host = %known.host.original_host, "its ControlMaster still has sessions and stays open");
                continue;
            }
            match known.master.exit(&known.world).await {
                Ok(ended) => closed += usize::from(ended),
                Err(error) => tracing::warn!(host = %known.host.original_host, "{error}"),
            }
            self.lock_known().remove(&key);
        }
        closed
    }

    pub(crate) async fn report(&self, key: &SharingKey) -> Option<MasterReport> {
        let known = self.lock_known().get(key).cloned()?;
        report(&known.master).await
    }

    /// Returns a report on every host with a master, and the host's configuration.
    pub(crate) async fn list(&self) -> Vec<(HostReport, Arc<HostConfig>)> {
        let known: Vec<(SharingKey, MasterHost)> = self
            .lock_known()
            .iter()
            .map(|(key, known)| (*key, known.clone()))
            .collect();
        let mut reports = Vec::new();
        for (key, known) in known {
            let Some(master) = report(&known.master).await else {
                continue;
            };
            let report = HostReport {
                pinned: known.pinned,
                sharing: key.to_string(),
                master: Some(master),
                ..HostReport::new(
                    &known.host.original_host,
                    address(&known.host),
                    Transport::OpenSsh,
                )
            };
            reports.push((report, known.host));
        }
        reports
    }

    fn lock_known(&self) -> MutexGuard<'_, BTreeMap<SharingKey, MasterHost>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a report on a master, unless it is gone.
async fn report(master: &Master) -> Option<MasterReport> {
    let state = master.state().await;
    (state != MasterState::Missing).then(|| reports::master(master, &state))
}

/// The ControlPersist of a pinned master, which is an int of seconds.
const FOREVER: Duration = Duration::from_secs(i32::MAX as u64);

/// The exit status of an ssh that failed itself.
const OWN_ERROR: i32 = 255;

/// Returns the options of an ssh that cannot ask anyone.
fn batch() -> Vec<OsString> {
    vec!["-o".into(), "BatchMode=yes".into()]
}

/// Runs a session through the system's ssh for a client that cannot be asked, and returns its last frame.
///
/// # Errors
/// ssh cannot be run, or time is up.
pub(crate) async fn session(
    master: Vec<OsString>,
    warm: bool,
    request: &SessionRequest,
    fds: Vec<OwnedFd>,
    replies: &mpsc::Sender<Reply>,
    inputs: mpsc::Receiver<Request>,
) -> Result<Reply, Error> {
    let mut ssh = ssh_session(master, request)?;
    let mut fds = fds.into_iter();
    let mut stream = |kind: Stdio| match kind {
        Stdio::Passed => fds.next().map_or_else(Pipe::null, Pipe::from),
        Stdio::Framed => Pipe::piped(),
        Stdio::Null => Pipe::null(),
    };
    let [input, output, errors] = request.stdio;
    ssh.stdin(stream(input))
        .stdout(stream(output))
        .stderr(stream(errors));
    let mut child = ssh
        .spawn()
        .map_err(|source| Error::local("running ssh", source))?;
    // The command's copies of the passed descriptors would keep a client's pipe open.
    drop(ssh);
    let _ = replies.send(plain_begun(warm)).await;
    let feeding = feed(child.stdin.take(), inputs);
    let name = &request.host.destination.host;
    let failed = |kind, message: String| Reply::Failed(Failure::new(kind, message).after_start());
    let time_is_up = Deadline::wait(request.limit.map(Deadline::from_limit), name);
    tokio::select! {
        status = carry(&mut child, replies) => {
            let status = status.map_err(|source| Error::local("waiting for ssh", source))?;
            Ok(match status.code() {
                // ssh's status for any failure, before the command or during it (ssh(1), EXIT STATUS). Its standard
                // error may be the command's, too.
                Some(OWN_ERROR) => failed(
                    ErrorKind::Network,
                    format!("{name}: the system's ssh ended with status 255: it failed, or its command ended so"),
                ),
                Some(code) => Reply::Exit(ExitStatus::Exited(code.unsigned_abs())),
                None => Reply::Exit(ExitStatus::Unknown),
            })
        }
        // Dropping the child kills it. It passes on no signals.
        () = feeding => Ok(failed(
            ErrorKind::Local,
            format!("ssh was ended; its command on {name} may still be running"),
        )),
        error = time_is_up => Ok(failed(error.kind(), error.to_string())),
    }
}

fn ssh_session(master: Vec<OsString>, request: &SessionRequest) -> Result<Command, Error> {
    let mut options = batch();
    options.extend(master);
    options.push("-T".into());
    let mut word = None;
    match &request.program {
        Program::Configured => {}
        Program::Exec(command) => word = Some(OsString::from_vec(command.clone())),
        Program::Nothing => options.push("-N".into()),
        Program::Subsystem(name) => {
            options.push("-s".into());
            word = Some(name.into());
        }
        Program::Stdio(host, port) => options.extend(["-W".into(), format!("[{host}]:{port}").into()]),
        Program::StdioSocket(path) => {
            return Err(Invalid::SocketBySystemSsh(path.clone()).into());
        }
        Program::Listen(..) | Program::ListenSocket(_) | Program::Incoming(_) => {
            return Err(Invalid::ListenBySystemSsh.into());
        }
    }
    for name in request.env.keys() {
        let mut sent = OsString::from("SendEnv=");
        sent.push(name);
        options.extend(["-o".into(), sent]);
    }
    let mut ssh = ssh_for(&engine_request(&request.host), &options)?;
    ssh.envs(&request.env).args(word);
    Ok(ssh)
}

/// Sends the child's output to the client until both streams end.
async fn carry(
    child: &mut Child,
    replies: &mpsc::Sender<Reply>,
) -> std::io::Result<std::process::ExitStatus> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let out = copy(stdout, replies, Reply::Output);
    let errors = copy(stderr, replies, Reply::ErrorOutput);
    let (status, (), ()) = tokio::join!(child.wait(), out, errors);
    status
}

async fn copy(
    stream: Option<impl AsyncRead + Unpin>,
    replies: &mpsc::Sender<Reply>,
    frame: impl Fn(Vec<u8>) -> Reply,
) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; CHUNK];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        if replies.send(frame(chunk[..count].to_vec())).await.is_err() {
            return;
        }
    }
}

/// Gives the child the client's input. Returns when the client has left or wants to stop.
async fn feed(mut stdin: Option<ChildStdin>, mut inputs: mpsc::Receiver<Request>) {
    while let Some(frame) = inputs.recv().await {
        if let Request::Terminate = frame {
            return;
        }
        if let Request::Input(bytes) = frame {
            let ended = match &mut stdin {
                Some(stdin) if !bytes.is_empty() => stdin.write_all(&bytes).await.is_err(),
                _ => true,
            };
            if ended {
                stdin = None;
            }
        }
    }
}
