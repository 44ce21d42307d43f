//! Failures in ssh's own words, for a client that stands for ssh: people know them, and programs match them.

use rustix::io::Errno;
use trunkline::config::LogLevel;
use trunkline::config::{ConfigError, HostConfig, Proxy};
use trunkline::host_key::HostKeyError;
use trunkline::{Doing, Error, Execution, LogInStage, ServerRequest};
use trunkline_proto::AlgorithmKind;

use crate::protocol::{Program, WordsOfSsh};

/// Describes a failure in ssh's words, after lines of our own with facts that only this side knows. Returns `None` if
/// ssh has no words for it. `config` is the host's, if it can be used.
pub(crate) fn describe(
    error: &Error,
    config: Option<&HostConfig>,
    program: &Program,
) -> Option<Vec<WordsOfSsh>> {
    if let Error::Config(error) = error {
        match &**error {
            ConfigError::Refused(said) => return Some(vec![fatal(said.clone())]),
            ConfigError::TwoCommands => {
                return Some(vec![fatal("Cannot execute command-line and remote command.")]);
            }
            _ => {}
        }
    }
    let config = config?;
    if let Error::Jump { jump, cause } = error {
        // For the jump host, ssh runs another ssh and finds the end of its output.
        let forwards = Program::Stdio(config.hostname.clone(), config.port);
        let of_jump = describe(cause, Some(jump), &forwards)?;
        let shown = of_jump
            .into_iter()
            .filter(|said| said.level.is_none_or(|level| level <= jump.log_level))
            .map(|said| WordsOfSsh { level: None, ..said });
        return Some(shown.chain(closed_at_once(&peer(error, config))).collect());
    }
    let mut lines = Vec::new();
    let root = error.root();
    if let Error::Greeted { greeting, .. } = error {
        lines.push(at_error(format!("trunkline: the server said: {greeting}")));
    }
    match (root, error.execution()) {
        (Error::Authentication { untold, .. }, _) if !untold.is_empty() => {
            lines.push(at_error(format!("trunkline: {untold}")));
        }
        (_, Execution::DidNotStart) => {}
        (_, execution) => lines.push(at_error(format!("trunkline: the command {execution}"))),
    }
    if let Some(length) = error.long_text() {
        lines.push(at_error(format!(
            "trunkline: the server may take no command of {length} bytes"
        )));
    }
    let peer = peer(error, config);
    let ssh = if error.execution() == Execution::DidNotStart {
        before_the_start(root, config, &peer, program)
    } else {
        of_a_lost_connection(root, config, &peer).map(|said| vec![said])
    };
    lines.extend(ssh?);
    Some(lines)
}

/// clientloop.c, `quit_message` and `server_alive_check`; packet.c, `sshpkt_vfatal`.
fn of_a_lost_connection(error: &Error, config: &HostConfig, peer: &str) -> Option<WordsOfSsh> {
    let host = &config.hostname;
    Some(match error {
        // The connection was lost during the log-in, with the command already sent.
        Error::ClosedByPeer { during: Some(_), .. } => info(format!("Connection closed by {peer}")),
        Error::ClosedByPeer { .. } => without_log(format!("Connection to {host} closed by remote host.")),
        Error::Network { .. } => {
            let why = error.system_words()?;
            without_log(format!("Read from remote host {host}: {why}"))
        }
        Error::Protocol {
            source: trunkline_proto::Error::Corrupted,
            ..
        } => report_corruption(peer),
        Error::TerminalRefused { .. } => at_error("PTY allocation request failed on channel 0"),
        Error::Timeout { .. } => info(format!("Timeout, server {host} not responding.")),
        _ => return None,
    })
}

