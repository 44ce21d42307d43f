//! Shows the same host keys to the real ssh and to [`decide`]: both must decide and write the same.

use super::StrictHostKeyChecking::{AcceptNew, No, Yes};
use super::tests::{SERVER, key, line, policy, trust};
use super::{Decision, HostKeyError, Policy, Server, decide};
use crate::{keys, known_hosts};
use bytes::Bytes;
use std::process::Command;

/// The real ssh, which talks to a real sshd through a pipe (`sshd -i`), and the same decision here.
struct SideBySide {
    directory: tempfile::TempDir,
    shown: Bytes,
    algorithm: &'static str,
    proxy: String,
    /// The contents of the `RevokedHostKeys` file, if it exists.
    revoked: Option<String>,
}

impl SideBySide {
    /// Makes an sshd with one Ed25519 key, and with `certified` a certificate for the principal `host.example`.
    fn new(certified: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let run = |args: &[&str]| {
            let ran = Command::new("ssh-keygen")
                .args(args)
                .current_dir(directory.path())
                .status();
            assert!(ran.expect("this test needs ssh-keygen").success());
        };
        for name in ["host", "ca"] {
            run(&["-q", "-t", "ed25519", "-N", "", "-f", name]);
        }
        run(&[
            "-q",
            "-s",
            "ca",
            "-I",
            "id",
            "-h",
            "-n",
            "host.example",
            "host.pub",
        ]);
        run(&["-q", "-s", "ca", "-I", "id", "-h", "-n", "ca.example", "ca.pub"]);
        trunkline_testkit::make_privilege_separation_directory().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let mut proxy = format!("/usr/sbin/sshd -i -f /dev/null -o UsePAM=no -h {}", path("host"));
        if certified {
            proxy.push_str(&format!(" -o HostCertificate={}", path("host-cert.pub")));
        }
        let (name, algorithm) = match certified {
            true => ("host-cert.pub", "ssh-ed25519-cert-v01@openssh.com"),
            false => ("host.pub", "ssh-ed25519"),
        };
        let shown = keys::PublicKey::parse(&std::fs::read(path(name)).unwrap())
            .unwrap()
            .blob;
        Self {
            directory,
            shown,
            algorithm,
            proxy,
            revoked: None,
        }
    }

    fn blob(&self, name: &str) -> Bytes {
        let file = self.directory.path().join(name);
        keys::PublicKey::parse(&std::fs::read(file).unwrap())
            .unwrap()
            .blob
    }

    /// Has both decide under every policy that asks nobody, and compares their decisions and the files they write.
    fn agree(&self, known_hosts: &str, port: u16, alias: Option<&str>) {
        for (strict, name) in [(Yes, "yes"), (AcceptNew, "accept-new"), (No, "no")] {
            let (theirs, ours) = (
                self.directory.path().join("theirs"),
                self.directory.path().join("ours"),
            );
            for file in [&theirs, &ours] {
                std::fs::write(file, known_hosts).unwrap();
            }
            let revoked_file = self.revoked.as_ref().map(|lines| {
                let file = self.directory.path().join("revoked");
                std::fs::write(&file, lines).unwrap();
                file
            });
            let ssh = Command::new("ssh")
                .args([
                    "-F",
                    "/dev/null",
                    "-o",
                    "BatchMode=yes",
                    "-o",
                    "GlobalKnownHostsFile=/dev/null",
                ])
                .args(["-o", "PreferredAuthentications=none", "-o", "IdentityAgent=none"])
                .arg(format!("-oProxyCommand={}", self.proxy))
                .arg(format!("-oUserKnownHostsFile={}", theirs.display()))
                // From OpenSSH 9.9 on, ssh looks at a certificate's plain key only if this list has its algorithm, too.
                .arg(format!("-oHostKeyAlgorithms={},ssh-ed25519", self.algorithm))
                .arg(format!("-oStrictHostKeyChecking={name}"))
                .args(alias.map(|alias| format!("-oHostKeyAlias={alias}")))
                .args(
                    revoked_file
                        .iter()
                        .map(|file| format!("-oRevokedHostKeys={}", file.display())),
                )
                .args(["-p", &port.to_string(), "Host.Example", "true"])
                .output()
                .expect("this test needs ssh");
            let said = String::from_utf8_lossy(&ssh.stderr);
            let accepted = said.contains("Permission denied");
            assert!(
                accepted || said.contains("Host key verification failed"),
                "this test needs sshd: {said}"
            );

            let policy = Policy {
                user_files: vec![ours.clone()],
                global_files: vec![],
                revoked_file,
                ..policy(strict)
            };
            let server = Server {
                name: "Host.Example",
                port,
                alias,
                address: None,
            };
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap()
                .as_secs();
            let decision = decide(&policy, &policy.load().unwrap(), &server, &self.shown, now);
            let case =
                format!("{name} port {port} alias {alias:?}:\n{known_hosts}\n{decision:?}\nssh: {said}");
            assert_eq!(accepted, !matches!(decision, Decision::Reject(_)), "{case}");
            if let Decision::AcceptAndRemember(_, remember) = decision {
                remember.write().unwrap();
            }
            assert_eq!(
                std::fs::read_to_string(theirs).unwrap(),
                std::fs::read_to_string(ours).unwrap(),
                "{case}"
            );
        }
    }
}

