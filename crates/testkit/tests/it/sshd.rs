//! The stock client against the kit's sshd, directly and through the relay.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use trunkline_testkit::{Direction, Error, KeyType, Relay, Sshd, ssh, write_ssh_config};

fn stdout(output: &Output) -> &str {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::str::from_utf8(&output.stdout).expect("the commands of these tests print text")
}

#[test]
fn a_command_runs_through_the_relay_no_faster_than_its_round_trips() {
    let server = Sshd::start_default().unwrap();
    let relay = Relay::start(server.addr()).unwrap();
    let rtt = Duration::from_millis(20);
    relay.set_rtt(rtt);
    let config = server.ssh_config_via("far-away", relay.addr()).unwrap();
    let started = Instant::now();
    let output = ssh(&config)
        .args(["far-away", "echo $SSH_CONNECTION"])
        .output()
        .unwrap();
    // RFC 4253, 4252 and 4254 in sequence: no OpenSSH client has done it in less than eight flights.
    assert!(started.elapsed() >= rtt * 8);
    assert!(stdout(&output).contains(&server.port().to_string()));
    assert_eq!(relay.connections(), 1);
    assert!(relay.bytes(Direction::ToServer) > 1000);
    assert_eq!(server.connections(), 1);
    assert_eq!(server.authentications(), 1);
}

