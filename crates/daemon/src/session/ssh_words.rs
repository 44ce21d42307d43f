//! A failure in ssh's own words, for a client that stands for ssh: people know them, and programs look for them.

use rustix::io::Errno;
use trunkline::config::{ConfigError, HostConfig, Proxy};
use trunkline::host_key::HostKeyError;
use trunkline::{Error, Execution};

use crate::protocol::{Failure, Program};

/// What is said of a failure: ssh's lines, with what only this side knows in lines of its own before them. `None` where ssh
/// has no words for it.
///
/// `config`: the host's, if it can be used.
pub(crate) fn of(error: &Error, config: Option<&HostConfig>, program: &Program) -> Option<String> {
    if let Error::Config(error) = error {
        match &**error {
            ConfigError::Refused(said) => return Some(said.clone()),
            ConfigError::TwoCommands => {
                return Some("Cannot execute command-line and remote command.".into());
            }
            _ => {}
        }
    }
    let config = config?;
    if let Error::Jump { jump, cause } = error {
        // ssh runs another ssh for the jump host, and finds that one's output at its end.
        let forwards = Program::Stdio(config.hostname.clone(), config.port);
        let of_jump = of(cause, Some(jump), &forwards)?;
        return Some(format!("{of_jump}\n{}", closed_at_once(&peer(config))));
    }
    let mut lines = Vec::new();
    let root = error.root();
    if let Error::Greeted { greeting, .. } = error {
        lines.push(format!("trunkline: the server said: {greeting}"));
    }
    match (root, error.execution()) {
        (Error::Authentication { advice, .. }, _) if !advice.is_empty() => {
            lines.push(format!("trunkline: {advice}"));
        }
        (_, Execution::DidNotStart) => {}
        (_, execution) => lines.push(format!("trunkline: the command {execution}")),
    }
    let ssh = if error.execution() == Execution::DidNotStart {
        before_the_start(root, config, program)
    } else {
        of_a_lost_connection(root, &config.hostname)
    };
    lines.push(ssh?);
    Some(lines.join("\n"))
}

/// clientloop.c, `client_loop`; packet.c, `sshpkt_vfatal`.
fn of_a_lost_connection(error: &Error, host: &str) -> Option<String> {
    Some(match error {
        Error::ClosedByPeer { .. } => format!("Connection to {host} closed by remote host."),
        Error::Network { .. } => {
            let why = system_words(&Failure::from(error).message)?.to_owned();
            format!("Read from remote host {host}: {why}")
        }
        Error::Timeout { .. } => format!("Timeout, server {host} not responding."),
        _ => return None,
    })
}

