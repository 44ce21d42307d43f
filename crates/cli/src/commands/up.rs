//! `trunkline up`, which every ssh runs before it decides on a ControlPath, through the lines that `trunkline setup
//! ssh` adds.
//!
//! ssh passes no arguments (docs/adr/0008-up-stanza.md says why), so ssh's own command line is read. Success means that
//! ssh may use the mux socket. On failure, or after the time limit, ssh connects by itself as if trunkline were not
//! there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use trunkline_control::lent::Lending;
use trunkline_control::protocol::{Reply, Request};
use trunkline_request::ssh_options::keyword_and_value;
use trunkline_request::{RESOLVING, not_shared};

use crate::backend::{self, Backend, Daemon, host_request, must_share, place, runtime};
use crate::hints::Refused;
use crate::questions::Conversation;
use crate::ssh_args::SshArgs;

/// The time after which ssh has waited long enough. The rest of 200 ms is for starting the shell and this process.
/// `TRUNKLINE_UP_LIMIT` sets another limit, in milliseconds.
const LIMIT: Duration = Duration::from_millis(180);

pub(crate) fn main(backend: &Backend) -> ExitCode {
    // The engine is reading the configuration to find the mux socket's path.
    if std::env::var_os(RESOLVING).is_some() {
        return ExitCode::SUCCESS;
    }
    let caller = match Caller::find() {
        Ok(caller) => caller,
        Err(why) if must_share() && why != NOT_SSH => return refuse(why),
        Err(why) => return decline(logs(0), why),
    };
    let loud = logs(caller.args.verbosity);
    let wants = caller.wants();
    if let Wants::Path = wants {
        return ExitCode::SUCCESS;
    }
    let strict = !caller.has_our_master() && caller.must_share(backend);
    // An ssh that would be refused otherwise waits as long as the daemon takes.
    if !strict {
        limit_the_time(loud);
    }
    let listening = match wants {
        Wants::Nothing(why) => Err(anyhow::anyhow!(why)),
        _ => listen(&caller, backend, strict),
    };
    match listening {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if strict => refuse(&format!("{error:#}")),
        Err(error) => decline(loud, &format!("{error:#}")),
    }
}

/// Returns true if the user wants to know the reason: with `ssh -v`, or `TRUNKLINE_LOG`.
fn logs(verbosity: u8) -> bool {
    verbosity > 0 || std::env::var_os("TRUNKLINE_LOG").is_some()
}

fn decline(loud: bool, why: &str) -> ExitCode {
    if loud {
        eprintln!("trunkline: ssh connects by itself: {why}");
    }
    ExitCode::FAILURE
}

/// Makes ssh give up instead of connecting by itself, which it does if its Match exec dies of a signal.
fn refuse(why: &str) -> ExitCode {
    eprintln!("trunkline: {}", not_shared(why));
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    ExitCode::FAILURE
}

/// Ends the process in time, even if it is blocked. Uses an exit status, since ssh gives up if its Match exec dies of a
/// signal.
fn limit_the_time(loud: bool) {
    let set = std::env::var("TRUNKLINE_UP_LIMIT").ok();
    let limit = set
        .and_then(|value| value.parse().ok())
        .map_or(LIMIT, Duration::from_millis);
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        decline(loud, "the daemon takes too long");
        std::process::exit(1)
    });
}

fn listen(caller: &Caller, backend: &Backend, strict: bool) -> anyhow::Result<()> {
    let destination = caller.args.destination.to_string_lossy();
    let mut host = host_request(&destination, caller.args.config_args.clone())?;
    if let Some(program) = &caller.program {
        // An ssh other than the first on PATH may read the configuration differently.
        host.world.env.insert("TRUNKLINE_SSH".into(), program.clone());
    }
    let reply = runtime()?.block_on(async {
        let mut client = backend.connect(Daemon::Shared).await?;
        if !strict {
            // A program that wants to ask is killed here. ssh runs it itself, and it asks then.
            client = client.lending(Lending::Refused);
        }
        let listen = Request::MuxListen {
            host,
            path: None,
            client: caller.process,
        };
        client.send(&listen).await?;
        // It asks only if ssh must not connect by itself.
        let mut daemon = Conversation::new(client, backend.questions());
        loop {
            match daemon.next().await? {
                Reply::Notice(notice) => eprintln!("{notice}"),
                reply => return anyhow::Ok(reply),
            }
        }
    })?;
    match reply {
        Reply::Done => Ok(()),
        Reply::Failed(failure) => Err(Refused(failure).into()),
        other => anyhow::bail!("unexpected reply from the daemon: {other:?}"),
    }
}