fn before_the_start(
    error: &Error,
    config: &HostConfig,
    peer: &str,
    program: &Program,
) -> Option<Vec<WordsOfSsh>> {
    Some(match error {
        Error::Lookup { name, .. } => {
            let why = error.system_words()?;
            vec![at_error(format!("ssh: Could not resolve hostname {name}: {why}"))]
        }
        Error::Network { doing, source, .. } => {
            let why = error.system_words()?;
            vec![match doing {
                Doing::Connect { host, port } => {
                    at_error(format!("ssh: connect to host {host} port {port}: {why}"))
                }
                _ if source.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => {
                    info(format!("Connection reset by {peer}"))
                }
                _ => info(format!("ssh_dispatch_run_fatal: Connection to {peer}: {why}")),
            }]
        }
        Error::Local { .. } => of_this_machine(error, config)?,
        Error::Timeout {
            doing: Doing::Connect { host, port },
            ..
        } => vec![at_error(format!(
            "ssh: connect to host {host} port {port}: Connection timed out"
        ))],
        Error::Timeout { doing, .. } => {
            let why = match doing {
                Doing::LogIn {
                    stage: LogInStage::Identification,
                    ..
                } => "Connection timed out during banner exchange".to_owned(),
                _ => format!("trunkline: {error}"),
            };
            vec![at_error(why), info(format!("Connection to {peer} timed out"))]
        }
        Error::ClosedByPeer { host, during, reset } if *host == config.original_host => {
            match (during, reset) {
                (Some(LogInStage::Identification), true) => vec![
                    at_error("kex_exchange_identification: read: Connection reset by peer"),
                    info(format!("Connection reset by {peer}")),
                ],
                (Some(LogInStage::Identification), false) => closed_at_once(peer).to_vec(),
                _ => vec![info(format!("Connection closed by {peer}"))],
            }
        }
        Error::Authentication {
            user, host, allowed, ..
        } => {
            let host = if *host == config.original_host {
                &config.hostname
            } else {
                host
            };
            vec![fatal(format!(
                "{user}@{host}: Permission denied ({}).",
                allowed.join(",")
            ))]
        }
        Error::HostKey(error) => {
            let why = of_a_host_key(error)?;
            let why = (!why.is_empty()).then(|| at_error(why));
            why.into_iter()
                .chain([fatal("Host key verification failed.")])
                .collect()
        }
        Error::Refused { .. } => of_a_refusal(error, program)?,
        Error::Protocol {
            source: trunkline_proto::Error::NothingInCommon { what, theirs, .. },
            ..
        } => {
            // As in ssherr.c: only these two have more than their name.
            let kind = match what {
                AlgorithmKind::Kex | AlgorithmKind::Compression => format!("{what} method"),
                AlgorithmKind::HostKey => format!("{what} type"),
                what => what.to_string(),
            };
            vec![info(format!(
                "Unable to negotiate with {peer}: no matching {kind} found. Their offer: {theirs}"
            ))]
        }
        Error::Protocol {
            source: trunkline_proto::Error::Corrupted,
            ..
        } => vec![report_corruption(peer)],
        _ => {
            let (reason, words) = error.disconnect()?;
            vec![
                at_error(format!("Received disconnect from {peer}:{reason}: {words}")),
                info(format!("Disconnected from {peer}")),
            ]
        }
    })
}

/// sshconnect.c, `ssh_create_socket`. Its caller adds no details.
fn of_this_machine(error: &Error, config: &HostConfig) -> Option<Vec<WordsOfSsh>> {
    let Error::Local { doing, source } = error else {
        return None;
    };
    let why = error.system_words()?;
    let said = match (doing, &config.bind_interface) {
        (Doing::LookUpBindAddress(name), _) => format!("getaddrinfo: {name}: {why}"),
        (Doing::Bind(address), _) => format!("bind {address}: {why}"),
        (_, Some(name)) if source.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
            format!("getifaddrs: {name}: no suitable addresses")
        }
        _ => return None,
    };
    let (hostname, port) = (&config.hostname, config.port);
    Some(vec![at_error(format!(
        "{said}\nssh: connect to host {hostname} port {port}: failure"
    ))])
}

/// clientloop.c, `client_status_confirm`; channels.c, `channel_input_open_failure`.
fn of_a_refusal(error: &Error, program: &Program) -> Option<Vec<WordsOfSsh>> {
    let Error::Refused {
        reason,
        what,
        description,
        ..
    } = error
    else {
        return None;
    };
    let request = match program {
        _ if *reason != 0 => {
            let reason = open_failure(*reason);
            let failed = info(format!("channel 0: open failed: {reason}: {description}"));
            let of_stdio = matches!(program, Program::Stdio(..)).then(|| fatal("stdio forwarding failed"));
            return Some([failed].into_iter().chain(of_stdio).collect());
        }
        Program::Subsystem(_) => "subsystem",
        Program::Exec(_) if *what == ServerRequest::Exec => "exec",
        Program::Configured if *what == ServerRequest::Shell => "shell",
        _ => return None,
    };
    Some(vec![fatal(format!("{request} request failed on channel 0"))])
}

/// Returns ssh's name for the other end of a connection. A proxy has none (`sshpkt_fmt_connection_id`).
fn peer(error: &Error, config: &HostConfig) -> String {
    match (&config.proxy, error.address()) {
        (Proxy::Direct, Some(address)) => format!("{} port {}", address.ip(), address.port()),
        (Proxy::Direct, None) => format!("{} port {}", config.hostname, config.port),
        _ => "UNKNOWN port 65535".to_owned(),
    }
}

/// ssherr.c, `SSH_ERR_MAC_INVALID`.
fn report_corruption(peer: &str) -> WordsOfSsh {
    info(format!(
        "ssh_dispatch_run_fatal: Connection to {peer}: message authentication code incorrect"
    ))
}

fn closed_at_once(peer: &str) -> [WordsOfSsh; 2] {
    [
        at_error("kex_exchange_identification: Connection closed by remote host"),
        info(format!("Connection closed by {peer}")),
    ]
}

// The levels of ssh's messages. `sshlogdie`, which ends ssh without an error, logs at info.

