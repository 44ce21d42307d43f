//! Servers that break the protocol on purpose, against the state machine over a real socket.

use std::time::{Duration, Instant};

use crate::socket::{Client, End, Key};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use trunkline_proto::{Config, Error, Event};
use trunkline_testkit::hostile::{Misbehaviour, RawServer, SessionMisbehaviour};

/// For servers that have something to say, however slow the machine is.
const LONG: Duration = Duration::from_secs(60);
/// For servers that say nothing more.
const SHORT: Duration = Duration::from_millis(300);
/// Reads of up to 64 KiB that a server may use up on nothing.
const PATIENCE: usize = 100;

/// The required end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Misbehaved,
    NotSsh,
    NothingInCommon,
    BadHostSignature,
    Corrupted,
    Disconnected,
    /// The server went away.
    Closed,
    /// Nothing wrong was said yet: what ends it is a time limit, which is the driver's.
    Waits,
    /// The application did not continue: another host key, or refused too often.
    GivenUp,
}

fn expected_verdicts(misbehaviour: Misbehaviour) -> &'static [Verdict] {
    use Misbehaviour as M;
    match misbehaviour {
        M::Silence | M::SlowBanner | M::MissingGuess | M::EndlessIgnore => &[Verdict::Waits],
        // Noise may hold a line end or not.
        M::BinaryGarbage => &[Verdict::Waits, Verdict::NotSsh],
        M::EndlessLines | M::MebibyteOfLines | M::BannerWithoutEnd | M::BannerWithNul | M::OldVersion => {
            &[Verdict::NotSsh]
        }
        M::CloseAfterConnect
        | M::CloseAfterBanner
        | M::TruncatedPacket
        | M::CloseAfterKexInit
        | M::CloseAfterNewKeys
        | M::CloseInAuthentication => &[Verdict::Closed],
        M::ManyNames | M::EmptyNameLists | M::NoCommonKex | M::NoCommonCipher | M::CipherNone => {
            &[Verdict::NothingInCommon]
        }
        M::DisconnectWithEscapes => &[Verdict::Disconnected],
        M::WrongSignature | M::SignatureByAnotherKey | M::MisnamedSignature => &[Verdict::BadHostSignature],
        M::NoiseAfterNewKeys | M::LostFirstPacket => &[Verdict::Corrupted],
        M::AnotherHostKey | M::EndlessAuthFailure => &[Verdict::GivenUp],
        _ => &[Verdict::Misbehaved],
    }
}

#[test]
fn every_misbehaviour_before_the_login_ends_in_its_own_error() {
    for &misbehaviour in Misbehaviour::ALL {
        let server = RawServer::misbehaving(misbehaviour).unwrap();
        let verdict = meet(&server, misbehaviour);
        let expected = expected_verdicts(misbehaviour);
        assert!(
            expected.contains(&verdict),
            "{misbehaviour:?} ended as {verdict:?}, not as {expected:?}"
        );
    }
}

/// Connects, and continues as far as the server lets one.
fn meet(server: &RawServer, misbehaviour: Misbehaviour) -> Verdict {
    let key = Key::load(server.client_key().private_path());
    let known = std::fs::read_to_string(server.known_hosts()).unwrap();
    let known = STANDARD.decode(known.trim().rsplit(' ').next().unwrap()).unwrap();
    let silence = if misbehaviour.holds_on() { SHORT } else { LONG };
    let mut config = Config::new("tester");
    // These want one request after the other, and hang up on anything else before they show what they are about.
    config.early_flights = !matches!(
        misbehaviour,
        Misbehaviour::EndlessAuthFailure | Misbehaviour::ManyPrompts
    );
    let mut client = Client::connect(server.addr(), config, silence).patience(PATIENCE);
    let id = client.start("true", None);
    let mut turns = 0;
    let end = loop {
        match client.next_event() {
            Ok(Event::HostKey(host_key)) if host_key[..] != known[..] => return Verdict::GivenUp,
            Ok(Event::HostKey(_)) => match client.connection.accept_host_key(Instant::now()) {
                Ok(()) => {}
                Err(error) => break End::Error(error),
            },
            Ok(Event::Authenticate(_)) => {
                turns += 1;
                match turns {
                    1 => client.show(&key),
                    2 => client.connection.authenticate_keyboard_interactive(),
                    3 => client
                        .connection
                        .authenticate_password("not the secret", None, false),
                    _ => return Verdict::GivenUp,
                }
            }
            Ok(Event::Authenticated) => panic!("{misbehaviour:?} made us believe that we are logged in"),
            Ok(Event::Questions { .. }) => panic!("{misbehaviour:?} made us ask"),
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    // Nothing that was asked for may be believed to have run, or to have been refused: authentication never succeeded.
    assert!(!client.connection.is_authenticated() && client.connection.channel_count() == 1);
    assert_ne!(client.connection.start_state(id), trunkline_proto::Started::Yes);
    match end {
        End::Closed => Verdict::Closed,
        End::Waits => Verdict::Waits,
        End::Error(Error::PeerMisbehaved(_)) => Verdict::Misbehaved,
        End::Error(Error::NotSsh(_)) => Verdict::NotSsh,
        End::Error(Error::NothingInCommon { .. }) => Verdict::NothingInCommon,
        End::Error(Error::BadHostSignature(_)) => Verdict::BadHostSignature,
        End::Error(Error::Corrupted) => Verdict::Corrupted,
        End::Error(Error::Disconnected { description, .. }) => {
            assert!(
                !description.chars().any(|c| c.is_control() && c != '\n'),
                "{description:?}"
            );
            Verdict::Disconnected
        }
        End::Error(other) => panic!("{misbehaviour:?}: {other}"),
    }
}

#[test]
fn every_misbehaviour_in_a_session_ends_the_connection_or_the_session() {
    for &misbehaviour in SessionMisbehaviour::ALL {
        let server = RawServer::misbehaving_in_session(misbehaviour).unwrap();
        let key = Key::load(server.client_key().private_path());
        let mut client = Client::connect(server.addr(), Config::new("tester"), LONG);
        let id = client.start("true", None);
        let outcome = client.log_in(&key).and_then(|()| client.output(id));
        match outcome {
            Ok(output) => {
                assert!(!misbehaviour.is_fatal(), "{misbehaviour:?} passed");
                assert_eq!(output.status, Some(0), "{misbehaviour:?}");
            }
            Err(End::Error(Error::PeerMisbehaved(_))) => {}
            Err(end) => panic!("{misbehaviour:?} ended as {end:?}"),
        }
    }
}