#[test]
fn ssh_itself_decides_the_same_about_plain_keys() {
    let both = SideBySide::new(false);
    let (own, other, certificate) = (both.shown.clone(), key(2), both.blob("host-cert.pub"));
    let salted = {
        let file = both.directory.path().join("hashed");
        known_hosts::append(&file, &["host.example"], &own, true).unwrap();
        std::fs::read_to_string(file).unwrap()
    };
    let mistyped = line("host.example", &own).replace(" ssh-ed25519", " ssh-rsa");
    for known_hosts in [
        String::new(),
        line("host.example", &own),
        line("host.example", &other),
        line("host.example", &other) + &line("host.example", &own),
        line("elsewhere", &own),
        line("*.EXAMPLE,!other.example", &own),
        line("*.example,!host.example", &own),
        line("!host.example", &own),
        line("ho?t.example", &own),
        line("[host.example]:2222", &own),
        line("[host.example]:2222", &other) + &line("host.example", &own),
        line("[host.example]:*", &own),
        line("@revoked *", &other) + &line("host.example", &own),
        line("@revoked *", &own),
        line("@cert-authority *", &own),
        line("@revoked @revoked host.example", &own),
        line("@revoked *", &certificate) + &line("host.example", &own),
        line("host.example", &certificate),
        line("@unknown host.example", &own),
        salted,
        mistyped,
        "\t ".to_owned() + &line("host.example", &own).replace(' ', "\t"),
        line("host.example", &own).replace('\n', "\r\n"),
        line("host.example", &own).replace('\n', " a comment\r\n"),
        "host.example\nhost.example ssh-ed25519\n# comment\n\n".to_owned() + &line("host.example", &own),
    ] {
        both.agree(&known_hosts, 22, None);
        both.agree(&known_hosts, 2222, None);
    }
    // On port 22 only: on another port, ssh warns of the key that is revoked for the name without port, then takes it
    // for a new host's. Trunkline keeps refusing it.
    let revoked = line("@revoked host.example", &own) + &line("host.example", &own);
    both.agree(&revoked, 22, None);
    let other_port = Server { port: 2222, ..SERVER };
    let decision = decide(
        &policy(AcceptNew),
        &trust(&[("user", revoked)]),
        &other_port,
        &own,
        0,
    );
    assert!(
        matches!(decision, Decision::Reject(HostKeyError::Revoked { .. })),
        "{decision:?}"
    );
    both.agree(&line("alias", &own), 2222, Some("alias"));
    both.agree(&line("host.example", &own), 22, Some("alias"));
}

#[test]
fn ssh_itself_decides_the_same_about_certificates() {
    let both = SideBySide::new(true);
    let (own, ca, other) = (both.blob("host.pub"), both.blob("ca.pub"), key(2));
    let (certificate, certified_ca) = (both.blob("host-cert.pub"), both.blob("ca-cert.pub"));
    for known_hosts in [
        String::new(),
        line("@cert-authority *.example", &ca),
        line("@cert-authority [host.example]:2222", &ca),
        line("@cert-authority host.example", &other),
        line("@cert-authority host.example", &other) + &line("host.example", &own),
        line("host.example", &ca),
        line("host.example", &own),
        line("host.example", &other),
        line("host.example", &other) + &line("@cert-authority *", &ca),
        line("@revoked *", &ca) + &line("@cert-authority *", &ca),
        line("@revoked *", &own) + &line("@cert-authority *", &ca),
        line("@revoked *", &ca) + &line("host.example", &own),
        // If a line holds a certificate, the key in it counts.
        line("@revoked *", &certificate) + &line("@cert-authority *", &ca),
        line("@revoked elsewhere", &certificate) + &line("@cert-authority *", &ca),
        line("@revoked *", &certified_ca) + &line("@cert-authority *", &ca),
        line("@cert-authority *", &certified_ca),
        line("host.example", &certificate),
        line("host.example", &certificate) + &line("host.example", &own),
    ] {
        both.agree(&known_hosts, 22, None);
        both.agree(&known_hosts, 2222, None);
    }
    // The alias is not among the certificate's names.
    both.agree(&line("@cert-authority *", &ca), 22, Some("alias"));
    both.agree(
        &(line("@cert-authority *", &ca) + &line("alias", &own)),
        22,
        Some("alias"),
    );
}

#[test]
fn ssh_itself_decides_the_same_about_a_revocation_files_lines() {
    for certified in [false, true] {
        let mut both = SideBySide::new(certified);
        let line = |blob: &Bytes| line("", blob).trim_start().to_owned();
        let named = |name: &str| line(&both.blob(name));
        let revoked: Vec<String> = ["host.pub", "host-cert.pub", "ca.pub", "ca-cert.pub"]
            .map(named)
            .into();
        let known_hosts = super::tests::line("@cert-authority *", &both.blob("ca.pub"))
            + &super::tests::line("host.example", &both.blob("host.pub"));
        let own = named("host.pub");
        let shapes = [
            own.replace(' ', "  "),
            own.replace(' ', "\t"),
            format!(" \t{own}"),
            own.replace('\n', "\r\n"),
            format!("# revoked\n\n{own}"),
            format!("{}\n{own}", line(&key(2)).replace(' ', " \t ")),
            format!("{} a comment\t of words\n", own.trim_end()),
        ];
        let none = [line(&key(2)), String::new()];
        for lines in revoked.into_iter().chain(none).chain(shapes) {
            both.revoked = Some(lines);
            both.agree(&known_hosts, 22, None);
        }
    }
}