/// The ssh that runs this.
struct Caller {
    args: SshArgs,
    /// Its path, if it was started by one.
    program: Option<OsString>,
    process: Option<u32>,
}

/// The needs of ssh's command line.
enum Wants {
    /// A listening mux socket.
    Socket,
    /// The path of the mux socket, whether it exists or not.
    Path,
    /// No socket of ours, for this reason.
    Nothing(&'static str),
}

impl Caller {
    fn find() -> Result<Self, &'static str> {
        let parent = rustix::process::getppid().ok_or("the calling process has ended")?;
        let (process, words) = asking_process(parent)?;
        let process = u32::try_from(process.as_raw_pid()).ok();
        Ok(Self {
            process,
            ..Self::from_command_line(words)?
        })
    }

    fn from_command_line(words: Vec<OsString>) -> Result<Self, &'static str> {
        let mut words = words.into_iter();
        let program = words.next().ok_or("the calling process has no command line")?;
        // Libraries and other programs read ssh_config, too. Their arguments are not ssh's.
        if Path::new(&program).file_name() != Some(OsStr::new("ssh")) {
            return Err(NOT_SSH);
        }
        let args = SshArgs::parse(words).map_err(|_| "ssh's command line cannot be parsed")?;
        let by_path = program.as_encoded_bytes().contains(&b'/');
        Ok(Self {
            args,
            program: by_path.then_some(program),
            process: None,
        })
    }

    /// Returns true if ssh must give up rather than connect by itself.
    fn must_share(&self, backend: &Backend) -> bool {
        let off = std::env::var_os("TRUNKLINE_OFF").is_some_and(|value| value == "1");
        if must_share() {
            return true;
        }
        if off || !backend::has_strict_hosts().unwrap_or(true) {
            return false;
        }
        // The daemon knows the strict hosts. Until it answers, this may be one of them.
        backend.must_share(&self.args).unwrap_or(true)
    }

    /// Returns true if trunkline started this ssh to use one of the daemon's masters.
    fn has_our_master(&self) -> bool {
        let Ok(place) = place() else { return false };
        let mut lines = self
            .args
            .config_args
            .iter()
            .filter_map(|line| keyword_and_value(line));
        let named = lines.find(|(keyword, _)| keyword == "controlpath");
        let path = self
            .args
            .control_path
            .clone()
            .or(named.map(|(_, path)| path.into()));
        path.is_some_and(|path| Path::new(&path).starts_with(place.masters()))
    }

    fn wants(&self) -> Wants {
        if std::env::var_os("TRUNKLINE_OFF").is_some_and(|value| value == "1") {
            return Wants::Nothing("TRUNKLINE_OFF is set");
        }
        if self.args.control_path.is_some() {
            return Wants::Nothing("-S names its control socket");
        }
        // `-O` talks to an existing socket, and reports itself if there is none.
        if self.args.print_config || self.args.mux_command.is_some() {
            return Wants::Path;
        }
        // The calling ssh does these itself; for `trunkline ssh`, an ssh that is kept warm does.
        if self.args.own_connection {
            return Wants::Nothing("it has options (-I, -K, -X, -Y or -w) for a connection of its own");
        }
        match self.args.needs_system_ssh() {
            Some(why) => Wants::Nothing(why),
            None => Wants::Socket,
        }
    }
}

/// Returns the process that started us and its command line: our parent, or its parent if a shell did not exec.
fn asking_process(parent: Pid) -> Result<(Pid, Vec<OsString>), &'static str> {
    let words = command_line(parent)?;
    // `sh -c COMMAND`: ssh runs a Match exec through the user's shell.
    let is_shell = words.len() == 3 && words[1] == "-c";
    if !is_shell {
        return Ok((parent, words));
    }
    let caller = parent_of(parent)?;
    Ok((caller, command_line(caller)?))
}

