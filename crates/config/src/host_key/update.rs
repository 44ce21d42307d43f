//! UpdateHostKeys: learns a server's other keys from the one that is known (OpenSSH's PROTOCOL section 2.5,
//! `hostkeys-00@openssh.com`; clientloop.c, `client_input_hostkeys`).
//!
//! Each step has its type, so that nothing is learned without proof: [`KeyUpdate::plan`] compares the server's list
//! with the files, [`KeyUpdate::prove`] checks the server's signatures, and only [`ProvenUpdate::apply`] writes. A
//! program that only wants the keys proves them with [`UnprovenKeys`].

use super::{HostKeyError, Policy, Server, Trust};
use crate::keys;
use crate::known_hosts::{self, KnownHostsError, Marker};
use bytes::Bytes;
use std::path::PathBuf;
use trunkline_proto::signature::{self, fingerprint};
use trunkline_proto::wire::{Reader, Writer};

/// The most keys that a server may list; sshd has one for each type.
const MAX_KEYS: usize = 64;

/// The keys that a server lists as its own, before it has proven them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnprovenKeys(Vec<Bytes>);

impl UnprovenKeys {
    /// Reads the plain keys in `advertised`, the payload of a `hostkeys-00@openssh.com` request after `want_reply`.
    /// Returns `None` if it is damaged, too long or names a key twice.
    pub fn parse_advertised(advertised: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(advertised);
        let mut keys: Vec<Bytes> = Vec::new();
        while !reader.is_empty() {
            let key = reader.string().ok()?;
            // Certificates and unknown key types are skipped.
            if keys::key_type(key).is_none() {
                continue;
            }
            if keys.len() == MAX_KEYS || keys.iter().any(|known| known == key) {
                return None;
            }
            keys.push(Bytes::copy_from_slice(key));
        }
        Some(Self(keys))
    }

    /// Returns the payload, after `want_reply`, of the `hostkeys-prove-00@openssh.com` request to send with want_reply
    /// true; `None` if no key needs proof and [`prove`](Self::prove) takes an empty reply.
    pub fn proof_request(&self) -> Option<Bytes> {
        if self.0.is_empty() {
            return None;
        }
        Some(self.0.iter().fold(Writer::new(), Writer::string).finish())
    }

    /// Checks the server's reply, the payload of REQUEST_SUCCESS: one signature for each key, in the request's order.
    /// Returns the keys, without RSA keys that only SHA-1 proves. `host` is for the error.
    ///
    /// `host_key_algorithm` is the one of the key exchange: if it is an RSA algorithm, it must prove RSA keys, else
    /// SHA-2 must.
    ///
    /// # Errors
    /// [`HostKeyError::NotProven`] if a signature is missing, wrong or one too many.
    pub fn prove(
        self,
        host: &str,
        session_id: &[u8],
        host_key_algorithm: &str,
        reply: &[u8],
    ) -> Result<Vec<Bytes>, HostKeyError> {
        let not_proven = |reason: String| HostKeyError::NotProven {
            host: host.to_owned(),
            reason,
        };
        let rsa_algorithm = match keys::key_type_of_algorithm(host_key_algorithm) {
            Some("ssh-rsa") => Some(keys::signature_algorithm(host_key_algorithm)),
            _ => None,
        };
        let mut reader = Reader::new(reply);
        let mut proven = Vec::new();
        for key in self.0 {
            let proof = reader.string().map_err(|error| not_proven(error.to_string()))?;
            let key_type = signature::key_type(&key).map_err(|error| not_proven(error.to_string()))?;
            let made_with = Reader::new(proof)
                .name()
                .map_err(|error| not_proven(error.to_string()))?;
            let algorithm = match (key_type, rsa_algorithm) {
                ("ssh-rsa", Some(algorithm)) => algorithm,
                // An RSA key that only SHA-1 proves is left out; the others count.
                ("ssh-rsa", None) if !matches!(made_with, "rsa-sha2-256" | "rsa-sha2-512") => continue,
                ("ssh-rsa", None) => made_with,
                (other, _) => other,
            };
            let signed = Writer::new()
                .string("hostkeys-prove-00@openssh.com")
                .string(session_id)
                .string(&key)
                .finish();
            signature::verify(&key, algorithm, proof, &signed)
                .map_err(|error| not_proven(error.to_string()))?;
            proven.push(key);
        }
        reader.finish().map_err(|error| not_proven(error.to_string()))?;
        Ok(proven)
    }
}

