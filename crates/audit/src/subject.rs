//! The subject of a request, as recorded in the trail.

use serde::Serialize;
use trunkline::config::{Forward, HostConfig};
use trunkline::transfer::Location;
use trunkline::{ForwardClient, Printable};
use trunkline_control::protocol::{CopyPlace, CopyRequest, ForwardKind, OnBehalf, Program};

use crate::hash::Hash;

/// The most sources of a copy that are recorded. The last entry has the total number.
const MAX_SOURCES: usize = 32;

/// The subject of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Subject {
    /// "session", "tunnel", "incoming", "listener", "forwarding", "copy", "tune", "listing", "call".
    kind: &'static str,
    /// The destination as typed.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// The account on the server, if the configuration could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// The resolved destination: its name or address, and its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// "command", "shell", "subsystem" or "none" for sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'static str>,
    /// The command line, the subsystem's name, or the target of a tunnel or forwarding.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    command: Option<Exact>,
    /// The origin of a forwarded connection; for a remote forwarding as the server gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// True if the session has a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    terminal: Option<bool>,
    /// The sources of a copy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<String>,
    /// The target of a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// The tool that an assistant called.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    /// The decision about the call, and who made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<String>,
    /// The public nkey of the fleet's submitter, as the client gives it; or an assistant's client, with its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    submitter: Option<String>,
    /// The job that it belongs to, as the client gives it; or the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// "program" if a program did it with its own engine instead of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    /// "ssh" if it was left to the system's ssh.
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
}

impl Subject {
    /// Returns a subject at a host that is not resolved yet.
    pub fn new(kind: &'static str, host: &str) -> Self {
        Self {
            kind,
            host: Some(Printable::line(host).into_string()),
            ..Self::default()
        }
    }

    /// Returns the subject of a client's session.
    pub fn session(host: &str, program: &Program) -> Self {
        Self::new("session", host).running(program)
    }

    /// Sets the resolved program.
    pub fn running(mut self, program: &Program) -> Self {
        let (kind, name, command) = match program {
            Program::Configured => ("session", Some("shell"), None),
            Program::Exec(command) => ("session", Some("command"), Some(Exact::new(command))),
            Program::Subsystem(name) => ("session", Some("subsystem"), Some(Exact::new(name.as_bytes()))),
            Program::Nothing => ("session", Some("none"), None),
            Program::Stdio(host, port) => ("tunnel", None, Some(target(format!("{host}:{port}")))),
            Program::StdioSocket(path) => ("tunnel", None, Some(target(path))),
            Program::Listen(host, port) => {
                let host = host.as_deref().unwrap_or("localhost");
                ("listener", None, Some(target(format!("{host}:{port}"))))
            }
            Program::ListenSocket(path) => ("listener", None, Some(target(path))),
            Program::Incoming(_) => ("tunnel", None, None),
        };
        (self.kind, self.program, self.command) = (kind, name, command);
        self
    }

    /// Returns the subject of an assistant's call of a tool: the host, the action and the decision.
    pub fn call(tool: &str, host: &str, what: &str, decision: &str) -> Self {
        Self {
            tool: Some(tool.to_owned()),
            decision: Some(Printable::line(decision).into_string()),
            ..Self::new("call", host).with_target(what)
        }
    }

    /// Sets for whom it is done.
    pub fn on_behalf(mut self, of: Option<&OnBehalf>) -> Self {
        self.submitter = of.map(|of| Printable::line(&of.submitter).into_string());
        self.job = of.map(|of| Printable::line(&of.job).into_string());
        self
    }

    /// Sets the engine that does the work, if it is not the daemon's.
    pub(crate) fn with_engine(mut self, engine: Option<&'static str>) -> Self {
        self.engine = engine;
        self
    }

    /// Sets the resolved destination.
    pub fn with_host(mut self, host: &HostConfig) -> Self {
        self.host = Some(Printable::line(&host.original_host).into_string());
        self.user = Some(Printable::line(&host.user).into_string());
        self.hostname = Some(Printable::line(&host.hostname).into_string());
        self.port = Some(host.port);
        self
    }

    /// Returns the subject of a connection through a local forwarding, with its target.
    pub fn outgoing(host: &HostConfig, client: &ForwardClient) -> Self {
        Self::connection("tunnel", host, client)
    }

    /// Returns the subject of a connection through a remote forwarding, with its local target.
    pub fn incoming(host: &HostConfig, client: &ForwardClient) -> Self {
        Self::connection("incoming", host, client)
    }

