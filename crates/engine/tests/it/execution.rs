//! The content of a failure: who is to blame, may the command have run, may it pass. Each test is a part of one table,
//! failure by stage.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use trunkline::config::Request;
use trunkline::prompt::{Answer, Prompt, PromptKind, Prompter};
use trunkline::{
    Command, Error, ErrorKind, Execution, ExitStatus, Interaction, Output, Pty, Session, Settings,
    TerminalSize,
};
use trunkline_testkit::hostile::{Fields, Payload, RawServer, Wire, number};
use trunkline_testkit::{Agent, Direction, Dropbear, HostEntry, Sshd, write_ssh_config};

use crate::site::{Relayed, Site, engine, engine_with, request, server_and_host, server_and_host_with};

use ErrorKind::{Authentication, HostKey, Limit, Network, Peer, Timeout};
use Execution::{DidNotStart, MayHaveStarted};

async fn run_with(settings: Settings, request: &Request) -> Result<Output, Error> {
    let engine = engine_with(settings);
    let host = engine.host_for(request, &Interaction::none()).await?;
    host.run(&Command::exec("true")).await
}

/// How a command ends on a host of its own engine.
async fn failure(config: &Path, alias: &str, options: &[&str]) -> Error {
    run_with(Settings::default(), &request(config, alias, options))
        .await
        .expect_err("there is no such host, or it fails")
}

#[track_caller]
fn is(what: &str, error: &Error, kind: ErrorKind, execution: Execution) {
    assert_eq!(
        (error.kind(), error.execution()),
        (kind, execution),
        "{what}: {error}"
    );
}

/// A config with hosts of its own.
fn config_of(entries: impl IntoIterator<Item = HostEntry>) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    write_ssh_config(&config, entries).unwrap();
    (directory, config)
}

// Before there is a server.

#[tokio::test]
async fn what_was_never_reached_did_not_start() {
    let sshd = Sshd::start_default().unwrap();
    let (config, alias) = (sshd.ssh_config(), sshd.alias());
    let table = [
        ("a name that is not known", "HostName=nobody.invalid", Network),
        ("a port that refuses", "Port=1", Network),
        ("a proxy that ends at once", "ProxyCommand=true", Network),
        (
            "a proxy that is not there",
            "ProxyCommand=/nonexistent/proxy",
            Network,
        ),
        ("a jump host that refuses", "ProxyJump=127.0.0.1:1", Network),
    ];
    for (what, option, kind) in table {
        let error = failure(&config, alias, &[option]).await;
        is(what, &error, kind, DidNotStart);
        assert!(error.may_pass(), "{what}: {error}");
    }
    assert_eq!(sshd.authentications(), 0);
}

#[tokio::test]
async fn a_jump_hosts_failures_are_its_own_and_nothing_started() {
    let (jump, target) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let stranger = Sshd::start_default().unwrap();
    let (_directory, config) = config_of([
        jump.host_entry("jump"),
        // Its key is not the jump host's.
        HostEntry {
            identities: stranger.host_entry("x").identities,
            ..jump.host_entry("closed").with_line("IdentitiesOnly yes")
        },
        target
            .host_entry("through")
            .with_address(nowhere)
            .with_line("ProxyJump jump"),
        target.host_entry("denied").with_line("ProxyJump closed"),
    ]);
    is(
        "the jump host cannot reach it",
        &failure(&config, "through", &[]).await,
        Limit,
        DidNotStart,
    );
    is(
        "the jump host lets nobody in",
        &failure(&config, "denied", &[]).await,
        Authentication,
        DidNotStart,
    );
    assert_eq!(target.connections(), 0);
}

// What stands in front of the identification (RFC 4253 section 4.2).

/// A server that says a line, and hangs up.
fn busy(line: &'static [u8]) -> RawServer {
    RawServer::from_connect(move |mut wire: Wire| async move {
        wire.send_raw(line).await?;
        wire.finish().await?;
        wire.until_closed().await;
        Ok(())
    })
    .unwrap()
}