/// The changes for a server's list of its keys, before the server has proven the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUpdate {
    names: Vec<String>,
    files: Vec<PathBuf>,
    hash: bool,
    /// The keys to prove, then add.
    unproven: UnprovenKeys,
    /// The keys that the server no longer has.
    remove: Vec<Bytes>,
}

impl KeyUpdate {
    /// Compares `advertised`, the payload of a `hostkeys-00@openssh.com` request after `want_reply`, with the user's
    /// files. For a host key accepted with [`may_update`](super::Accepted::may_update), once for each connection.
    /// [`may_update`](super::Accepted::may_update), and once a connection.
    ///
    /// `algorithms` is HostKeyAlgorithms: keys of other types are not learned, and are removed from the files, as ssh
    /// does (clientloop.c, `hostkeys_find`). Returns `None` if nothing is to be done, or if a person has to decide
    /// because the files say more than ssh writes: a wildcard or a longer list of names, a `@cert-authority` or
    /// `@revoked` line for the host, or one of the keys under another name.
    pub fn plan<S: AsRef<str>>(
        policy: &Policy,
        trust: &Trust,
        server: &Server<'_>,
        advertised: &[u8],
        algorithms: &[S],
    ) -> Option<Self> {
        let offered = UnprovenKeys::parse_advertised(advertised)?;
        let listed: Vec<&Bytes> = offered
            .0
            .iter()
            .filter(|key| is_accepted(key, algorithms) && trust.revoked.location_of(key).is_none())
            .collect();
        if listed.is_empty() {
            return None;
        }
        let mut names = vec![server.lookup_name()];
        names.extend(server.address_name(policy));

        let mut known: Vec<&Bytes> = Vec::new();
        let mut remove: Vec<Bytes> = Vec::new();
        for (at, line) in trust.known.lines() {
            if !policy.is_user_file(at) {
                continue;
            }
            let matching = names.iter().filter(|name| line.hosts.matches(name)).count();
            if matching == 0 {
                if line.marker == Marker::Plain && listed.contains(&&line.key) {
                    return None;
                }
                continue;
            }
            let is_partly_ours = line.hosts.is_list() && matching < names.len() && names.len() > 1;
            if line.marker != Marker::Plain || line.hosts.is_complex() || is_partly_ours {
                return None;
            }
            if listed.contains(&&line.key) {
                known.push(&line.key);
            } else if !remove.contains(&line.key) {
                remove.push(line.key.clone());
            }
        }
        // A key to remove must not stay under another name: half of the machine's lines would be outdated.
        let stands_elsewhere = trust.known.lines().any(|(at, line)| {
            policy.is_user_file(at)
                && remove.contains(&line.key)
                && !names.iter().any(|name| line.hosts.matches(name))
        });
        let unproven: Vec<Bytes> = listed
            .into_iter()
            .filter(|key| !known.contains(key))
            .cloned()
            .collect();
        if stands_elsewhere || (unproven.is_empty() && remove.is_empty()) {
            return None;
        }
        let (files, hash) = (policy.user_files.clone(), policy.hash_known_hosts);
        Some(Self {
            names,
            files,
            hash,
            unproven: UnprovenKeys(unproven),
            remove,
        })
    }

    /// Does the same as [`UnprovenKeys::proof_request`].
    pub fn proof_request(&self) -> Option<Bytes> {
        self.unproven.proof_request()
    }

    /// Checks the server's reply as [`UnprovenKeys::prove`] does.
    ///
    /// # Errors
    /// Those of [`UnprovenKeys::prove`].
    pub fn prove(
        self,
        session_id: &[u8],
        host_key_algorithm: &str,
        reply: &[u8],
    ) -> Result<ProvenUpdate, HostKeyError> {
        let host = &self.names[0];
        let add = self.unproven.prove(host, session_id, host_key_algorithm, reply)?;
        Ok(ProvenUpdate {
            names: self.names,
            files: self.files,
            hash: self.hash,
            add,
            remove: self.remove,
        })
    }
}

/// The changes to the user's files that the server has proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenUpdate {
    names: Vec<String>,
    files: Vec<PathBuf>,
    hash: bool,
    add: Vec<Bytes>,
    remove: Vec<Bytes>,
}

impl ProvenUpdate {
    /// Returns the changes, one line for each key, for the user.
    pub fn describe(&self) -> String {
        let line = |what: &str, key: &Bytes| {
            let kind = keys::display_name(signature::key_type(key).unwrap_or("unknown"));
            format!("{what} {kind} key {}\n", fingerprint(key))
        };
        let added = self.add.iter().map(|key| line("new", key));
        let removed = self.remove.iter().map(|key| line("gone:", key));
        added.chain(removed).collect()
    }

