use super::*;
use crate::prompt::{Answer, Never};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use trunkline_proto::wire::Writer;
use zeroize::Zeroizing;

pub(super) const SERVER: Server<'_> = Server {
    name: "Host.example",
    port: 22,
    alias: None,
    address: Some(IpAddr::V4(ADDRESS)),
};
const ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(192, 0, 2, 1);

pub(super) fn policy(strict: StrictHostKeyChecking) -> Policy {
    Policy {
        strict,
        update: UpdateHostKeys::Yes,
        check_host_ip: false,
        no_host_authentication_for_localhost: false,
        hash_known_hosts: false,
        user_files: vec!["user".into(), "user2".into()],
        global_files: vec!["global".into()],
        revoked_file: None,
        ca_signature_algorithms: ["ssh-ed25519".to_owned()].into(),
        required_rsa_bits: 2048,
    }
}

pub(super) fn key(seed: u8) -> Bytes {
    Writer::new().string("ssh-ed25519").string([seed; 32]).finish()
}

pub(super) fn line(hosts: &str, key: &[u8]) -> String {
    let name = signature::key_type(key).unwrap();
    format!("{hosts} {name} {}\n", STANDARD.encode(key))
}

pub(super) fn trust(files: &[(&str, String)]) -> Trust {
    let mut trust = Trust::default();
    for (file, content) in files {
        trust.known.add_file(Path::new(file), content.as_bytes());
    }
    trust
}

use StrictHostKeyChecking::{AcceptNew, Ask, No, Yes};
const ALL: [StrictHostKeyChecking; 4] = [Yes, Ask, AcceptNew, No];

fn decision_for(strict: StrictHostKeyChecking, trust: &Trust, presented: &[u8]) -> Decision {
    decide(&policy(strict), trust, &SERVER, presented, 0)
}

#[test]
fn the_picture_of_a_key_is_the_one_that_ssh_keygen_draws() {
    let directory = tempfile::tempdir().unwrap();
    for (kind, bits) in [("ed25519", "256"), ("ecdsa", "384"), ("rsa", "2048")] {
        let file = directory.path().join(kind);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-t", kind, "-b", bits, "-f"])
            .arg(&file)
            .status()
            .expect("ssh-keygen is needed (openssh-client)");
        assert!(made.success());
        let drawn = Command::new("ssh-keygen")
            .arg("-lvf")
            .arg(&file)
            .output()
            .unwrap();
        let drawn = String::from_utf8(drawn.stdout).unwrap();
        let (_, drawn) = drawn.split_once('\n').unwrap();
        let public = std::fs::read_to_string(file.with_extension("pub")).unwrap();
        let key = STANDARD.decode(public.split(' ').nth(1).unwrap()).unwrap();
        let (said, shown) = picture(&key)
            .split_once('\n')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        assert_eq!(said, format!("Host key fingerprint is {}", fingerprint(&key)));
        assert_eq!(shown.trim_end(), drawn.trim_end());
    }
}

#[test]
fn a_known_key_is_accepted_by_every_policy() {
    let trust = trust(&[("user", line("host.example", &key(1)))]);
    for strict in ALL {
        let Decision::Accept(accepted) = decision_for(strict, &trust, &key(1)) else {
            panic!("{strict:?}")
        };
        assert!(!accepted.is_unverified && accepted.may_update);
        assert_eq!(accepted.key, key(1));
    }
}

#[test]
fn an_unknown_host_is_refused_asked_about_or_remembered() {
    let none = Trust::default();
    assert!(matches!(
        decision_for(Yes, &none, &key(1)),
        Decision::Reject(HostKeyError::Unknown { .. })
    ));
    assert!(matches!(decision_for(Ask, &none, &key(1)), Decision::Ask(_)));
    for strict in [AcceptNew, No] {
        let Decision::AcceptAndRemember(accepted, remember) = decision_for(strict, &none, &key(1)) else {
            panic!("{strict:?}")
        };
        // This key is unverified, so it must not vouch for another.
        assert!(!accepted.may_update && !accepted.is_unverified);
        assert_eq!(
            (remember.file.as_path(), &remember.names[..]),
            (Path::new("user"), &["host.example".to_owned()][..])
        );
    }
}

