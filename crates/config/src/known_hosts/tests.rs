use super::*;
use proptest::prelude::*;
use std::process::Command;
use trunkline_proto::wire::Writer;

/// Makes a well-formed key blob that differs with `seed`.
pub(super) fn key(seed: u8) -> Bytes {
    Writer::new().string("ssh-ed25519").string([seed; 32]).finish()
}

fn rsa_key(seed: u8) -> Bytes {
    Writer::new()
        .string("ssh-rsa")
        .mpint(&[1, 0, 1])
        .mpint(&[seed; 256])
        .finish()
}

fn line(hosts: &str, key: &[u8]) -> String {
    format!(
        "{hosts} {} {}\n",
        keys::key_type(key).unwrap(),
        STANDARD.encode(key)
    )
}

fn known_hosts_with(content: &str) -> KnownHosts {
    let mut known = KnownHosts::default();
    known.add_file(Path::new("hosts"), content.as_bytes());
    known
}

fn location_at(line: usize) -> Location {
    Location {
        file: Path::new("hosts").into(),
        line,
    }
}

fn trusted_at(line: usize) -> Verdict {
    Verdict::Trusted {
        at: location_at(line),
        without_port: false,
    }
}

#[test]
fn a_host_is_trusted_by_its_own_key_only() {
    let known = known_hosts_with(&(line("a.example,10.0.0.1", &key(1)) + &line("b.example", &key(2))));
    assert_eq!(known.check("A.example", 22, None, &key(1)), trusted_at(1));
    assert_eq!(known.check("10.0.0.1", 22, None, &key(1)), trusted_at(1));
    assert_eq!(known.check("c.example", 22, None, &key(1)), Verdict::Unknown);
    let changed = Verdict::Changed {
        at: location_at(2),
        known_type: "ssh-ed25519",
    };
    assert_eq!(known.check("b.example", 22, None, &key(1)), changed);
}

#[test]
fn the_line_named_for_a_changed_key_is_of_the_same_type_where_there_is_one() {
    let lines = line("a", &rsa_key(9)) + &line("a", &key(2)) + &line("a", &rsa_key(8));
    let verdict = known_hosts_with(&lines).check("a", 22, None, &key(1));
    assert_eq!(
        verdict,
        Verdict::Changed {
            at: location_at(2),
            known_type: "ssh-ed25519"
        }
    );
}

#[test]
fn negation_wins_over_every_wildcard() {
    let known = known_hosts_with(&line("*.example,!bad.example,h?", &key(1)));
    assert_eq!(known.check("good.example", 22, None, &key(1)), trusted_at(1));
    assert_eq!(known.check("bad.example", 22, None, &key(1)), Verdict::Unknown);
    assert_eq!(known.check("h1", 22, None, &key(1)), trusted_at(1));
    assert_eq!(known.check("h12", 22, None, &key(1)), Verdict::Unknown);
}

#[test]
fn another_port_has_its_own_lines_and_falls_back_to_a_match_without_port() {
    let known = known_hosts_with(&(line("[a]:2222", &key(1)) + &line("a", &key(2))));
    assert_eq!(known.check("a", 2222, None, &key(1)), trusted_at(1));
    assert!(matches!(
        known.check("a", 2222, None, &key(2)),
        Verdict::Changed { .. }
    ));
    let by_name = Verdict::Trusted {
        at: location_at(2),
        without_port: true,
    };
    assert_eq!(known.check("a", 2200, None, &key(2)), by_name);
    assert_eq!(known.check("a", 2200, None, &key(3)), Verdict::Unknown);
}

#[test]
fn an_alias_replaces_name_and_port() {
    let known = known_hosts_with(&line("cluster", &key(1)));
    assert_eq!(
        known.check("node7", 2222, Some("Cluster"), &key(1)),
        trusted_at(1)
    );
    assert_eq!(known.check("node7", 22, None, &key(1)), Verdict::Unknown);
}

#[test]
fn a_revoked_key_is_never_trusted_even_where_it_is_listed() {
    let known = known_hosts_with(&(line("a", &key(1)) + &line("@revoked *", &key(1)) + &line("a", &key(2))));
    assert_eq!(
        known.check("a", 22, None, &key(1)),
        Verdict::Revoked { at: location_at(2) }
    );
    assert_eq!(known.check("a", 22, None, &key(2)), trusted_at(3));
    assert_eq!(
        known.check("other", 2222, None, &key(1)),
        Verdict::Revoked { at: location_at(2) }
    );
}

#[test]
fn a_cert_authority_line_trusts_no_plain_key() {
    let known = known_hosts_with(&line("@cert-authority *", &key(1)));
    assert_eq!(known.check("a", 22, None, &key(1)), Verdict::Unknown);
    assert_eq!(
        known.key_types_for("a"),
        KnownTypes {
            plain: vec![],
            cert_authority: true
        }
    );
}

#[test]
fn bad_lines_are_skipped_and_kept_for_messages() {
    let content = "# comment\r\n\n1024 35 123456 old@rsa1\n@unknown a ssh-ed25519 AAAA\n|1|x|y ssh-rsa AAAA\n"
        .to_owned()
        + &line("a", &key(1)).replace('\n', " a comment\r\n") + "a ssh-rsa";
    let known = known_hosts_with(&content);
    assert_eq!(known.check("a", 22, None, &key(1)), trusted_at(6));
    let lines: Vec<String> = known.problems().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].starts_with("hosts:3: "), "{lines:?}");
    assert!(lines[3].starts_with("hosts:7: "), "{lines:?}");
}