    /// Returns the subject of a connection to the server's listener that this process reads itself. `from` is the
    /// origin that the server gives.
    pub fn accepted_connection(host: &HostConfig, from: &str) -> Self {
        let from = Printable::line(from).into_string();
        Self {
            from: (!from.is_empty()).then_some(from),
            ..Self::new("incoming", &host.original_host).with_host(host)
        }
    }

    fn connection(kind: &'static str, host: &HostConfig, client: &ForwardClient) -> Self {
        // The server may give any origin.
        let from = Printable::line(&client.from).into_string();
        Self {
            from: (!from.is_empty()).then_some(from),
            ..Self::new(kind, &host.original_host)
                .with_host(host)
                .with_target(&client.target)
        }
    }

    /// Returns the subject of a forwarding, with its listener and target.
    pub fn forwarding(host: &HostConfig, kind: ForwardKind, forward: &Forward) -> Self {
        let way = format!("{} {} to {}", kind.option(), forward.listen, forward.target);
        Self::new("forwarding", &host.original_host)
            .with_host(host)
            .with_target(way)
    }

    /// Returns true if it normally ends when its owner drops it.
    pub(crate) fn lasts(&self) -> bool {
        matches!(self.kind, "forwarding" | "listener" | "tunnel" | "incoming")
    }

    /// Sets whether it has a terminal.
    pub fn on_terminal(mut self, terminal: bool) -> Self {
        self.terminal = Some(terminal);
        self
    }

    /// Sets the target of a tunnel or a forwarding.
    pub fn with_target(mut self, place: impl AsRef<str>) -> Self {
        self.command = Some(target(place));
        self
    }

    /// Marks work that was left to the system's ssh.
    pub fn through_ssh(mut self) -> Self {
        self.transport = Some("ssh");
        self
    }

    /// Returns the subject of a copy with an engine.
    pub fn transfer(host: &HostConfig, sources: &[Location], target: &Location) -> Self {
        Self {
            sources: source_names(sources, location_name),
            target: Some(location_name(target)),
            ..Self::new("copy", &host.original_host).with_host(host)
        }
    }

    /// Returns the subject of a client's copy.
    pub fn copy(request: &CopyRequest) -> Self {
        let places = request.sources.iter().chain([&request.target]);
        let mut host = places.filter_map(|place| match place {
            CopyPlace::Host(host, _) => Some(Printable::line(&host.destination.host).into_string()),
            CopyPlace::Local(_) | CopyPlace::Passed(_) => None,
        });
        Self {
            kind: "copy",
            host: host.next_back(),
            sources: source_names(&request.sources, place_name),
            target: Some(place_name(&request.target)),
            ..Self::default()
        }
    }
}

/// Bytes as printable text, and their length and hash if the text differs from them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Exact {
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_sha256: Option<String>,
}

impl Exact {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let shown = Printable::line(bytes).into_string();
        let differs = shown.as_bytes() != bytes;
        Self {
            command: shown,
            command_bytes: differs.then_some(bytes.len()),
            command_sha256: differs.then(|| Hash::digest(bytes).to_string()),
        }
    }
}

fn target(place: impl AsRef<str>) -> Exact {
    Exact::new(place.as_ref().as_bytes())
}

/// Returns the names of a copy's sources, up to the limit.
fn source_names<T>(sources: &[T], name: impl Fn(&T) -> String) -> Vec<String> {
    let mut names: Vec<String> = sources.iter().take(MAX_SOURCES).map(name).collect();
    if sources.len() > MAX_SOURCES {
        names.push(format!("and others, {} in all", sources.len()));
    }
    names
}

fn location_name(place: &Location) -> String {
    match place {
        Location::Local(path) => Printable::line(path.as_os_str().as_encoded_bytes()).into_string(),
        Location::Host(host, path) => at_host(&host.config().original_host, path),
        Location::Session(sftp, path) => at_host(sftp.host(), path),
        _ => "an open file".into(),
    }
}

fn at_host(host: &str, path: &[u8]) -> String {
    let mut text = host.as_bytes().to_vec();
    text.push(b':');
    text.extend_from_slice(path);
    Printable::line(text).into_string()
}

fn place_name(place: &CopyPlace) -> String {
    match place {
        CopyPlace::Local(path) | CopyPlace::Passed(path) => {
            Printable::line(path.as_os_str().as_encoded_bytes()).into_string()
        }
        CopyPlace::Host(host, path) => at_host(&host.destination.host, path),
    }
}