#[test]
fn what_was_let_through_says_how_strict_a_rule_would_have_done_so_too() {
    let passes = |policy: &Policy, trust: &Trust| strictest_that_passes(policy, trust, &SERVER, &key(1), 0);
    let known = trust(&[("user", line("host.example", &key(1)))]);
    let changed = trust(&[("user", line("host.example", &key(2)))]);
    // The name is known with this key, the address with another host's.
    let elsewhere = line("host.example", &key(1)) + &line("192.0.2.1", &key(2));
    let elsewhere = trust(&[("user", elsewhere)]);
    let by_address = |strict| Policy {
        check_host_ip: true,
        ..policy(strict)
    };
    for strict in ALL {
        assert_eq!(passes(&policy(strict), &known), Yes);
    }
    assert_eq!(passes(&policy(No), &Trust::default()), AcceptNew);
    assert_eq!(passes(&policy(AcceptNew), &Trust::default()), AcceptNew);
    // The user has said yes.
    assert_eq!(passes(&policy(Ask), &Trust::default()), Ask);
    assert_eq!(passes(&policy(No), &changed), No);
    assert_eq!(passes(&by_address(Ask), &elsewhere), Ask);
    assert_eq!(passes(&by_address(No), &elsewhere), No);
}

#[test]
fn a_changed_key_is_refused_with_the_line_and_the_way_out() {
    let trust = trust(&[("user", "# first\n".to_owned() + &line("host.example", &key(2)))]);
    for strict in [Yes, Ask, AcceptNew] {
        let Decision::Reject(error) = decision_for(strict, &trust, &key(1)) else {
            panic!("{strict:?}")
        };
        let said = error.to_string();
        assert!(
            said.contains("user:2") && said.contains("ssh-keygen -f \"user\" -R \"host.example\""),
            "{said}"
        );
        assert!(said.contains(&fingerprint(&key(1))), "{said}");
    }
}

#[test]
fn no_lets_changed_and_revoked_keys_through_as_unverified_and_remembers_nothing() {
    for hosts in ["host.example", "@revoked host.example"] {
        let shown = if hosts.starts_with('@') { key(2) } else { key(1) };
        let trust = trust(&[("user", line(hosts, &key(2)))]);
        let Decision::Accept(accepted) = decision_for(No, &trust, &shown) else {
            panic!("{hosts}")
        };
        assert!(accepted.is_unverified && !accepted.may_update);
        assert_eq!(accepted.warnings.len(), 2);
    }
}

#[test]
fn a_key_of_the_revocation_file_is_refused_by_every_policy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("revoked");
    std::fs::write(&file, line("", &key(1)).trim_start()).unwrap();
    for strict in ALL {
        let policy = Policy {
            revoked_file: Some(file.clone()),
            ..policy(strict)
        };
        let mut trust = policy.load().unwrap();
        trust
            .known
            .add_file(Path::new("user"), line("*", &key(1)).as_bytes());
        let decision = decide(&policy, &trust, &SERVER, &key(1), 0);
        assert!(
            matches!(decision, Decision::Reject(HostKeyError::Revoked { .. })),
            "{strict:?}"
        );
    }
}

#[test]
fn only_the_users_own_line_for_the_very_name_lets_keys_be_updated() {
    let updates = |trust: &Trust, server: &Server<'_>| match decide(&policy(Yes), trust, server, &key(1), 0) {
        Decision::Accept(accepted) => accepted.may_update,
        other => panic!("{other:?}"),
    };
    assert!(updates(
        &trust(&[("user2", line("host.example", &key(1)))]),
        &SERVER
    ));
    assert!(!updates(
        &trust(&[("global", line("host.example", &key(1)))]),
        &SERVER
    ));
    let other_port = Server { port: 2222, ..SERVER };
    assert!(!updates(
        &trust(&[("user", line("host.example", &key(1)))]),
        &other_port
    ));
    assert!(updates(
        &trust(&[("user", line("[host.example]:2222", &key(1)))]),
        &other_port
    ));
}

#[test]
fn localhost_is_exempt_only_where_that_is_asked_for() {
    let trust = trust(&[("user", line("host.example", &key(2)))]);
    let exempt = Policy {
        no_host_authentication_for_localhost: true,
        ..policy(Yes)
    };
    let local = Server {
        address: Some(IpAddr::from([127, 0, 0, 1])),
        ..SERVER
    };
    let Decision::Accept(accepted) = decide(&exempt, &trust, &local, &key(1), 0) else {
        panic!()
    };
    assert!(!accepted.may_update && !accepted.is_unverified);
    let aliased = Server {
        alias: Some("host.example"),
        ..local
    };
    for (policy, server) in [(&exempt, SERVER), (&policy(Yes), local), (&exempt, aliased)] {
        assert!(matches!(
            decide(policy, &trust, &server, &key(1), 0),
            Decision::Reject(_)
        ));
    }
}