    /// Returns the question for `UpdateHostKeys ask`; only the answer `yes` agrees.
    pub fn question(&self) -> String {
        format!(
            "{} has changed its host keys, and the key it is known by vouches for that:\n{}Accept updated \
             hostkeys? (yes/no): ",
            self.names[0],
            self.describe()
        )
    }

    /// Changes the user's files: removes keys from all of them and adds keys to the first. Creates no file. Blocks.
    ///
    /// # Errors
    /// Those of [`known_hosts::update`]; the files before the one that failed have been changed.
    pub fn apply(&self) -> Result<bool, KnownHostsError> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let remove: Vec<&[u8]> = self.remove.iter().map(AsRef::as_ref).collect();
        let mut changed = false;
        for (index, file) in self.files.iter().enumerate().filter(|(_, file)| file.exists()) {
            let add: Vec<&[u8]> = match index {
                0 => self.add.iter().map(AsRef::as_ref).collect(),
                _ => Vec::new(),
            };
            changed |= known_hosts::update(file, &names, &add, &remove, self.hash)?;
        }
        Ok(changed)
    }
}

fn is_accepted<S: AsRef<str>>(key: &[u8], algorithms: &[S]) -> bool {
    keys::key_type(key).is_some_and(|key_type| {
        let names = keys::public_key_algorithms(key_type);
        algorithms
            .iter()
            .any(|algorithm| names.contains(&algorithm.as_ref()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::StrictHostKeyChecking::Yes;
    use super::super::tests::{SERVER, key, line, policy, trust};
    use super::*;
    use crate::keys::PrivateKey;
    use proptest::prelude::*;
    use std::fs;
    use std::process::Command;

    const ALGORITHMS: [&str; 3] = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512"];

    fn list(keys: &[&[u8]]) -> Bytes {
        keys.iter().fold(Writer::new(), Writer::string).finish()
    }

    fn plan(user: &str, advertised: &[&[u8]]) -> Option<KeyUpdate> {
        let trust = trust(&[("user", user.to_owned())]);
        KeyUpdate::plan(&policy(Yes), &trust, &SERVER, &list(advertised), &ALGORITHMS)
    }

    #[test]
    fn new_keys_are_to_be_proven_and_missing_ones_to_go() {
        let lines = line("host.example", &key(1)) + &line("host.example", &key(2));
        let update = plan(&lines, &[&key(1), &key(3)]).unwrap();
        assert_eq!((update.unproven.0, update.remove), (vec![key(3)], vec![key(2)]));
        assert_eq!(plan(&lines, &[&key(1), &key(2)]), None);
    }

    #[test]
    fn what_a_person_wrote_is_left_to_a_person() {
        let own = line("host.example", &key(1));
        for more in [
            line("*.example", &key(1)),
            line("host.example,b,c", &key(1)),
            line("@cert-authority *", &key(9)),
            line("@revoked host.example", &key(9)),
            // The new key stands under another name; so does the old key below.
            line("other.example", &key(3)),
        ] {
            assert_eq!(plan(&(own.clone() + &more), &[&key(1), &key(3)]), None, "{more}");
        }
        let old_elsewhere = own + &line("host.example", &key(2)) + &line("other.example", &key(2));
        assert_eq!(plan(&old_elsewhere, &[&key(1)]), None);
    }

    #[test]
    fn keys_that_are_not_accepted_are_not_learned_and_forgotten() {
        let dsa = Writer::new().string("ssh-dss").string("x").finish();
        let lines = line("host.example", &key(1)) + &line("host.example", &dsa);
        let update = plan(&lines, &[&key(1), &dsa]).unwrap();
        assert_eq!((update.unproven.0, update.remove), (vec![], vec![dsa.clone()]));
        assert_eq!(plan(&line("host.example", &key(1)), &[&dsa]), None);
    }

    #[test]
    fn a_list_that_repeats_itself_or_is_damaged_changes_nothing() {
        let lines = line("host.example", &key(1));
        assert_eq!(plan(&lines, &[&key(1), &key(3), &key(3)]), None);
        let cut = &list(&[&key(1), &key(3)])[..60];
        let trust = trust(&[("user", lines)]);
        assert_eq!(
            KeyUpdate::plan(&policy(Yes), &trust, &SERVER, cut, &ALGORITHMS),
            None
        );
    }

    /// A server with one key of each type, and the user's file, which has the first.
    struct Host {
        keys: Vec<PrivateKey>,
        directory: tempfile::TempDir,
    }

    impl Host {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let keys = [("ed25519", "256"), ("ecdsa", "256"), ("rsa", "2048")].map(|(kind, bits)| {
                let made = Command::new("ssh-keygen")
                    .args(["-q", "-t", kind, "-b", bits, "-N", "", "-f", kind])
                    .current_dir(directory.path())
                    .status();
                assert!(made.expect("this test needs ssh-keygen").success());
                PrivateKey::load(&directory.path().join(kind), None).unwrap()
            });
            let known = line("host.example", keys[0].public_blob()) + &line("host.example", &key(7));
            fs::write(directory.path().join("user"), known + "# end\n").unwrap();
            Self {
                keys: keys.into(),
                directory,
            }
        }

        fn plan(&self) -> KeyUpdate {
            let user_files = vec![
                self.directory.path().join("user"),
                self.directory.path().join("none"),
            ];
            let policy = Policy {
                user_files,
                global_files: vec![],
                ..policy(Yes)
            };
            let blobs: Vec<&[u8]> = self.keys.iter().map(|key| &key.public_blob()[..]).collect();
            let trust = policy.load().unwrap();
            KeyUpdate::plan(&policy, &trust, &SERVER, &list(&blobs), &ALGORITHMS).unwrap()
        }

        fn proof(&self, session_id: &[u8], rsa: &str) -> Bytes {
            let proofs = self.keys[1..].iter().map(|key| {
                let signed = Writer::new()
                    .string("hostkeys-prove-00@openssh.com")
                    .string(session_id)
                    .string(key.public_blob())
                    .finish();
                let algorithm = if key.algorithm() == "ssh-rsa" {
                    rsa
                } else {
                    key.algorithm()
                };
                key.sign(algorithm, &signed).unwrap()
            });
            proofs.fold(Writer::new(), Writer::string).finish()
        }
    }

    #[test]
    fn proven_keys_replace_those_that_are_gone() {
        let host = Host::new();
        let update = host.plan();
        let asked = update.proof_request().unwrap();
        assert_eq!(
            asked,
            list(&[host.keys[1].public_blob(), host.keys[2].public_blob()])
        );
        let proven = update
            .prove(b"id", "ssh-ed25519", &host.proof(b"id", "rsa-sha2-256"))
            .unwrap();
        assert_eq!((proven.add.len(), &proven.remove[..]), (2, &[key(7)][..]));
        assert!(
            proven.question().contains("new RSA key SHA256:"),
            "{}",
            proven.question()
        );
        assert!(proven.apply().unwrap());
        let own = |index: usize| line("host.example", host.keys[index].public_blob());
        let now = fs::read_to_string(host.directory.path().join("user")).unwrap();
        assert_eq!(now, own(0) + "# end\n" + &own(1) + &own(2));
        assert!(!host.directory.path().join("none").exists());
    }

    #[test]
    fn nothing_is_learned_from_a_proof_that_is_not_whole() {
        let host = Host::new();
        let good = host.proof(b"id", "rsa-sha2-512");
        let long = Writer::new().raw(&good).string("more").finish();
        let swapped: Vec<Bytes> = {
            let mut reader = Reader::new(&good);
            let (a, b) = (reader.string().unwrap(), reader.string().unwrap());
            vec![Writer::new().string(b).string(a).finish()]
        };
        for (bad, id) in [
            (&good[..good.len() - 1], &b"id"[..]),
            (&good[..], b"another session"),
            (&long[..], b"id"),
            (&swapped[0][..], b"id"),
            (b"", b"id"),
        ] {
            let refused = host.plan().prove(id, "ssh-ed25519", bad);
            assert!(
                matches!(refused, Err(HostKeyError::NotProven { .. })),
                "{refused:?}"
            );
        }
        // If the key exchange used RSA, its algorithm counts.
        assert!(host.plan().prove(b"id", "rsa-sha2-512", &good).is_ok());
        assert!(host.plan().prove(b"id", "rsa-sha2-256", &good).is_err());
    }

    proptest! {
        #[test]
        fn no_list_and_no_proof_panics(advertised: Vec<u8>, reply: Vec<u8>) {
            let trust = trust(&[("user", line("host.example", &key(1)))]);
            let _ = KeyUpdate::plan(&policy(Yes), &trust, &SERVER, &advertised, &ALGORITHMS);
            let update = plan(&line("host.example", &key(1)), &[&key(1), &key(3)]).unwrap();
            prop_assert!(update.prove(b"id", "ssh-ed25519", &reply).is_err());
        }
    }
}