const NOT_SSH: &str =
    "`trunkline up` is run by ssh, from the lines that `trunkline setup ssh` adds to ssh_config";

const UNREADABLE: &str = "the command line of the calling process cannot be read";

#[cfg(target_os = "linux")]
fn command_line(process: Pid) -> Result<Vec<OsString>, &'static str> {
    let bytes = std::fs::read(format!("/proc/{}/cmdline", process.as_raw_pid())).map_err(|_| UNREADABLE)?;
    Ok(words(&bytes))
}

/// Splits the content of /proc/PID/cmdline, where each word ends with a NUL.
#[cfg(target_os = "linux")]
fn words(bytes: &[u8]) -> Vec<OsString> {
    let Some(words) = bytes.strip_suffix(&[0]) else {
        return Vec::new();
    };
    words
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect()
}

#[cfg(target_os = "linux")]
fn parent_of(process: Pid) -> Result<Pid, &'static str> {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).map_err(|_| UNREADABLE)?;
    // proc(5): PID (NAME) STATE PPID. The name may contain anything.
    let parent = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
    parent.and_then(Pid::from_raw).ok_or(UNREADABLE)
}

/// Fails, because other systems have no file for the command line. Stock ssh connects by itself there.
#[cfg(not(target_os = "linux"))]
fn command_line(_: Pid) -> Result<Vec<OsString>, &'static str> {
    Err(UNREADABLE)
}

#[cfg(not(target_os = "linux"))]
fn parent_of(_: Pid) -> Result<Pid, &'static str> {
    Err(UNREADABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(line: &str) -> Result<Caller, &'static str> {
        Caller::from_command_line(line.split(' ').map(OsString::from).collect())
    }

    fn wants_socket(line: &str) -> bool {
        matches!(caller(line).unwrap().wants(), Wants::Socket)
    }

    #[test]
    fn what_connects_wants_a_socket() {
        for line in [
            "ssh web1",
            "/usr/bin/ssh -p 22 -l me web1 uptime",
            "ssh -oForwardX11=no -s host sftp",
            "ssh -W db:22 jump",
            "ssh -fNn -L 1:db:2 host",
            "ssh -tt -o BatchMode=yes host",
        ] {
            assert!(wants_socket(line), "{line}");
        }
    }

    #[test]
    fn what_has_a_socket_of_its_own_or_makes_one_wants_nothing() {
        for line in [
            "ssh -S /x host",
            "ssh -S none host",
            "ssh -M host",
            "ssh -X host",
            "ssh -I /lib/x.so host",
            "ssh -w 0:0 host",
            "ssh -Q cipher",
            "ssh -V",
        ] {
            let caller = caller(line).unwrap();
            assert!(matches!(caller.wants(), Wants::Nothing(_)), "{line}");
        }
    }

    #[test]
    fn what_asks_about_a_socket_needs_its_path_only() {
        for line in ["ssh -G host", "ssh -O check host", "ssh -p 22 -O exit host"] {
            assert!(matches!(caller(line).unwrap().wants(), Wants::Path), "{line}");
        }
    }

    #[test]
    fn only_ssh_is_listened_to() {
        for line in ["python3 deploy.py web1", "bash", "sshfs host:/ /mnt", "ssh"] {
            assert!(caller(line).is_err(), "{line}");
        }
        assert_eq!(
            caller("/opt/bin/ssh h").unwrap().program,
            Some("/opt/bin/ssh".into())
        );
        assert_eq!(caller("ssh h").unwrap().program, None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_words_of_a_command_line_may_be_empty() {
        assert_eq!(words(b"ssh\0\0a b\0"), ["ssh", "", "a b"]);
        assert!(words(b"").is_empty());
        let ourselves = rustix::process::getpid();
        let typed: Vec<_> = std::env::args_os().collect();
        assert_eq!(command_line(ourselves).unwrap(), typed);
        assert_eq!(Some(parent_of(ourselves).unwrap()), rustix::process::getppid());
    }
}