#[test]
fn without_a_file_an_unknown_host_is_refused() {
    let policy = Policy {
        user_files: vec![],
        ..policy(No)
    };
    let decision = decide(&policy, &Trust::default(), &SERVER, &key(1), 0);
    assert!(matches!(
        decision,
        Decision::Reject(HostKeyError::NowhereToRemember { .. })
    ));
}

#[test]
fn a_short_rsa_key_is_refused_even_if_it_is_known() {
    let rsa = Writer::new()
        .string("ssh-rsa")
        .mpint(&[1, 0, 1])
        .mpint(&[0xc1; 128])
        .finish();
    let trust = trust(&[("user", line("host.example", &rsa))]);
    let decision = decision_for(No, &trust, &rsa);
    assert!(
        matches!(
            decision,
            Decision::Reject(HostKeyError::RsaSize { bits: 1024, .. })
        ),
        "{decision:?}"
    );
}

#[test]
fn the_address_is_checked_where_that_is_asked_for() {
    let with = |strict| Policy {
        check_host_ip: true,
        ..policy(strict)
    };
    let known = line("host.example", &key(1));
    let both = trust(&[("user", line("host.example,192.0.2.1", &key(1)))]);
    assert!(matches!(
        decide(&with(Yes), &both, &SERVER, &key(1), 0),
        Decision::Accept(_)
    ));
    let name_only = trust(&[("user", known.clone())]);
    let Decision::AcceptAndRemember(_, remember) = decide(&with(Yes), &name_only, &SERVER, &key(1), 0) else {
        panic!()
    };
    assert_eq!(remember.names, ["192.0.2.1"]);
    let Decision::AcceptAndRemember(_, remember) =
        decide(&with(AcceptNew), &Trust::default(), &SERVER, &key(1), 0)
    else {
        panic!()
    };
    assert_eq!(remember.names, ["host.example", "192.0.2.1"]);
    let others = trust(&[("user", known + &line("192.0.2.1", &key(2)))]);
    for strict in [Yes, AcceptNew] {
        let decision = decide(&with(strict), &others, &SERVER, &key(1), 0);
        assert!(matches!(
            decision,
            Decision::Reject(HostKeyError::AddressChanged { .. })
        ));
    }
    assert!(matches!(
        decide(&with(Ask), &others, &SERVER, &key(1), 0),
        Decision::Ask(_)
    ));
    let Decision::Accept(accepted) = decide(&with(No), &others, &SERVER, &key(1), 0) else {
        panic!()
    };
    assert_eq!(accepted.warnings.len(), 1);
    // Without CheckHostIP the address does not matter.
    assert!(matches!(decision_for(Yes, &others, &key(1)), Decision::Accept(_)));
}