fn before_the_start(error: &Error, config: &HostConfig, program: &Program) -> Option<String> {
    let hostname = &config.hostname;
    let peer = peer(config);
    Some(match error {
        Error::Lookup { name, .. } => {
            let message = error.to_string();
            format!(
                "ssh: Could not resolve hostname {name}: {}",
                system_words(&message)?
            )
        }
        Error::Network { doing, .. } => {
            let to = doing.strip_prefix("connecting to ")?;
            format!("ssh: connect to host {to}: {}", system_words(&error.to_string())?)
        }
        // sshconnect.c, `ssh_create_socket`, and its caller, which knows no more.
        Error::Local { doing, source } => {
            let why = system_words(&error.to_string())?.to_owned();
            let (address, interface) = (&config.bind_address, &config.bind_interface);
            let said = match (address, interface) {
                (Some(name), _) if doing.starts_with("looking up BindAddress") => {
                    format!("getaddrinfo: {name}: {why}")
                }
                (Some(_), _) if doing.starts_with("bind ") => format!("{doing}: {why}"),
                (_, Some(name)) if source.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                    format!("getifaddrs: {name}: no suitable addresses")
                }
                _ => return None,
            };
            format!(
                "{said}\nssh: connect to host {hostname} port {}: failure",
                config.port
            )
        }
        Error::Timeout { doing, .. } => match doing.strip_prefix("connecting to ") {
            Some(to) => format!("ssh: connect to host {to}: Connection timed out"),
            None if doing.starts_with("the exchange of identifications") => {
                format!("Connection timed out during banner exchange\nConnection to {peer} timed out")
            }
            None => format!("trunkline: {error}\nConnection to {peer} timed out"),
        },
        Error::ClosedByPeer { host, during } if *host == config.original_host => {
            match during.contains("identification") {
                true => closed_at_once(&peer),
                false => format!("Connection closed by {peer}"),
            }
        }
        Error::Authentication {
            user, host, allowed, ..
        } => {
            let host = if *host == config.original_host {
                hostname
            } else {
                host
            };
            format!("{user}@{host}: Permission denied ({}).", allowed.join(","))
        }
        Error::HostKey(error) => format!("{}Host key verification failed.", of_a_host_key(error)?),
        Error::Refused { reason: 0, what, .. } => match program {
            Program::Subsystem(_) => "subsystem request failed on channel 0".to_owned(),
            Program::Exec(_) if what == "to run the command" => "exec request failed on channel 0".to_owned(),
            Program::Configured if what == "to start a shell" => {
                "shell request failed on channel 0".to_owned()
            }
            _ => return None,
        },
        Error::Refused {
            reason, description, ..
        } => {
            let reason = open_failure(*reason);
            let failed = format!("channel 0: open failed: {reason}: {description}");
            match program {
                Program::Stdio(..) => failed + "\nstdio forwarding failed",
                _ => failed,
            }
        }
        Error::Protocol {
            source: trunkline_proto::Error::NothingInCommon { what, theirs, .. },
            ..
        } => {
            // ssherr.c; only these two have more than their name.
            let kind = match *what {
                "key exchange" | "compression" => format!("{what} method"),
                "host key" => format!("{what} type"),
                what => what.to_owned(),
            };
            format!("Unable to negotiate with {peer}: no matching {kind} found. Their offer: {theirs}")
        }
        _ => {
            let (reason, words) = error.disconnect()?;
            format!("Received disconnect from {peer}:{reason}: {words}\nDisconnected from {peer}")
        }
    })
}

/// What ssh knows of the other end of a socket; a proxy has none (`sshpkt_fmt_connection_id`).
fn peer(config: &HostConfig) -> String {
    match config.proxy {
        Proxy::Direct => format!("{} port {}", config.hostname, config.port),
        _ => "UNKNOWN port 65535".to_owned(),
    }
}

fn closed_at_once(peer: &str) -> String {
    format!("kex_exchange_identification: Connection closed by remote host\nConnection closed by {peer}")
}

/// The reasons of RFC 4254 section 5.1, as channels.c names them.
fn open_failure(reason: u32) -> &'static str {
    match reason {
        1 => "administratively prohibited",
        2 => "connect failed",
        3 => "unknown channel type",
        4 => "resource shortage",
        _ => "unknown reason",
    }
}

/// What sshconnect.c says before its last line.
fn of_a_host_key(error: &HostKeyError) -> Option<String> {
    Some(match error {
        HostKeyError::Changed {
            host,
            key_type,
            fingerprint,
            known_type,
            at,
        } => {
            let file = at.file.display();
            format!(
                "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
                 @    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n\
                 @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
                 IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n\
                 Someone could be eavesdropping on you right now (man-in-the-middle attack)!\n\
                 It is also possible that a host key has just been changed.\n\
                 The fingerprint for the {key_type} key sent by the remote host is\n{fingerprint}.\n\
                 Please contact your system administrator.\n\
                 Add correct host key in {file} to get rid of this message.\n\
                 Offending {known_type} key in {at}\n  remove with:\n  ssh-keygen -f '{file}' -R '{host}'\n\
                 Host key for {host} has changed and you have requested strict checking.\n"
            )
        }
        HostKeyError::Unknown {
            host,
            key_type,
            refusal: None,
            ..
        } => {
            format!("No {key_type} host key is known for {host} and you have requested strict checking.\n")
        }
        HostKeyError::NotConfirmed { .. } => String::new(),
        HostKeyError::Disabled { .. }
        | HostKeyError::ForwardingDisabled { .. }
        | HostKeyError::NotProven { .. } => {
            return None;
        }
        error => format!("trunkline: {error}\n"),
    })
}

/// What the system said, at the end of a message of ours.
fn system_words(message: &str) -> Option<&str> {
    message.rsplit_once(": ").map(|(_, words)| words)
}
