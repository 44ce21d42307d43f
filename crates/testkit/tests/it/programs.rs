//! Dropbear, the agent, and the kit's own programs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use trunkline_testkit::{Agent, Dropbear, KeyConstraints, KeyType, Sshd, ssh};

#[test]
fn dropbear_answers_the_stock_client() {
    let mut server = Dropbear::builder()
        .host_keys([KeyType::Ed25519, KeyType::Rsa, KeyType::EcdsaP256])
        .start()
        .unwrap();
    for algorithm in ["ssh-ed25519", "rsa-sha2-256", "ecdsa-sha2-nistp256"] {
        let output = server
            .ssh()
            .args([
                "-o",
                &format!("HostKeyAlgorithms={algorithm}"),
                server.alias(),
                "echo hello",
            ])
            .output()
            .unwrap();
        assert_eq!(
            output.stdout,
            b"hello\n",
            "{}{}",
            String::from_utf8_lossy(&output.stderr),
            server.log().text()
        );
    }
    assert_eq!(server.connections(), 3);
    assert_eq!(server.authentications(), 3);
    server.stop();
    let log_in = |server: &Dropbear| {
        let output = server.ssh().args([server.alias(), "true"]).output().unwrap();
        output.status.code()
    };
    assert_eq!(log_in(&server), Some(255));
    server.start().unwrap();
    assert_eq!(log_in(&server), Some(0));
}

#[test]
fn an_agent_signs_as_its_constraints_allow() {
    let server = Sshd::start_default().unwrap();
    let key = &server.client_keys()[0];
    let agent = Agent::start().unwrap();
    assert!(agent.keys().unwrap().is_empty());
    let login = || {
        let output = Command::new("ssh")
            .arg("-F")
            .arg(server.ssh_config())
            .args(["-o", "IdentityFile=none", "-o", "IdentitiesOnly=no", "-o"])
            .arg(format!("IdentityAgent={}", agent.socket().display()))
            .args(["-o", "PreferredAuthentications=publickey", server.alias(), "true"])
            .output()
            .unwrap();
        output.status.success()
    };
    // The file's own IdentityFile lines stay in force, so take the key away from the client itself.
    let hidden = server.dir().join("hidden");
    std::fs::rename(key.private_path(), &hidden).unwrap();
    assert!(!login());
    std::fs::copy(&hidden, key.private_path()).unwrap();
    agent
        .add(
            key,
            &KeyConstraints {
                confirm: true,
                ..KeyConstraints::default()
            },
        )
        .unwrap();
    std::fs::remove_file(key.private_path()).unwrap();
    assert_eq!(agent.keys().unwrap(), [key.public_line()]);
    assert!(login());
    assert_eq!(agent.confirmations(), 1);
    agent.consent(false).unwrap();
    assert!(!login());
    assert_eq!(agent.confirmations(), 2);
}

/// Reads the first line that a program prints.
fn read_line(program: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    line
}

#[test]
fn the_relay_program_prints_its_port_and_delays() {
    let server = Sshd::start_default().unwrap();
    let mut relay = Command::new(env!("CARGO_BIN_EXE_trunkline-relay"))
        .args(["--to", &server.addr().to_string(), "--rtt-ms", "10"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let addr = format!("127.0.0.1:{}", read_line(&mut relay).trim())
        .parse()
        .unwrap();
    let config = server.ssh_config_via("relayed", addr).unwrap();
    let started = Instant::now();
    assert!(ssh(&config).args(["relayed", "true"]).status().unwrap().success());
    assert!(started.elapsed() >= Duration::from_millis(80));
    relay.kill().unwrap();
    relay.wait().unwrap();
}

#[test]
fn a_testbed_lives_as_long_as_its_standard_input() {
    let mut testbed = Command::new(env!("CARGO_BIN_EXE_trunkline-testbed"))
        .args(["--servers", "3", "--rtt-ms", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let described: serde_json::Value = serde_json::from_str(&read_line(&mut testbed)).unwrap();
    let config = Path::new(described["ssh_config"].as_str().unwrap());
    for alias in ["box1", "box2", "box3"] {
        assert!(ssh(config).args([alias, "true"]).status().unwrap().success());
    }
    drop(testbed.stdin.take());
    assert!(testbed.wait().unwrap().success());
    assert!(!config.exists());
}