fn fatal(text: impl Into<String>) -> WordsOfSsh {
    at_level(LogLevel::Fatal, text)
}

fn at_error(text: impl Into<String>) -> WordsOfSsh {
    at_level(LogLevel::Error, text)
}

fn info(text: impl Into<String>) -> WordsOfSsh {
    at_level(LogLevel::Info, text)
}

fn without_log(text: String) -> WordsOfSsh {
    WordsOfSsh { level: None, text }
}

fn at_level(level: LogLevel, text: impl Into<String>) -> WordsOfSsh {
    WordsOfSsh {
        level: Some(level),
        text: text.into(),
    }
}

/// Names a reason of RFC 4254 section 5.1 like channels.c.
fn open_failure(reason: u32) -> &'static str {
    match reason {
        1 => "administratively prohibited",
        2 => "connect failed",
        3 => "unknown channel type",
        4 => "resource shortage",
        _ => "unknown reason",
    }
}

/// Returns the part of sshconnect.c's message that precedes its last line.
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
                 Host key for {host} has changed and you have requested strict checking."
            )
        }
        HostKeyError::Unknown {
            host,
            key_type,
            refusal: None,
            ..
        } => {
            format!("No {key_type} host key is known for {host} and you have requested strict checking.")
        }
        HostKeyError::NotConfirmed { .. } => String::new(),
        HostKeyError::Disabled { .. }
        | HostKeyError::ForwardingDisabled { .. }
        | HostKeyError::NotProven { .. } => {
            return None;
        }
        error => format!("trunkline: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_being_done_decides_and_not_what_it_is_called() {
        let config = HostConfig::explicit("db1", 2222, "me").unwrap();
        let connect = Doing::Connect {
            host: "db1".into(),
            port: 2222,
        };
        let log_in = |stage| Doing::LogIn {
            stage,
            host: "db1".into(),
        };
        let time_out = "Connection to db1 port 2222 timed out";
        let refused = "ssh: connect to host db1 port 2222: Connection refused";
        let dispatch = "ssh_dispatch_run_fatal: Connection to db1 port 2222: Connection refused";
        let network = |doing| Error::Network {
            doing,
            address: None,
            source: Arc::new(std::io::Error::from_raw_os_error(
                Errno::CONNREFUSED.raw_os_error(),
            )),
        };
        let timeout = |doing| Error::Timeout {
            doing,
            after: Duration::from_secs(1),
        };
        for (error, words) in [
            (network(connect.clone()), vec![refused]),
            (network(connect.to_string().into()), vec![dispatch]),
            (
                timeout(connect),
                vec!["ssh: connect to host db1 port 2222: Connection timed out"],
            ),
            (
                timeout(log_in(LogInStage::Identification)),
                vec!["Connection timed out during banner exchange", time_out],
            ),
            (
                timeout(log_in(LogInStage::Authentication)),
                vec![
                    "trunkline: authentication with db1: no answer within 1 s",
                    time_out,
                ],
            ),
        ] {
            let said = describe(&error, Some(&config), &Program::Configured).unwrap();
            let said: Vec<&str> = said.iter().map(|said| said.text.as_str()).collect();
            assert_eq!(said, words, "{error:?}");
        }
    }

    #[test]
    fn a_server_that_closes_before_the_login_is_done_has_closed_no_session() {
        let config = HostConfig::explicit("db1", 2222, "me").unwrap();
        let said = |during| {
            let error = Error::ClosedByPeer {
                host: "db1".to_owned(),
                during,
                reset: false,
            }
            .with_execution(Execution::MayHaveStarted);
            let said = describe(&error, Some(&config), &Program::Exec(b"true".to_vec())).unwrap();
            said.into_iter().map(|said| said.text).collect::<Vec<_>>()
        };
        assert_eq!(
            said(Some(LogInStage::Authentication)),
            [
                "trunkline: the command may have started",
                "Connection closed by db1 port 2222"
            ]
        );
        assert_eq!(
            said(None),
            [
                "trunkline: the command may have started",
                "Connection to db1 closed by remote host."
            ]
        );
    }

    #[test]
    fn a_corrupted_packet_is_told_as_ssh_tells_it() {
        let config = HostConfig::explicit("db1", 2222, "me").unwrap();
        let line =
            "ssh_dispatch_run_fatal: Connection to db1 port 2222: message authentication code incorrect";
        for (execution, words) in [
            (Execution::DidNotStart, vec![line]),
            (
                Execution::MayHaveStarted,
                vec!["trunkline: the command may have started", line],
            ),
        ] {
            let error = Error::Protocol {
                host: "db1".to_owned(),
                source: trunkline_proto::Error::Corrupted,
            }
            .with_execution(execution);
            let said = describe(&error, Some(&config), &Program::Exec(b"true".to_vec())).unwrap();
            let said: Vec<&str> = said.iter().map(|said| said.text.as_str()).collect();
            assert_eq!(said, words);
        }
    }
}