/// A prompter that gives prepared answers and keeps the questions.
struct Script(Mutex<(Vec<&'static str>, Vec<String>)>);

impl Script {
    fn new(answers: &[&'static str]) -> Self {
        Self(Mutex::new((answers.iter().rev().copied().collect(), Vec::new())))
    }
}

impl Prompter for Script {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        let mut script = self.0.lock().unwrap();
        script.1.push(prompt.text.clone());
        let answer = script.0.pop().map(|answer| Zeroizing::new(answer.to_owned()));
        Box::pin(std::future::ready(answer))
    }
}

async fn answer(answers: &[&'static str]) -> (Decision, Vec<String>) {
    let trust = trust(&[("user", line("other.example", &key(1)))]);
    let Decision::Ask(question) = decision_for(Ask, &trust, &key(1)) else {
        panic!("no question")
    };
    let script = Script::new(answers);
    let decision = question.put_to(&script).await;
    (decision, script.0.into_inner().unwrap().1)
}

#[tokio::test]
async fn yes_and_the_fingerprint_go_on_and_let_the_key_vouch_for_others() {
    let print: &'static str = Box::leak(fingerprint(&key(1)).into_boxed_str());
    for answers in [&["yes"][..], &[" YES "], &[print], &["what", "y", "yes"]] {
        let (decision, asked) = answer(answers).await;
        assert!(matches!(decision, Decision::AcceptAndRemember(ref accepted, _) if accepted.may_update));
        assert!(asked[0].contains("user:1: other.example"), "{}", asked[0]);
        assert!(
            asked[0].contains(print) && asked[0].contains("(192.0.2.1)"),
            "{}",
            asked[0]
        );
    }
}

#[tokio::test]
async fn everything_else_ends_the_connection_and_no_script_is_asked_for_ever() {
    for answers in [&["no"][..], &[""], &[], &["maybe"; 100]] {
        let (decision, asked) = answer(answers).await;
        assert!(matches!(
            decision,
            Decision::Reject(HostKeyError::NotConfirmed { .. })
        ));
        assert!(asked.len() <= MAX_ATTEMPTS);
    }
    let Decision::Ask(question) = decision_for(Ask, &Trust::default(), &key(1)) else {
        panic!()
    };
    assert!(matches!(question.put_to(&Never).await, Decision::Reject(_)));
}

/// Makes a certificate of a fresh key by a fresh authority with ssh-keygen; returns it and the authority's key.
fn certificate(more: &[&str]) -> (Bytes, Bytes) {
    let directory = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let ran = Command::new("ssh-keygen")
            .args(args)
            .current_dir(directory.path())
            .output();
        let ran = ran.expect("this test needs ssh-keygen");
        assert!(
            ran.status.success(),
            "{args:?} {}",
            String::from_utf8_lossy(&ran.stderr)
        );
    };
    for name in ["ca", "key"] {
        run(&["-q", "-t", "ed25519", "-N", "", "-f", name]);
    }
    run(&[&["-q", "-s", "ca", "-I", "id"][..], more, &["key.pub"]].concat());
    let read = |name: &str| {
        keys::PublicKey::parse(&std::fs::read(directory.path().join(name)).unwrap())
            .unwrap()
            .blob
    };
    (read("key-cert.pub"), read("ca.pub"))
}

/// Decides strictly about a certificate, at the time `now`.
fn decided_with_ca(presented: &[u8], ca: &[u8], server: &Server<'_>, now: u64) -> Decision {
    let trust = trust(&[("user", line("@cert-authority *.example", ca))]);
    decide(&policy(Yes), &trust, server, presented, now)
}

fn refusal_of(decision: Decision) -> CertificateRefusal {
    match decision {
        Decision::Reject(HostKeyError::Unknown {
            refusal: Some(refusal),
            ..
        }) => refusal,
        other => panic!("{other:?}"),
    }
}

// 2020-01-01 to 2021-01-01, in UTC.
const VALIDITY: &str = "20200101000000Z:20210101000000Z";
const WITHIN: u64 = 1_590_000_000;

#[test]
fn a_certificate_of_a_trusted_authority_is_enough_on_every_port() {
    let (shown, ca) = certificate(&["-h", "-n", "host.example,b", "-V", VALIDITY]);
    for server in [SERVER, Server { port: 2222, ..SERVER }] {
        let Decision::Accept(accepted) = decided_with_ca(&shown, &ca, &server, WITHIN) else {
            panic!()
        };
        assert_eq!(keys::key_type(&accepted.key), Some("ssh-ed25519"));
        assert!(!accepted.may_update);
    }
    let aliased = Server {
        name: "x",
        alias: Some("host.example"),
        ..SERVER
    };
    assert!(matches!(
        decided_with_ca(&shown, &ca, &aliased, WITHIN),
        Decision::Accept(_)
    ));
}

#[test]
fn a_certificates_principal_may_be_a_pattern_in_small_letters() {
    for (principals, is_ours) in [
        ("*.example", true),
        ("hos?.exampl*", true),
        ("elsewhere,host.*", true),
        ("*", true),
        ("*.EXAMPLE", false),
        ("*.examples", false),
        ("!elsewhere", false),
    ] {
        let (shown, ca) = certificate(&["-h", "-n", principals, "-V", VALIDITY]);
        let decision = decided_with_ca(&shown, &ca, &SERVER, WITHIN);
        assert_eq!(matches!(decision, Decision::Accept(_)), is_ours, "{principals}");
    }
}

#[test]
fn a_certificate_has_to_be_good_in_every_respect() {
    let host: &[&str] = &["-h", "-n", "host.example", "-V", VALIDITY];
    let (shown, ca) = certificate(host);
    let other = Server {
        name: "other.example",
        ..SERVER
    };
    let refusal = |decision| refusal_of(decision);
    assert!(matches!(
        refusal(decided_with_ca(&shown, &ca, &SERVER, 1_500_000_000)),
        CertificateRefusal::NotYetValid { .. }
    ));
    assert!(matches!(
        refusal(decided_with_ca(&shown, &ca, &SERVER, 1_700_000_000)),
        CertificateRefusal::Expired { .. }
    ));
    assert!(matches!(
        refusal(decided_with_ca(&shown, &ca, &other, WITHIN)),
        CertificateRefusal::OtherHost { .. }
    ));
    let mut forged = shown.to_vec();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!(matches!(
        refusal(decided_with_ca(&forged, &ca, &SERVER, WITHIN)),
        CertificateRefusal::Signature(_)
    ));
    let strict = Policy {
        ca_signature_algorithms: ["rsa-sha2-512".to_owned()].into(),
        ..policy(Yes)
    };
    let trusting = trust(&[("user", line("@cert-authority *", &ca))]);
    assert!(matches!(
        refusal(decide(&strict, &trusting, &SERVER, &shown, WITHIN)),
        CertificateRefusal::Algorithm { .. }
    ));
    let (nobodys, ca) = certificate(&["-h", "-V", VALIDITY]);
    assert_eq!(
        refusal(decided_with_ca(&nobodys, &ca, &SERVER, WITHIN)),
        CertificateRefusal::NoPrincipals
    );
    let (user, ca) = certificate(&["-n", "host.example", "-V", VALIDITY]);
    assert_eq!(
        refusal(decided_with_ca(&user, &ca, &SERVER, WITHIN)),
        CertificateRefusal::NotForHosts
    );
    let option = [host, &["-O", "critical:strange@example"]].concat();
    let (optional, ca) = certificate(&option);
    assert!(matches!(
        refusal(decided_with_ca(&optional, &ca, &SERVER, WITHIN)),
        CertificateRefusal::CriticalOption { .. }
    ));
}

#[test]
fn a_certificate_that_does_not_count_leaves_the_key_inside() {
    let (shown, ca) = certificate(&["-h", "-n", "elsewhere", "-V", VALIDITY]);
    let plain = Bytes::copy_from_slice(Certificate::parse(&shown).unwrap().key_blob());
    let lines = line("@cert-authority *", &ca) + &line("host.example", &plain);
    let Decision::Accept(accepted) =
        decide(&policy(Yes), &trust(&[("user", lines)]), &SERVER, &shown, WITHIN)
    else {
        panic!()
    };
    assert!(
        accepted.warnings[0].contains("elsewhere"),
        "{:?}",
        accepted.warnings
    );
    // An authority that is unknown for the host decides nothing.
    let Decision::AcceptAndRemember(_, remember) = decide(
        &policy(AcceptNew),
        &trust(&[("user", line("@cert-authority *", &key(9)))]),
        &SERVER,
        &shown,
        WITHIN,
    ) else {
        panic!()
    };
    assert_eq!(remember.key, plain);
}

#[test]
fn a_revoked_key_or_authority_makes_a_certificate_worthless() {
    let (shown, ca) = certificate(&["-h", "-n", "host.example", "-V", VALIDITY]);
    let plain = Bytes::copy_from_slice(Certificate::parse(&shown).unwrap().key_blob());
    for revoked in [&ca, &plain] {
        let lines = line("@cert-authority *", &ca) + &line("@revoked *", revoked);
        let decision = decide(
            &policy(AcceptNew),
            &trust(&[("user", lines)]),
            &SERVER,
            &shown,
            WITHIN,
        );
        assert!(
            matches!(decision, Decision::Reject(HostKeyError::Revoked { .. })),
            "{decision:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_presented_key_panics_or_is_accepted_strictly(presented: Vec<u8>, certified: bool) {
        let presented = match certified {
            true => Writer::new().string("ssh-ed25519-cert-v01@openssh.com").raw(&presented).finish(),
            false => presented.into(),
        };
        let trust = trust(&[("user", line("*", &key(1)) + &line("@cert-authority *", &key(2)))]);
        prop_assert!(matches!(decision_for(Yes, &trust, &presented), Decision::Reject(_)));
    }
}