#[test]
fn a_huge_line_is_skipped_and_the_next_one_read() {
    let content = "x".repeat(MAX_LINE + 1) + "\n" + &line("a", &key(1));
    assert_eq!(
        known_hosts_with(&content).check("a", 22, None, &key(1)),
        trusted_at(2)
    );
}

#[test]
fn algorithms_that_can_be_verified_come_first() {
    let offered = [
        "ssh-ed25519-cert-v01@openssh.com",
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "rsa-sha2-512",
    ];
    let order = |content: &str| known_hosts_with(content).order_algorithms("a", &offered);
    assert_eq!(order(""), offered);
    assert_eq!(
        order(&line("a", &rsa_key(1))),
        [
            "rsa-sha2-512",
            "ssh-ed25519-cert-v01@openssh.com",
            "ssh-ed25519",
            "ecdsa-sha2-nistp256"
        ]
    );
    assert_eq!(order(&(line("a", &rsa_key(1)) + &line("a", &key(1)))), offered);
    assert_eq!(
        order(&(line("a", &rsa_key(1)) + &line("@cert-authority *", &key(1)))),
        [
            "ssh-ed25519-cert-v01@openssh.com",
            "rsa-sha2-512",
            "ssh-ed25519",
            "ecdsa-sha2-nistp256"
        ]
    );
    assert_eq!(
        order(&(line("a", &rsa_key(1)) + &line("@revoked a", &rsa_key(1)))),
        offered
    );
}

#[test]
fn names_hashed_by_ssh_keygen_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("known_hosts");
    std::fs::write(
        &file,
        line("a.example", &key(1)) + &line("[b.example]:2222", &key(2)),
    )
    .unwrap();
    let ran = Command::new("ssh-keygen").arg("-H").arg("-f").arg(&file).output();
    assert!(ran.expect("this test needs ssh-keygen").status.success());
    assert!(std::fs::read(&file).unwrap().starts_with(b"|1|"));
    let known = KnownHosts::load(&[&file]);
    assert!(matches!(
        known.check("A.example", 22, None, &key(1)),
        Verdict::Trusted { .. }
    ));
    assert!(matches!(
        known.check("b.example", 2222, None, &key(2)),
        Verdict::Trusted { .. }
    ));
    assert_eq!(known.check("b.example", 22, None, &key(2)), Verdict::Unknown);
}

#[test]
fn names_are_told_where_they_can_be_connected_to() {
    let lines = format!(
        "web1,10.0.0.1 ssh-ed25519 {key}\n[web2]:2222 ssh-ed25519 {key}\n*.example ssh-ed25519 {key}\n\
         @cert-authority web3 ssh-ed25519 {key}\n|1|{hash}|{hash} ssh-ed25519 {key}\n",
        key = STANDARD.encode(key(1)),
        hash = STANDARD.encode([0; 20]),
    );
    assert_eq!(known_hosts_with(&lines).names(), ["web1", "10.0.0.1"]);
}

#[test]
fn a_missing_file_is_empty_and_an_unreadable_one_is_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let known = KnownHosts::load(&[directory.path().join("none"), directory.path().to_owned()]);
    assert_eq!(known.check("a", 22, None, &key(1)), Verdict::Unknown);
    assert_eq!(known.problems().count(), 1);
}

#[test]
fn a_revocation_list_names_its_keys_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("revoked");
    std::fs::write(
        &file,
        format!("# lost\nssh-ed25519 {} old\n", STANDARD.encode(key(1))),
    )
    .unwrap();
    let revoked = RevokedKeys::load(&file).unwrap();
    assert_eq!(revoked.location_of(&key(1)).map(|at| at.line), Some(2));
    assert_eq!(revoked.location_of(&key(2)), None);
    std::fs::write(&file, b"SSHKRL\n\0binary").unwrap();
    assert!(matches!(
        RevokedKeys::load(&file),
        Err(KnownHostsError::NotAKeyList { .. })
    ));
    assert!(RevokedKeys::load(&directory.path().join("none")).is_err());
}

proptest! {
    #[test]
    fn no_content_panics(content: Vec<u8>, name: String, port: u16) {
        let mut known = KnownHosts::default();
        known.add_file(Path::new("f"), &content);
        let _ = known.check(&name, port, None, &content);
    }

    #[test]
    fn no_line_of_plausible_words_panics(words in "(@revoked |@cert-authority |\\|1\\|[A-Za-z0-9+/=|]{0,60} )?[a-z*?!,\\[\\]:]{0,20} (ssh-rsa|ssh-ed25519) [A-Za-z0-9+/=]{0,80}") {
        known_hosts_with(&words).check("a", 22, None, b"x");
    }

    #[test]
    fn a_pattern_matches_as_its_plain_definition_says(name in "[ab.]{0,8}", pattern in "[ab.*?]{0,8}") {
        fn plainly(name: &[u8], pattern: &[u8]) -> bool {
            match pattern.split_first() {
                None => name.is_empty(),
                Some((b'*', rest)) => (0..=name.len()).any(|taken| plainly(&name[taken..], rest)),
                Some((b'?', rest)) => !name.is_empty() && plainly(&name[1..], rest),
                Some((c, rest)) => name.first() == Some(c) && plainly(&name[1..], rest),
            }
        }
        let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
        prop_assert_eq!(matches_pattern(name, pattern), plainly(name, pattern));
    }
}
