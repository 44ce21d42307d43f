//! UpdateHostKeys: learning a server's other keys from the one that is known (OpenSSH's PROTOCOL section 2.5,
//! `hostkeys-00@openssh.com`; clientloop.c, `client_input_hostkeys`).
//!
//! The steps are types, so that nothing is learned without proof: [`KeyUpdate::plan`] compares the server's
//! list with the files, [`KeyUpdate::prove`] checks the server's signatures, and only [`ProvenUpdate::apply`]
//! writes.

use super::{HostKeyError, Policy, Server, Trust};
use crate::keys;
use crate::known_hosts::{self, KnownHostsError, Marker};
use bytes::Bytes;
use std::path::PathBuf;
use trunkline_proto::signature::{self, fingerprint};
use trunkline_proto::wire::{Reader, Writer};

/// The most keys a server may list; sshd has one for each type, a handful.
const MAX_KEYS: usize = 64;

/// What a server's list of its keys would change, before the server has proven that it has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUpdate {
    names: Vec<String>,
    files: Vec<PathBuf>,
    hash: bool,
    /// Keys to be proven, then added.
    unproven: Vec<Bytes>,
    /// Keys the server no longer has.
    remove: Vec<Bytes>,
}

impl KeyUpdate {
    /// Compares `advertised`, the payload of a `hostkeys-00@openssh.com` request behind `want_reply`, with the user's
    /// files. To be called only if the host key was accepted with
    /// [`may_update`](super::Accepted::may_update), and once a connection.
    ///
    /// `algorithms` is HostKeyAlgorithms: keys of other types are not learned, but not forgotten either.
    /// Returns `None` when there is nothing to do, or when the files say more than ssh writes itself and a
    /// person has to decide: a wildcard or a longer list of names, a `@cert-authority` or `@revoked` line for
    /// the host, or one of the keys under another name.
    pub fn plan<S: AsRef<str>>(
        policy: &Policy,
        trust: &Trust,
        server: &Server<'_>,
        advertised: &[u8],
        algorithms: &[S],
    ) -> Option<Self> {
        let offered = parse_advertised(advertised)?;
        let listed: Vec<&Bytes> = offered
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
            if offered.contains(&line.key) {
                known.push(&line.key);
            } else if !remove.contains(&line.key) {
                remove.push(line.key.clone());
            }
        }
        // A key that goes must not stand under another name: the same machine would be known by halves.
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
            unproven,
            remove,
        })
    }

    /// The payload of the `hostkeys-prove-00@openssh.com` request to send (want_reply true), behind its
    /// `want_reply`; `None` if there is nothing to prove and [`prove`](Self::prove) takes an empty reply.
    pub fn proof_request(&self) -> Option<Bytes> {
        if self.unproven.is_empty() {
            return None;
        }
        Some(self.unproven.iter().fold(Writer::new(), Writer::string).finish())
    }

    /// Checks the server's reply, the payload of REQUEST_SUCCESS: one signature a key, in the request's order.
    ///
    /// `host_key_algorithm` is the one of the key exchange: where that is RSA, RSA keys must be proven with
    /// it, else with SHA-2.
    ///
    /// # Errors
    /// [`HostKeyError::NotProven`] if a signature is missing, wrong or one too many.
    pub fn prove(
        self,
        session_id: &[u8],
        host_key_algorithm: &str,
        reply: &[u8],
    ) -> Result<ProvenUpdate, HostKeyError> {
        let host = self.names[0].clone();
        let not_proven = |reason: String| HostKeyError::NotProven {
            host: host.clone(),
            reason,
        };
        let rsa_algorithm = match keys::key_type_of_algorithm(host_key_algorithm) {
            Some("ssh-rsa") => Some(keys::signature_algorithm(host_key_algorithm)),
            _ => None,
        };
        let mut reader = Reader::new(reply);
        let mut add = Vec::new();
        for key in self.unproven {
            let proof = reader.string().map_err(|error| not_proven(error.to_string()))?;
            let key_type = signature::key_type(&key).map_err(|error| not_proven(error.to_string()))?;
            let made_with = Reader::new(proof)
                .name()
                .map_err(|error| not_proven(error.to_string()))?;
            let algorithm = match (key_type, rsa_algorithm) {
                ("ssh-rsa", Some(algorithm)) => algorithm,
                // An RSA key that can only be proven with SHA-1 is left out; the others count.
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
            add.push(key);
        }
        reader.finish().map_err(|error| not_proven(error.to_string()))?;
        Ok(ProvenUpdate {
            names: self.names,
            files: self.files,
            hash: self.hash,
            add,
            remove: self.remove,
        })
    }
}

/// Changes to the user's files that the server has proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenUpdate {
    names: Vec<String>,
    files: Vec<PathBuf>,
    hash: bool,
    add: Vec<Bytes>,
    remove: Vec<Bytes>,
}

impl ProvenUpdate {
    /// The keys that will be added.
    pub fn added(&self) -> &[Bytes] {
        &self.add
    }

    /// The keys that will be removed.
    pub fn removed(&self) -> &[Bytes] {
        &self.remove
    }

    /// What will change, one line for each key, for the user.
    pub fn describe(&self) -> String {
        let line = |what: &str, key: &Bytes| {
            let kind = keys::display_name(signature::key_type(key).unwrap_or("unknown"));
            format!("{what} {kind} key {}\n", fingerprint(key))
        };
        let added = self.add.iter().map(|key| line("new", key));
        let removed = self.remove.iter().map(|key| line("gone:", key));
        added.chain(removed).collect()
    }

    /// The question for `UpdateHostKeys ask`; `yes` is the only yes.
    pub fn question(&self) -> String {
        format!(
            "{} has changed its host keys, and the key it is known by vouches for that:\n{}Accept updated \
             hostkeys? (yes/no): ",
            self.names[0],
            self.describe()
        )
    }

    /// Changes the user's files: keys are removed from all of them and added to the first, and no file is created.
    /// Blocks.
    ///
    /// # Errors
    /// As [`known_hosts::update`]; the files before the one that failed have been changed.
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

/// The plain keys in the list; `None` if it is damaged, too long or names a key twice.
fn parse_advertised(payload: &[u8]) -> Option<Vec<Bytes>> {
    let mut reader = Reader::new(payload);
    let mut keys: Vec<Bytes> = Vec::new();
    while !reader.is_empty() {
        let key = reader.string().ok()?;
        // Certificates, and types of servers newer than this program, are passed over.
        if keys::key_type(key).is_none() {
            continue;
        }
        if keys.len() == MAX_KEYS || keys.iter().any(|known| known == key) {
            return None;
        }
        keys.push(Bytes::copy_from_slice(key));
    }
    Some(keys)
}

fn is_accepted<S: AsRef<str>>(key: &[u8], algorithms: &[S]) -> bool {
    keys::key_type(key).is_some_and(|key_type| {
        let names = keys::public_key_algorithms(key_type);
        algorithms
            .iter()
            .any(|algorithm| names.contains(&algorithm.as_ref()))
    })
}