#[tokio::test]
async fn a_server_that_has_no_time_is_a_network_failure_that_may_pass() {
    // sshd.c's words for PerSourcePenalties: whoever is punished is not to try again at once.
    let table = [
        (&b"Too many users\r\n"[..], "Too many users", 4),
        (b"Not allowed at this time\r\n", "Not allowed at this time", 1),
    ];
    for (line, words, attempts) in table {
        let server = busy(line);
        let error = failure(&server.ssh_config(), "raw", &[]).await;
        is(words, &error, Network, DidNotStart);
        assert!(error.may_pass());
        assert!(
            error.to_string().ends_with(&format!("the server said: {words}")),
            "{error}"
        );
        assert_eq!(server.connections(), attempts, "{words}");
    }
}

#[tokio::test]
async fn a_line_in_front_of_the_identification_changes_no_failures_kind() {
    let sshd = Sshd::start_default().unwrap();
    // A door that says a line, and then is the server.
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (door.local_addr().unwrap(), sshd.addr());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = door.accept().await {
            tokio::spawn(async move {
                client.write_all(b"Welcome to \x1b[31mthe\x07 site\r\n").await?;
                let mut server = tokio::net::TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    let (_directory, config) = config_of([sshd.host_entry("door").with_address(address)]);
    // Nobody knows it there.
    let unknown = failure(&config, "door", &["StrictHostKeyChecking=yes"]).await;
    is("an unknown key", &unknown, HostKey, DidNotStart);
    assert!(matches!(unknown.root(), Error::HostKey(_)), "{unknown:?}");
    let text = unknown.to_string();
    assert!(text.contains("the server said: Welcome to"), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text:?}");
    // Behind the host key the line has nothing to do with it.
    sshd.trust_at(address).unwrap();
    let denied = failure(&config, "door", &["PubkeyAuthentication=no"]).await;
    is("a refused log-in", &denied, Authentication, DidNotStart);
    assert!(!denied.may_pass());
    let output = run_with(Settings::default(), &request(&config, "door", &[])).await;
    assert!(output.unwrap().status.success());
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_before_anything_started() {
    let server = RawServer::from_connect(|mut wire: Wire| async move {
        wire.until_closed().await;
        Ok(())
    })
    .unwrap();
    let error = failure(&server.ssh_config(), "raw", &["ConnectTimeout=1"]).await;
    is("no identification", &error, Timeout, DidNotStart);
    assert!(error.may_pass());
}

// The key exchange: without keys no command has left.

#[tokio::test]
async fn a_key_exchange_that_fails_is_told_apart_by_who_is_to_blame() {
    use trunkline_testkit::hostile::Misbehaviour as M;
    let table = [
        (M::CloseAfterConnect, Network),
        (M::EndlessLines, Peer),
        (M::BannerWithoutEnd, Peer),
        (M::OldVersion, Peer),
        (M::CloseAfterBanner, Network),
        (M::NoCommonKex, Peer),
        (M::NoCommonCipher, Peer),
        (M::CloseAfterKexInit, Network),
        (M::DisconnectWithEscapes, Network),
        (M::WrongSignature, Peer),
        (M::SignatureByAnotherKey, Peer),
        (M::AnotherHostKey, HostKey),
        (M::TruncatedReply, Peer),
        (M::IgnoreBeforeNewKeys, Peer),
    ];
    let mut wrong = String::new();
    for (misbehaviour, kind) in table {
        let server = RawServer::misbehaving(misbehaviour).unwrap();
        let error = failure(&server.ssh_config(), "raw", &["ConnectTimeout=30"]).await;
        let told = (error.kind(), error.execution());
        if told != (kind, DidNotStart) {
            wrong += &format!("{misbehaviour:?}: {told:?}: {error}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[tokio::test]
async fn a_changed_host_key_is_no_server_to_send_a_command_to() {
    let (sshd, stranger) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    stranger.trust_at(sshd.addr()).unwrap();
    let (_directory, config) = config_of([HostEntry {
        known_hosts: stranger.known_hosts(),
        ..sshd.host_entry("changed")
    }]);
    let error = failure(&config, "changed", &[]).await;
    is("a changed key", &error, HostKey, DidNotStart);
    assert!(!error.may_pass());
    assert_eq!(sshd.authentications(), 0);
}

// The log-in, which a command may leave with.

async fn first_request(wire: &mut Wire) -> std::io::Result<()> {
    let request = wire.expect(number::SERVICE_REQUEST).await?;
    let service = Fields::parse(&request).text()?;
    wire.send(&Payload::message(number::SERVICE_ACCEPT).string(service))
        .await?;
    wire.expect(number::USERAUTH_REQUEST).await.map(drop)
}

/// A server that answers the first authentication request with `answer`, if with anything, and ends the connection.
fn answering(answer: Option<Payload>) -> RawServer {
    RawServer::script(move |mut wire: Wire| {
        let answer = answer.clone();
        async move {
            first_request(&mut wire).await?;
            match answer {
                Some(answer) => {
                    wire.send(&answer).await?;
                    wire.until_closed().await;
                }
                None => {
                    // The command has arrived by now, if it left with the request.
                    wire.finish().await?;
                    wire.until_closed().await;
                }
            }
            Ok(())
        }
    })
    .unwrap()
}

#[tokio::test]
async fn a_refused_log_in_is_proof_that_nothing_started_with_it() {
    let failure_message = Payload::message(number::USERAUTH_FAILURE)
        .string("password")
        .boolean(false);
    let disconnect = |words: &str| {
        Payload::message(number::DISCONNECT)
            .uint32(2)
            .string(words)
            .string("")
    };
    let table = [
        (
            "USERAUTH_FAILURE",
            Some(failure_message),
            Authentication,
            DidNotStart,
        ),
        (
            "DISCONNECT for too many attempts",
            Some(disconnect("Too many authentication failures")),
            Authentication,
            DidNotStart,
        ),
        (
            "another DISCONNECT",
            Some(disconnect("going down")),
            Network,
            DidNotStart,
        ),
        // It may have been accepted, and the answer lost.
        ("the end of the connection", None, Network, MayHaveStarted),
    ];
    for (what, answer, kind, execution) in table {
        for early_flights in [true, false] {
            let server = answering(answer.clone());
            let settings = Settings {
                early_flights,
                ..Settings::default()
            };
            let asked = request(&server.ssh_config(), "raw", &[]);
            let error = run_with(settings, &asked).await.unwrap_err();
            let execution = if early_flights { execution } else { DidNotStart };
            is(
                &format!("{what}, early flights: {early_flights}"),
                &error,
                kind,
                execution,
            );
            assert_eq!(error.may_pass(), kind == Network, "{what}");
        }
    }
}

#[tokio::test]
async fn sshds_own_refusal_says_the_same_each_time() {
    let (sshd, stranger) = (Sshd::start_default().unwrap(), Sshd::start_default().unwrap());
    let (_directory, config) = config_of([HostEntry {
        identities: stranger.host_entry("x").identities,
        ..sshd.host_entry("closed").with_line("IdentitiesOnly yes")
    }]);
    let host = Site::open(&config, "closed").await;
    // Host memory changes what leaves early, from one attempt to the next.
    for _ in 0..10 {
        let error = host.run(&Command::exec("true")).await.unwrap_err();
        is(
            "a key that is not authorized",
            &error,
            Authentication,
            DidNotStart,
        );
    }
}

// The session.

fn in_channel(message: u8, channel: u32) -> Payload {
    Payload::message(message).uint32(channel)
}

/// A server's behaviour towards a session's command.
#[derive(Debug, Clone, Copy)]
enum Then {
    RefuseOpen,
    RefuseCommand,
    HangUp,
    Disconnect,
    CloseChannel,
    StartAndHangUp,
    StartAndCloseChannel,
    ExitAndHangUp,
    ExitWithoutStart,
    EndBySignal,
    /// No word any more, and nothing is read.
    Silence,
}

impl Then {
    async fn play(self, mut wire: Wire) -> std::io::Result<()> {
        wire.authenticate().await?;
        let open = wire.expect(number::CHANNEL_OPEN).await?;
        let mut fields = Fields::parse(&open);
        fields.text()?;
        let channel = fields.uint32()?;
        if let Self::RefuseOpen = self {
            let refusal = in_channel(number::CHANNEL_OPEN_FAILURE, channel);
            wire.send(&refusal.uint32(1).string("not here").string(""))
                .await?;
            wire.until_closed().await;
            return Ok(());
        }
        let opened = in_channel(number::CHANNEL_OPEN_CONFIRMATION, channel);
        wire.send(&opened.uint32(0).uint32(1 << 20).uint32(1 << 15))
            .await?;
        // A session for the next command may be asked for in between.
        while wire.receive().await?.first() != Some(&number::CHANNEL_REQUEST) {}
        let started = in_channel(number::CHANNEL_SUCCESS, channel);
        let status = in_channel(number::CHANNEL_REQUEST, channel)
            .string("exit-status")
            .boolean(false)
            .uint32(7);
        let close = in_channel(number::CHANNEL_CLOSE, channel);
        let said = match self {
            Self::RefuseOpen | Self::HangUp | Self::Silence => vec![],
            Self::EndBySignal => {
                let signal = in_channel(number::CHANNEL_REQUEST, channel).string("exit-signal");
                let signal = signal.boolean(false).string("KILL").boolean(false);
                vec![started, signal.string("out of memory").string(""), close]
            }
            Self::RefuseCommand => vec![in_channel(number::CHANNEL_FAILURE, channel)],
            Self::Disconnect => vec![
                Payload::message(number::DISCONNECT)
                    .uint32(11)
                    .string("bye")
                    .string(""),
            ],
            Self::CloseChannel => vec![close],
            Self::StartAndHangUp => vec![started],
            Self::StartAndCloseChannel => vec![started, close],
            Self::ExitAndHangUp => vec![started, status],
            Self::ExitWithoutStart => vec![status, close],
        };
        if !said.is_empty() {
            wire.send_together(&said).await?;
        }
        if matches!(self, Self::HangUp | Self::StartAndHangUp | Self::ExitAndHangUp) {
            wire.finish().await?;
        }
        wire.until_closed().await;
        Ok(())
    }
}

#[tokio::test]
async fn what_became_of_a_session_says_whether_its_command_may_have_started() {
    let table = [
        (Then::RefuseOpen, Err((Limit, DidNotStart))),
        (Then::RefuseCommand, Err((Limit, DidNotStart))),
        (Then::HangUp, Err((Network, MayHaveStarted))),
        (Then::Disconnect, Err((Network, MayHaveStarted))),
        (Then::CloseChannel, Err((Limit, MayHaveStarted))),
        (Then::StartAndHangUp, Err((Network, MayHaveStarted))),
        (Then::StartAndCloseChannel, Ok(ExitStatus::Unknown)),
        // A status that has come is the truth.
        (Then::ExitAndHangUp, Ok(ExitStatus::Exited(7))),
        (Then::ExitWithoutStart, Ok(ExitStatus::Exited(7))),
        (
            Then::EndBySignal,
            Ok(ExitStatus::Signaled {
                signal: "KILL".into(),
                core_dumped: false,
            }),
        ),
        // Nobody answers the keepalives.
        (Then::Silence, Err((Timeout, MayHaveStarted))),
    ];
    for (then, expected) in table {
        for early_flights in [true, false] {
            let server = RawServer::script(move |wire| then.play(wire)).unwrap();
            let settings = Settings {
                early_flights,
                ..Settings::default()
            };
            let alive = ["ServerAliveInterval=1", "ServerAliveCountMax=1"];
            let alive = if matches!(then, Then::Silence) {
                &alive[..]
            } else {
                &[]
            };
            let outcome = run_with(settings, &request(&server.ssh_config(), "raw", alive)).await;
            let what = format!("{then:?}, early flights: {early_flights}");
            match (outcome, expected.clone()) {
                (Ok(output), Ok(status)) => assert_eq!(output.status, status, "{what}"),
                (Err(error), Err((kind, execution))) => is(&what, &error, kind, execution),
                (outcome, expected) => panic!("{what}: {outcome:?} instead of {expected:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_sessions_started_nothing() {
    let sshd = Sshd::builder().config("MaxSessions 0").start().unwrap();
    let wanted = request(&sshd.ssh_config(), sshd.alias(), &[]);
    for early_flights in [true, false] {
        let settings = Settings {
            early_flights,
            ..Settings::default()
        };
        let error = run_with(settings, &wanted)
            .await
            .expect_err("no session is allowed");
        // A command that left early meets a channel that is not there, for which sshd drops the connection. Its refusal is
        // lost where it waited behind what was not acknowledged yet (Nagle's algorithm), and then nobody can know.
        let lost = (error.kind(), error.execution()) == (Network, MayHaveStarted);
        if !(early_flights && lost) {
            let what = format!("MaxSessions 0, early flights: {early_flights}");
            is(&what, &error, Limit, DidNotStart);
        }
    }
}

#[tokio::test]
async fn a_connection_that_this_side_closes_says_that_its_command_may_have_started() {
    let (_sshd, engine, host) = server_and_host().await;
    let mut session = host.start(&Command::exec("cat")).await.unwrap();
    session.wait_for_start().await.unwrap();
    assert_eq!(engine.close(true, |_| true).count(), 1);
    let error = session.wait().await.unwrap_err();
    assert_eq!(error.execution(), MayHaveStarted, "{error}");
}

#[tokio::test]
async fn a_command_that_is_withdrawn_before_it_left_never_runs() {
    let (sshd, _engine, host) = server_and_host().await;
    let marker = sshd.dir().join("it-ran");
    let command = Command::exec(format!("touch {}", marker.display()));
    let mut session = host.start(&command).await.unwrap();
    // The connection is not there yet: not even its task has run.
    assert!(session.control.withdraw());
    let error = session.wait().await.unwrap_err();
    assert_eq!(error.execution(), DidNotStart, "{error}");
    // Whatever had been asked for before is over once this has run on the same connection.
    assert!(host.run(&Command::exec("true")).await.unwrap().status.success());
    assert!(!marker.exists());
    // One that has left cannot be taken back.
    let mut session = host.start(&Command::exec("cat")).await.unwrap();
    session.wait_for_start().await.unwrap();
    assert!(!session.control.withdraw());
}

/// Sends texts with NULs, and modes that stop in the middle; returns their errors.
async fn send_malformed(host: &trunkline::Host) -> Vec<Error> {
    let terminal = |term: &str, modes: &[u8]| Pty {
        term: term.into(),
        size: TerminalSize::default(),
        modes: modes.into(),
    };
    let commands = [
        Command::exec("true\0"),
        Command::subsystem("sf\0tp"),
        Command::exec("true").env("LC_\0", "x"),
        Command::exec("true").env("LC_X", "\0"),
        Command::exec("true").pty(terminal("vt\0", &[])),
        Command::exec("true").pty(terminal("vt100", &[53, 0, 0, 0])),
        Command::exec("true").pty(terminal("vt100", &[53, 0, 0, 0, 1])),
    ];
    let mut refused = Vec::new();
    for command in commands {
        refused.push(host.run(&command).await.unwrap_err());
    }
    let nowhere = host.direct_tcpip("a\0b", 1, ("127.0.0.1", 0)).await;
    refused.push(nowhere.expect_err("no server takes a NUL"));
    let nowhere = host.direct_streamlocal("/tmp/\0").await;
    refused.push(nowhere.expect_err("no server takes a NUL"));
    refused
}

fn padded_command(len: usize) -> Command {
    Command::exec(format!("true {}", " ".repeat(len - 5)))
}

/// The connection that somebody else's command runs on is still there.
async fn echoes(mut bystander: Session) {
    bystander.stdin.write_all(b"still there").await.unwrap();
    bystander.stdin.shutdown().await.unwrap();
    let output = bystander.output(None).await.unwrap();
    assert_eq!(output.stdout, b"still there"[..]);
}

#[tokio::test]
async fn what_a_server_would_end_the_connection_for_is_not_sent() {
    const LONGEST: usize = 261_120;
    let sshd = Sshd::start_default().unwrap();
    let host = Site::for_server(&sshd).await;
    let mut bystander = host.start(&Command::exec("cat")).await.unwrap();
    bystander.wait_for_start().await.unwrap();
    let mut refused = Vec::new();
    // On a session that was opened ahead, and on one that was not.
    for _ in 0..3 {
        refused.push((LONGEST, host.run(&padded_command(LONGEST + 1)).await.unwrap_err()));
    }
    let variable = Command::exec("true").env("LC_X", " ".repeat(LONGEST));
    refused.push((LONGEST, host.run(&variable).await.unwrap_err()));
    let tunnel = host.direct_tcpip(&"x".repeat(8193), 1, ("127.0.0.1", 0)).await;
    refused.push((8192, tunnel.expect_err("no name is so long")));
    for (longest, error) in refused {
        is("too long", &error, ErrorKind::Configuration, DidNotStart);
        let limit = format!("this server takes at most {longest}");
        assert!(error.to_string().contains(&limit), "{error}");
    }
    for error in send_malformed(&host).await {
        is("malformed", &error, ErrorKind::Configuration, DidNotStart);
        let says = "for which servers end the connection";
        assert!(error.to_string().contains(says), "{error}");
    }
    // A shell may find it too long; the connection carries it.
    host.run(&padded_command(LONGEST)).await.unwrap();
    echoes(bystander).await;
}

#[tokio::test]
async fn how_long_a_command_may_be_is_found_out_on_a_connection_of_its_own() {
    let dropbear = Dropbear::start_default().unwrap();
    let host = Site::open(&dropbear.ssh_config(), dropbear.alias()).await;
    let mut bystander = host.start(&Command::exec("cat")).await.unwrap();
    bystander.wait_for_start().await.unwrap();
    let error = host.run(&padded_command(20_000)).await.unwrap_err();
    is("found out", &error, ErrorKind::Network, MayHaveStarted);
    let says = "when it was sent 20000 bytes, and may take no command so long";
    assert!(error.to_string().contains(says), "{error}");
    for length in [20_000, 100_000] {
        let error = host.run(&padded_command(length)).await.unwrap_err();
        is("known", &error, ErrorKind::Configuration, DidNotStart);
        let says = format!("the command has {length} bytes, and this server takes at most 19999");
        assert!(error.to_string().contains(&says), "{error}");
    }
    // Its MAX_CMD_LEN.
    host.run(&padded_command(9000)).await.unwrap();
    host.run(&padded_command(8500)).await.unwrap();
    echoes(bystander).await;
}

// AddKeysToAgent.

/// Says the same to every question to be allowed something, and nothing to others.
struct Says(Option<&'static str>);

impl Prompter for Says {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        let asked = prompt.kind == PromptKind::Confirm && prompt.text.starts_with("Add key ");
        let said = self.0.filter(|_| asked).map(|said| said.to_owned().into());
        Box::pin(std::future::ready(said))
    }
}

#[tokio::test]
async fn a_key_goes_to_the_agent_only_when_its_user_allows_it() {
    let sshd = Sshd::start_default().unwrap();
    // readpass.c, ask_permission: an empty answer is a yes.
    let table = [
        ("ask", Some("yes"), 1),
        ("ask", Some("YES"), 1),
        ("ask", Some(""), 1),
        ("ask", Some("no"), 0),
        ("ask", Some("y"), 0),
        ("ask", Some("never"), 0),
        ("ask", None, 0),
        ("yes", None, 1),
        ("confirm", None, 1),
        ("1h", None, 1),
        ("no", Some("yes"), 0),
    ];
    for (value, says, expected) in table {
        let agent = Agent::start().unwrap();
        let options = [
            format!("AddKeysToAgent={value}"),
            format!("IdentityAgent={}", agent.socket().display()),
        ];
        let asked = request(
            &sshd.ssh_config(),
            sshd.alias(),
            &[&options[0], &options[1], "BatchMode=no"],
        );
        let engine = engine();
        let interaction = Interaction::new(Arc::new(Says(says)), |_| {});
        let host = engine.host_for(&asked, &interaction).await.unwrap();
        let output = host.run(&Command::exec("true")).await.unwrap();
        assert!(output.status.success());
        assert_eq!(
            agent.keys().unwrap().len(),
            expected,
            "AddKeysToAgent {value}, answered {says:?}"
        );
    }
}

#[tokio::test]
async fn a_key_that_was_allowed_into_the_agent_keeps_its_constraints() {
    let sshd = Sshd::start_default().unwrap();
    let agent = Agent::start().unwrap();
    let option = format!("IdentityAgent={}", agent.socket().display());
    let asked = request(
        &sshd.ssh_config(),
        sshd.alias(),
        &["AddKeysToAgent=confirm", &option],
    );
    agent.consent(false).unwrap();
    // The first connection uses the file, the second the agent, which asks.
    let first = run_with(Settings::default(), &asked).await.unwrap();
    assert!(first.status.success());
    assert_eq!(agent.confirmations(), 0);
    let _ = run_with(Settings::default(), &asked).await;
    assert!(agent.confirmations() > 0);
}

#[tokio::test]
async fn what_finds_its_server_stopped_gets_another_connection_and_what_runs_there_goes_on() {
    // Both at once: each waits for its limit.
    let cases = [0, 4].map(|spare_sessions| async move {
        let settings = Settings {
            probe_limit: Duration::from_secs(6),
            spare_sessions,
            ..Settings::default()
        };
        let (sshd, _engine, host) = server_and_host_with(settings).await;
        let running = Command::exec("echo $PPID; read line; echo $line");
        let mut session = host.start(&running).await.unwrap().into_parts();
        let mut lines = tokio::io::BufReader::new(&mut session.stdout).lines();
        let server = lines.next_line().await.unwrap().unwrap();
        let server = Pid::from_raw(server.parse().unwrap()).unwrap();
        kill_process(server, Signal::STOP).unwrap();
        let command = || {
            let host = host.clone();
            tokio::spawn(async move { host.run(&Command::exec("echo here")).await })
        };
        // What has a session that was opened ahead may have started, and waits for the server.
        let mut commands: Vec<_> = (0..=spare_sessions).map(|_| command()).collect();
        let tunnel = host.direct_tcpip("127.0.0.1", sshd.port(), ("127.0.0.1", 0));
        tunnel.await.unwrap();
        commands.push(command());
        let (first, _, others) = futures_util::future::select_all(commands).await;
        assert_eq!(first.unwrap().unwrap().stdout, b"here\n");
        assert_eq!(sshd.authentications(), 2, "{spare_sessions} spare sessions");
        let silent: Vec<bool> = host.lanes().iter().map(|lane| lane.report.silent).collect();
        assert_eq!(silent, [true, false]);
        kill_process(server, Signal::CONT).unwrap();
        session.stdin.write_all(b"it goes on\n").await.unwrap();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "it goes on");
        assert!(session.end.wait().await.unwrap().success());
        for command in others {
            assert_eq!(command.await.unwrap().unwrap().stdout, b"here\n");
        }
    });
    futures_util::future::join_all(cases).await;
}

#[tokio::test]
async fn a_proxy_command_that_is_not_needed_any_more_can_clean_up() {
    let directory = tempfile::tempdir().unwrap();
    let (script, cleaned) = (directory.path().join("proxy"), directory.path().join("cleaned"));
    let text = format!(
        "trap 'echo cleaned > {}; exit' HUP\nwhile :; do sleep 0.01; done\n",
        cleaned.display()
    );
    std::fs::write(&script, text).unwrap();
    let proxy = format!("ProxyCommand=/bin/sh {}", script.display());
    let error = failure("/dev/null".as_ref(), "nowhere", &[&proxy, "ConnectTimeout=1"]).await;
    is("no identification", &error, Timeout, DidNotStart);
    while !std::fs::read_to_string(&cleaned).is_ok_and(|text| text == "cleaned\n") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_log_in_that_takes_long_is_not_the_connect_timeouts() {
    let relayed = Relayed::start();
    let (request, relay) = (relayed.request(&["ConnectTimeout=5"]), &relayed.relay);
    // The server answers the client's identification: its own has come long before.
    relay.set_delay(Direction::ToServer, Duration::from_secs(1));
    let slowly = async {
        relay.wait_for_bytes(Direction::ToClient, 600).await.unwrap();
        relay.stall();
        relay.set_delay(Direction::ToServer, Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(6)).await;
        relay.resume();
    };
    let (output, ()) = tokio::join!(run_with(Settings::default(), &request), slowly);
    assert!(output.unwrap().status.success());
}
