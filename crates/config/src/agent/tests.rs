use super::*;
use crate::keys::KeyFile;
use proptest::prelude::*;
use std::process::Command;
use tempfile::TempDir;
use tokio::net::UnixListener;

/// A real ssh-agent, which ends when this is dropped.
struct LiveAgent {
    directory: TempDir,
    pid: rustix::process::Pid,
}

impl LiveAgent {
    /// Starts an agent whose askpass program exits with `confirm`.
    fn start(confirm: i32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let askpass = directory.path().join("askpass");
        // Another process writes it, as in the askpass tests.
        let write = "printf '#!/bin/sh\\nexit %s\\n' \"$1\" > \"$2\" && chmod 700 \"$2\"";
        let written = Command::new("sh")
            .args(["-c", write, "sh", &confirm.to_string()])
            .arg(&askpass)
            .status();
        assert!(written.unwrap().success());
        // ssh-agent returns once its socket listens, and prints the id of the process that stays.
        let started = Command::new("ssh-agent")
            .args(["-s", "-a"])
            .arg(directory.path().join("agent"))
            .env("SSH_ASKPASS", askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .output()
            .expect("this test needs ssh-agent");
        let said = String::from_utf8(started.stdout).unwrap();
        let pid = said
            .split_once("SSH_AGENT_PID=")
            .unwrap()
            .1
            .split_once(';')
            .unwrap()
            .0;
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        Self { directory, pid }
    }

    async fn connect(&self) -> Agent {
        Agent::connect(&self.directory.path().join("agent"))
            .await
            .unwrap()
    }

    fn key(&self, kind: &str, bits: &str) -> PrivateKey {
        let name = format!("{kind}-{bits}");
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", kind, "-b", bits, "-N", "", "-f", &name])
            .current_dir(self.directory.path())
            .status();
        assert!(made.expect("this test needs ssh-keygen").success());
        PrivateKey::load(&self.directory.path().join(name), None).unwrap()
    }
}

impl Drop for LiveAgent {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::TERM);
    }
}

#[tokio::test]
async fn every_type_of_key_is_added_listed_used_and_removed() {
    let live = LiveAgent::start(0);
    let mut agent = live.connect().await;
    for (kind, bits) in [
        ("ed25519", "256"),
        ("ecdsa", "256"),
        ("ecdsa", "384"),
        ("ecdsa", "521"),
        ("rsa", "2048"),
    ] {
        let key = live.key(kind, bits);
        agent
            .add(&key, None, "my comment", Constraints::default())
            .await
            .unwrap();
        let listed = agent.identities().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(
            (&listed[0].blob, &listed[0].comment[..]),
            (key.public_blob(), "my comment")
        );
        for algorithm in key.signature_algorithms() {
            let signature = agent.sign(key.public_blob(), algorithm, b"data").await.unwrap();
            // Ed25519 and RSA signatures are deterministic: the agent's equals the key's own.
            if kind != "ecdsa" {
                assert_eq!(signature, key.sign(algorithm, b"data").unwrap());
            }
        }
        agent.remove(key.public_blob()).await.unwrap();
        assert!(matches!(
            agent.remove(key.public_blob()).await,
            Err(AgentError::KeyGone { .. })
        ));
    }
}