#[test]
fn a_flipped_bit_in_the_encrypted_stream_ends_the_connection() {
    let server = Sshd::start_default().unwrap();
    let relay = Relay::start(server.addr()).unwrap();
    let config = server.ssh_config_via("noisy", relay.addr()).unwrap();
    relay.corrupt(Direction::ToClient, 5000);
    let output = ssh(&config)
        .args(["noisy", "head -c 100000 /dev/zero"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert_ne!(output.stdout.len(), 100_000);
}

#[tokio::test]
async fn a_cut_ends_the_client() {
    let server = Sshd::start_default().unwrap();
    let relay = Relay::start(server.addr()).unwrap();
    let config = server.ssh_config_via("short-lived", relay.addr()).unwrap();
    let mut client = ssh(&config)
        .args(["short-lived", "sleep 1000"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for_log("Starting session: command").await.unwrap();
    relay.reset();
    let status = client.wait().unwrap();
    assert_eq!(status.code(), Some(255));
}

#[tokio::test]
async fn nothing_outlives_the_server() {
    let server = Sshd::start_default().unwrap();
    let mut client = server
        .ssh()
        .args([
            server.alias(),
            "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &); sleep 1000",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for_log("Starting session: command").await.unwrap();
    let sleepers = loop {
        let pids = server.session_pids();
        let sleepers: Vec<u32> = pids
            .into_iter()
            .filter(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with("sleep"))
            })
            .collect();
        if sleepers.len() == 2 {
            break sleepers;
        }
        tokio::task::yield_now().await;
    };
    drop(server);
    assert_eq!(client.wait().unwrap().code(), Some(255));
    for pid in sleepers {
        // Empty for a process that has ended and waits for its parent's notice.
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!line.starts_with("sleep"), "{pid} still runs");
    }
}

#[test]
fn a_server_comes_back_on_its_port_with_its_keys() {
    let mut server = Sshd::start_default().unwrap();
    for _ in 0..2 {
        let output = server.ssh().args([server.alias(), "echo up"]).output().unwrap();
        assert_eq!(stdout(&output), "up\n");
        server.stop();
        let output = server.ssh().args([server.alias(), "echo up"]).output().unwrap();
        assert_eq!(output.status.code(), Some(255));
        server.start().unwrap();
    }
    assert_eq!(server.authentications(), 2);
}

#[test]
fn every_kind_of_host_key_and_client_key_works() {
    let server = Sshd::builder()
        .host_keys(KeyType::ALL)
        .client_keys(KeyType::ALL)
        .start()
        .unwrap();
    for (host_key, client_key) in server.host_keys().iter().zip(server.client_keys()) {
        let algorithm = match host_key.key_type() {
            KeyType::Rsa => "rsa-sha2-512",
            other => other.algorithm(),
        };
        let mut entry = server
            .host_entry("picky")
            .with_line(&format!("HostKeyAlgorithms {algorithm}"));
        entry.identities = vec![client_key.private_path().to_owned()];
        let config = server.dir().join("picky");
        write_ssh_config(&config, [entry]).unwrap();
        assert_eq!(
            stdout(&ssh(&config).args(["picky", "echo in"]).output().unwrap()),
            "in\n"
        );
    }
    // RSA first, as the client saw it.
    let output = server
        .ssh()
        .args(["-v", server.alias(), "true"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("Server host key: "));
}

#[test]
fn certificates_are_enough_on_both_sides() {
    let server = Sshd::builder()
        .host_certificates()
        .client_keys([])
        .user_certificates([KeyType::EcdsaP256])
        .start()
        .unwrap();
    let mut entry = server.host_entry("certified");
    entry.known_hosts = server.known_hosts_authority();
    let config = server.dir().join("certified");
    write_ssh_config(&config, [entry]).unwrap();
    assert_eq!(
        stdout(&ssh(&config).args(["certified", "echo in"]).output().unwrap()),
        "in\n"
    );
    assert_eq!(
        server.log().count("ECDSA-CERT"),
        server.log().count("ECDSA-CERT").max(1)
    );
}

/// Runs `echo in` with the password that the program `askpass` prints.
fn log_in_with(server: &Sshd, askpass: &Path, options: &[&str]) -> Output {
    server
        .ssh()
        .env("SSH_ASKPASS", askpass)
        .env("SSH_ASKPASS_REQUIRE", "force")
        .args(options)
        .args([server.alias(), "echo in"])
        .output()
        .unwrap()
}

#[test]
fn a_password_opens_by_both_methods_and_a_wrong_one_does_not() {
    let server = Sshd::builder()
        .client_keys([])
        .password("it's a secret")
        .start()
        .unwrap();
    for method in ["password", "keyboard-interactive"] {
        let option = format!("PreferredAuthentications={method}");
        let log_in = |askpass: &Path| log_in_with(&server, askpass, &["-o", &option]);
        assert_eq!(stdout(&log_in(&server.askpass().unwrap())), "in\n");
        assert_eq!(log_in(Path::new("/bin/true")).status.code(), Some(255));
    }
    assert_eq!(server.authentications(), 2);
}

#[test]
fn a_login_can_take_several_steps() {
    let server = Sshd::builder()
        .password("second")
        .authentication_methods("publickey,keyboard-interactive")
        .start()
        .unwrap();
    let output = log_in_with(&server, &server.askpass().unwrap(), &[]);
    assert_eq!(stdout(&output), "in\n");
    assert_eq!(server.log().count("Partial publickey"), 1);
}

#[test]
fn one_daemon_serves_several_addresses_and_ports() {
    let addresses = [2, 3].map(|last| IpAddr::from(Ipv4Addr::new(127, 4, 0, last)));
    let server = Sshd::builder()
        .alias("box")
        .addresses(addresses)
        .ports(2)
        .start()
        .unwrap();
    assert_eq!(server.endpoints().len(), 4);
    for (alias, endpoint) in ["box", "box-2", "box-3", "box-4"].iter().zip(server.endpoints()) {
        let output = server
            .ssh()
            .args([alias, "echo $SSH_CONNECTION"])
            .output()
            .unwrap();
        let expected = format!("{} {}\n", endpoint.ip(), endpoint.port());
        assert!(stdout(&output).ends_with(&expected));
    }
}

#[test]
fn one_socket_answers_on_all_of_the_loopback() {
    let server = Sshd::builder().any_loopback_address().start().unwrap();
    for address in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 77, 3, 9)] {
        let output = server
            .ssh()
            .args(["-o", &format!("HostName={address}"), server.alias(), "echo in"])
            .output()
            .unwrap();
        assert_eq!(stdout(&output), "in\n");
    }
}

#[test]
fn configuration_lines_win_and_match_blocks_stay_apart() {
    let server = Sshd::builder()
        .config("MaxSessions 1")
        .config("SetEnv WHERE=here")
        .config("AcceptEnv TEST_*")
        .config("Match LocalPort 1\n ForceCommand echo never")
        .start()
        .unwrap();
    let output = server
        .ssh()
        .env("TEST_WORD", "word")
        .args(["-o", "SendEnv=TEST_*", server.alias(), "echo $WHERE $TEST_WORD"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "here word\n");
    let effective = std::fs::read_to_string(server.dir().join("sshd_config")).unwrap();
    assert!(effective.trim_end().ends_with("ForceCommand echo never"));
}

#[test]
fn a_configuration_that_sshd_refuses_is_an_error_with_its_log() {
    let error = Sshd::builder().config("NoSuchDirective yes").start().unwrap_err();
    let Error::Exited { log, .. } = error else {
        panic!("{error:?}")
    };
    assert!(log.contains("NoSuchDirective"), "{log}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    assert!(matches!(
        Sshd::builder().ports(17).start(),
        Err(Error::Misused(_))
    ));
    assert!(matches!(
        Sshd::builder().host_keys([]).start(),
        Err(Error::Misused(_))
    ));
    assert!(matches!(
        Sshd::builder().password("a:b").start(),
        Err(Error::Misused(_))
    ));
}

#[tokio::test]
async fn killed_connections_end_their_clients_and_the_server_goes_on() {
    let server = Sshd::start_default().unwrap();
    let mut client = server
        .ssh()
        .args([server.alias(), "sleep 1000"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for_log("Starting session: command").await.unwrap();
    assert_eq!(server.connection_pids().len(), 1);
    server.freeze_connections();
    server.thaw_connections();
    server.kill_connections();
    assert_eq!(client.wait().unwrap().code(), Some(255));
    assert_eq!(
        stdout(&server.ssh().args([server.alias(), "echo up"]).output().unwrap()),
        "up\n"
    );
}