#[tokio::test]
async fn certificates_of_every_type_are_held_and_sign() {
    let live = LiveAgent::start(0);
    let mut agent = live.connect().await;
    live.key("ed25519", "256");
    for (kind, bits) in [("ecdsa", "256"), ("rsa", "2048")] {
        let key = live.key(kind, bits);
        let name = format!("{kind}-{bits}");
        let signed = Command::new("ssh-keygen")
            .args(["-q", "-s", "ed25519-256", "-I", "id", "-n", "user"])
            .arg(format!("{name}.pub"))
            .current_dir(live.directory.path())
            .status();
        assert!(signed.unwrap().success());
        let file = KeyFile::open(&live.directory.path().join(name)).unwrap();
        let certificate = file.certificate().unwrap();
        agent
            .add(&key, Some(certificate), "cert", Constraints::default())
            .await
            .unwrap();
        let listed = agent.identities().await.unwrap();
        let held = listed
            .iter()
            .find(|identity| identity.blob == certificate.blob)
            .unwrap();
        assert!(held.is_certificate() && !held.is_security_key());
        let algorithm = key.signature_algorithms()[0];
        agent.sign(&certificate.blob, algorithm, b"data").await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_confirmation_is_told_from_a_missing_key() {
    let live = LiveAgent::start(1);
    let mut agent = live.connect().await;
    let key = live.key("ed25519", "256");
    let unknown = agent.sign(key.public_blob(), key.algorithm(), b"data").await;
    assert!(matches!(unknown, Err(AgentError::Empty)), "{unknown:?}");
    let constraints = Constraints {
        lifetime: Some(Duration::from_secs(3600)),
        confirm: true,
    };
    agent.add(&key, None, "", constraints).await.unwrap();
    let denied = agent.sign(key.public_blob(), key.algorithm(), b"data").await;
    assert!(matches!(denied, Err(AgentError::Refused { .. })), "{denied:?}");
    let other = live.key("ecdsa", "256");
    let gone = agent.sign(other.public_blob(), other.algorithm(), b"data").await;
    assert!(matches!(gone, Err(AgentError::KeyGone { .. })), "{gone:?}");
    // SSH_AGENTC_LOCK: the agent lists nothing from now on.
    let reply = agent
        .request(&Writer::message(22).string("password").finish())
        .await
        .unwrap();
    assert_eq!(reply, [SUCCESS]);
    let locked = agent.sign(key.public_blob(), key.algorithm(), b"data").await;
    assert!(matches!(locked, Err(AgentError::Empty)), "{locked:?}");
}

#[tokio::test]
async fn a_confirmed_key_signs() {
    let live = LiveAgent::start(0);
    let mut agent = live.connect().await;
    let key = live.key("ed25519", "256");
    agent
        .add(
            &key,
            None,
            "",
            Constraints {
                lifetime: None,
                confirm: true,
            },
        )
        .await
        .unwrap();
    agent
        .sign(key.public_blob(), key.algorithm(), b"data")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_session_is_bound_with_the_host_keys_own_signature_only() {
    let live = LiveAgent::start(0);
    let mut agent = live.connect().await;
    let host_key = live.key("ed25519", "256");
    let signature = host_key.sign("ssh-ed25519", b"session id").unwrap();
    let blob = host_key.public_blob();
    assert!(
        !agent
            .bind_session(blob, b"another id", &signature, false)
            .await
            .unwrap()
    );
    assert!(
        agent
            .bind_session(blob, b"session id", &signature, false)
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_told_from_one_that_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent");
    assert!(matches!(
        Agent::connect(&path).await,
        Err(AgentError::Missing { .. })
    ));
    trunkline_testkit::leave_socket(&path);
    assert!(matches!(
        Agent::connect(&path).await,
        Err(AgentError::NotListening { .. })
    ));
}

/// Connects to an agent that answers the first request with `reply` and closes.
async fn agent_that_says(reply: Vec<u8>) -> (Agent, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        let len = peer.read_u32().await.unwrap();
        let mut request = vec![0; len as usize];
        peer.read_exact(&mut request).await.unwrap();
        let _ = peer.write_all(&reply).await;
    });
    (Agent::connect(&path).await.unwrap(), directory)
}

fn frame(reply: &[u8]) -> Vec<u8> {
    Writer::new().string(reply).finish().to_vec()
}

#[tokio::test]
async fn an_impossible_length_is_refused_before_anything_is_allocated() {
    for len in [0, MAX_REPLY as u32 + 1, u32::MAX] {
        let (mut agent, _directory) = agent_that_says(len.to_be_bytes().to_vec()).await;
        assert!(
            matches!(agent.identities().await, Err(AgentError::Malformed { .. })),
            "{len}"
        );
        assert!(matches!(agent.identities().await, Err(AgentError::OutOfStep)));
    }
}

#[tokio::test]
async fn a_list_longer_than_its_reply_is_refused() {
    for count in [1, MAX_IDENTITIES, MAX_IDENTITIES + 1, u32::MAX] {
        let reply = Writer::message(IDENTITIES_ANSWER).u32(count).finish();
        let (mut agent, _directory) = agent_that_says(frame(&reply)).await;
        assert!(
            matches!(agent.identities().await, Err(AgentError::Malformed { .. })),
            "{count}"
        );
    }
}

#[tokio::test]
async fn a_signature_of_another_algorithm_is_refused() {
    let signature = Writer::new().string("ssh-rsa").string("x").finish();
    let reply = Writer::message(SIGN_RESPONSE).string(signature).finish();
    let (mut agent, _directory) = agent_that_says(frame(&reply)).await;
    let signed = agent.sign(b"key", "rsa-sha2-512", b"data").await;
    assert!(
        matches!(signed, Err(AgentError::SignatureType { .. })),
        "{signed:?}"
    );
}

#[tokio::test]
async fn a_request_given_up_spoils_the_connection_and_no_later_reply() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent");
    let listener = UnixListener::bind(&path).unwrap();
    let mut agent = Agent::connect(&path).await.unwrap();
    let given_up = timeout(Duration::ZERO, agent.sign(b"key", "ssh-ed25519", b"data")).await;
    assert!(given_up.is_err());
    assert!(matches!(agent.identities().await, Err(AgentError::OutOfStep)));
    drop(listener);
}

proptest! {
    #[test]
    fn no_list_of_keys_panics(reply: Vec<u8>, count in 0..4_u32) {
        let _ = parse_identities(&mut Reader::new(&reply));
        let counted = Writer::new().u32(count).raw(&reply).finish();
        let _ = parse_identities(&mut Reader::new(&counted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_reply_panics_or_is_waited_for_after_its_end(reply: Vec<u8>, number: u8, is_framed: bool) {
        let reply = Writer::message(number).raw(&reply).finish();
        let reply = if is_framed { frame(&reply) } else { reply.to_vec() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut agent, _directory) = agent_that_says(reply.clone()).await;
            let _ = agent.identities().await;
            let (mut agent, _directory) = agent_that_says(reply).await;
            let _ = agent.sign(b"key", "ssh-ed25519", b"data").await;
        });
    }
}
