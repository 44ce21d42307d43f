//! The keys to log in with: from the agent and from files, in the order in which OpenSSH's client tries them.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use bytes::Bytes;
use trunkline_proto::certificate::Certificate;
use trunkline_proto::signature::fingerprint;
use trunkline_proto::wire::Reader;
use zeroize::Zeroizing;

use crate::agent::{Agent, AgentError, Constraints, Identity};
use crate::config::{HostConfig, KeyUsed};
use crate::connection::login::KeySigner;
use crate::error::{Error, io_words};
use crate::interaction::{Interaction, LogLevel};
use crate::keys::{self, KeyError, KeyFile, PublicKey};
use crate::prompt::{self, Answerer, Prompt, PromptKind};

/// A key that may be offered to the server.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The public key or certificate to offer.
    pub(crate) blob: Bytes,
    /// Its type, the first string in the blob.
    pub(crate) key_type: String,
    signer: Signer,
    /// Other files with the same key, in case the first cannot be used.
    copies: Vec<KeyFile>,
}

#[derive(Debug, Clone)]
enum Signer {
    /// The agent signs with the key or certificate of this blob.
    Agent(Bytes),
    File(Box<KeyFile>),
    /// A file that had to be opened to learn its public half.
    Opened(Box<KeyFile>, Arc<keys::PrivateKey>),
    /// The program signs.
    Program(Arc<dyn KeySigner>),
}

impl Candidate {
    /// Returns the digest that host memory keeps of it.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(digest::digest(&digest::SHA256, &self.blob).as_ref());
        out
    }

    /// Returns its description once it was accepted.
    pub(crate) fn as_used(&self) -> KeyUsed {
        let from = match &self.signer {
            Signer::Agent(_) => "agent".to_owned(),
            Signer::File(file) | Signer::Opened(file, _) => file.path().display().to_string(),
            Signer::Program(_) => "program".to_owned(),
        };
        KeyUsed {
            digest: self.digest(),
            shown: format!(
                "{} {} ({from})",
                keys::display_name(&self.key_type),
                fingerprint(&self.blob)
            ),
        }
    }

    /// Returns whether it has to be [opened](Identities::open) before it can be offered: a passphrase protects the
    /// public half, too.
    pub(crate) fn is_sealed(&self) -> bool {
        self.blob.is_empty()
    }

    /// Returns whether a signature requires a touch.
    pub(crate) fn wants_touch(&self) -> bool {
        self.key_type.starts_with("sk-")
    }

    /// Returns whether an agent signs with it.
    pub(crate) fn is_agents(&self) -> bool {
        matches!(self.signer, Signer::Agent(_))
    }

    /// Returns whether it can sign without a prompt or a touch.
    pub(crate) fn signs_quietly(&self) -> bool {
        !self.wants_touch()
            && match &self.signer {
                Signer::Agent(_) | Signer::Opened(..) => true,
                Signer::File(file) => !file.is_encrypted(),
                Signer::Program(_) => false,
            }
    }
}

/// The name of the key in ssh's log.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.signer {
            Signer::File(file) | Signer::Opened(file, _) => Some(file.path().display()),
            Signer::Agent(_) | Signer::Program(_) => None,
        };
        match path {
            Some(path) => write!(f, "{path}")?,
            None => f.write_str("of the agent")?,
        }
        if self.is_sealed() {
            return f.write_str(" (encrypted)");
        }
        write!(
            f,
            " {} {}",
            keys::display_name(&self.key_type),
            fingerprint(&self.blob)
        )
    }
}

/// An agent that takes longer than this for a signature has waited for a confirmation or a touch: no person is faster.
/// Misjudging a slow agent costs only further connections, not prompts.
const THOUGHT: Duration = Duration::from_millis(500);

/// The candidates for one host, and the agent that signs for some of them.
pub(crate) struct Identities {
    pub(crate) candidates: VecDeque<Candidate>,
    /// Notes about identities that were left out, shown if the log-in fails.
    pub(crate) notes: Vec<String>,
    /// The notes that were already shown.
    pub(crate) told: Vec<String>,
    /// Keys that only ssh signs with.
    pub(crate) only_ssh: OnlySsh,
    /// Unreadable files in the configuration's order, reported at their turn.
    unreadable: VecDeque<Unreadable>,
    agent: Option<Agent>,
    bound: bool,
    /// The one who has given a passphrase that the next log-in will need again.
    pub(crate) answered: Answerer,
    /// The agent seems to ask for signatures: it refused one, or took its time.
    pub(crate) agent_asks: bool,
    /// The user took their time and did not allow a signature.
    pub(crate) user_declined: bool,
    /// The key that was used last time, for which the agent did not ask.
    known_quiet: Option<[u8; 32]>,
}

/// A file of the configuration that cannot be read, with ssh's message (sshconnect2.c, `load_identity_file`).
#[derive(Debug)]
struct Unreadable {
    /// The note about it if the log-in fails.
    note: String,
    /// Its place among the configuration's files.
    at: usize,
    level: LogLevel,
    text: String,
}

/// The sources of the keys with which only ssh signs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OnlySsh {
    /// Among the files that the configuration names.
    pub(crate) named: bool,
    /// Among ssh's default files.
    pub(crate) default: bool,
}

/// The proof of the session that an agent signs for (PROTOCOL.agent, session-bind@openssh.com).
pub(crate) struct SessionProof<'a> {
    pub(crate) host_key: &'a [u8],
    pub(crate) session_id: &'a [u8],
    pub(crate) signature: &'a [u8],
}

impl Identities {
    /// Returns no identities.
    pub(crate) fn none() -> Self {
        Self {
            candidates: VecDeque::new(),
            notes: Vec::new(),
            told: Vec::new(),
            only_ssh: OnlySsh::default(),
            unreadable: VecDeque::new(),
            agent: None,
            bound: false,
            answered: Answerer::Nobody,
            agent_asks: false,
            user_declined: false,
            known_quiet: None,
        }
    }

    /// Returns identities for which the program signs.
    pub(crate) fn of_program(blobs: Vec<Bytes>, signer: &Arc<dyn KeySigner>) -> Self {
        let candidate = |blob: Bytes| {
            Some(Candidate {
                key_type: Reader::new(&blob).name().ok()?.to_owned(),
                blob,
                signer: Signer::Program(signer.clone()),
                copies: Vec::new(),
            })
        };
        Self {
            candidates: blobs.into_iter().filter_map(candidate).collect(),
            ..Self::none()
        }
    }

    /// Collects the program's keys, the agent's and those in files. Missing files and agents are only noted.
    pub(crate) async fn collect(host: &HostConfig, given: &[KeyFile]) -> Self {
        let mut notes = Vec::new();
        let (agent, held) = held_by_agent(host, &mut notes).await;
        let paths: Vec<(PathBuf, bool)> = host
            .identity_files
            .iter()
            .map(|file| (file.path.clone(), file.is_default))
            .collect();
        let certificate_paths = host.certificate_files.clone();
        let read = tokio::task::spawn_blocking(move || read_files(&paths, &certificate_paths));
        let KeyFiles {
            keys: read,
            certificates,
            refused,
            unreadable,
            notes: file_notes,
        } = read.await.unwrap_or_default();
        notes.extend(file_notes);
        let mut only_ssh = OnlySsh::default();
        for (path, algorithm) in refused {
            if host.accepts_key_type(&algorithm) {
                only_ssh.add(is_default(host, &path));
            }
        }
        let files: Vec<KeyFile> = given.iter().cloned().chain(read).collect();

        // sshconnect2.c, pubkey_prepare: certificates; agent keys that are configured; other agent keys; files.
        let mut ordered = Ordered::new(&held);
        ordered.add_certificates(&certificates, &files);
        for public in files.iter().filter_map(|file| file.public_key()) {
            if ordered.agent_has(&public.blob) {
                ordered.add(&public.blob, Signer::Agent(public.blob.clone()));
            }
        }
        if !host.identities_only {
            for identity in &held {
                ordered.add(&identity.blob, Signer::Agent(identity.blob.clone()));
            }
        }
        for file in &files {
            let Some(public) = file.public_key() else {
                // sshconnect2.c, `userauth_pubkey`: tried in its turn, with a prompt then.
                if file.has_private_half() {
                    ordered.add(&Bytes::new(), Signer::File(Box::new(file.clone())));
                }
                continue;
            };
            if let Some(why) = file.only_ssh_signs() {
                if ordered.agent_has(&public.blob) {
                    continue;
                }
                let path = file.path().display();
                notes.push(format!(
                    "{path} is {why}: add it to the agent (ssh-add), or use the system's ssh"
                ));
                if host.only_ssh_signs_with(file).is_some() {
                    only_ssh.add(is_default(host, file.path()));
                }
            } else if file.has_private_half() {
                ordered.add(&public.blob, Signer::File(Box::new(file.clone())));
            }
        }
        Self {
            candidates: ordered.candidates,
            notes,
            told: Vec::new(),
            only_ssh,
            unreadable,
            agent,
            bound: false,
            answered: Answerer::Nobody,
            agent_asks: false,
            user_declined: false,
            known_quiet: None,
        }
    }

    /// Moves the key that worked last time to the front, and returns whether it is there.
    pub(crate) fn prefer(&mut self, digest: &[u8; 32]) -> bool {
        let Some(at) = self
            .candidates
            .iter()
            .position(|candidate| candidate.digest() == *digest)
        else {
            return false;
        };
        if let Some(candidate) = self.candidates.remove(at) {
            self.candidates.push_front(candidate);
        }
        self.known_quiet = Some(*digest);
        true
    }

    /// Reports the unreadable files that precede this candidate; without one, all of them.
    pub(crate) fn tell_of_unreadable(
        &mut self,
        host: &HostConfig,
        interaction: &Interaction,
        candidate: Option<&Candidate>,
    ) {
        let place = match candidate.map(|candidate| &candidate.signer) {
            None => host.identity_files.len(),
            Some(Signer::File(file) | Signer::Opened(file, _)) => {
                let mut files = host.identity_files.iter();
                files.position(|named| named.path == file.path()).unwrap_or(0)
            }
            // Tried before all files.
            Some(Signer::Agent(_) | Signer::Program(_)) => 0,
        };
        while let Some(file) = self.unreadable.pop_front_if(|file| file.at < place) {
            interaction.log(file.level, &file.text);
            self.told.push(file.note);
        }
    }

    /// Opens a sealed candidate. Returns `None`, and notes it, if the user gives no passphrase.
    pub(crate) async fn open(
        &mut self,
        host: &HostConfig,
        interaction: &Interaction,
        sealed: Candidate,
    ) -> Option<Candidate> {
        let Signer::File(file) = sealed.signer else {
            return None;
        };
        let key = self.unlock(host, interaction, &file).await?;
        Some(Candidate {
            blob: key.public_blob().clone(),
            key_type: key.algorithm().to_owned(),
            signer: Signer::Opened(file, Arc::new(key)),
            copies: Vec::new(),
        })
    }

    /// Signs `data` with a candidate. Returns `None`, and notes why, if it cannot sign or is not unlocked.
    pub(crate) async fn sign(
        &mut self,
        host: &HostConfig,
        interaction: &Interaction,
        candidate: &Candidate,
        algorithm: &str,
        data: &[u8],
        proof: SessionProof<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let signature_algorithm = keys::signature_algorithm(algorithm).to_owned();
        match &candidate.signer {
            Signer::Agent(blob) => {
                if self.known_quiet != Some(candidate.digest()) && !interaction.stays().await {
                    let note =
                        "the agent was not asked for a signature: whoever wanted the connection has left";
                    self.notes.push(note.into());
                    return Ok(None);
                }
                let Some(agent) = &mut self.agent else {
                    return Ok(None);
                };
                if !std::mem::replace(&mut self.bound, true) {
                    // An agent that does not know the extension signs anyway.
                    let _ = agent
                        .bind_session(proof.host_key, proof.session_id, proof.signature, false)
                        .await;
                }
                let asked_at = Instant::now();
                let signed = agent.sign(blob, &signature_algorithm, data).await;
                let took_time = asked_at.elapsed() > THOUGHT;
                if signed.is_err() || took_time {
                    self.answered = Answerer::Person;
                    self.agent_asks = true;
                }
                self.user_declined |= took_time && matches!(signed, Err(AgentError::Refused { .. }));
                match signed {
                    Ok(signature) => Ok(Some(signature)),
                    Err(error) => {
                        self.notes.push(error.to_string());
                        Ok(None)
                    }
                }
            }
            Signer::Program(signer) => {
                let signed = signer.sign(&candidate.blob, &signature_algorithm, data).await;
                if signed.is_none() {
                    self.notes.push("the program did not sign".into());
                }
                Ok(signed)
            }
            Signer::File(_) | Signer::Opened(..) => {
                let opened = match &candidate.signer {
                    Signer::Opened(file, key) => Some((&**file, Arc::clone(key))),
                    Signer::File(file) => self.unlock_one(host, interaction, file, &candidate.copies).await,
                    Signer::Agent(_) | Signer::Program(_) => None,
                };
                let Some((file, key)) = opened else {
                    return Ok(None);
                };
                if host.add_keys_to_agent.add && self.give_to_agent(host, interaction, file, &key).await {
                    // From now on the agent signs.
                    self.answered = match host.add_keys_to_agent.confirm {
                        true => Answerer::Person,
                        false => Answerer::Nobody,
                    };
                }
                match key.sign(&signature_algorithm, data) {
                    Ok(signature) => Ok(Some(signature)),
                    Err(error) => {
                        self.notes.push(error.to_string());
                        Ok(None)
                    }
                }
            }
        }
    }

    /// Unlocks the first usable one of the files with one key.
    async fn unlock_one<'a>(
        &mut self,
        host: &HostConfig,
        interaction: &Interaction,
        first: &'a KeyFile,
        copies: &'a [KeyFile],
    ) -> Option<(&'a KeyFile, Arc<keys::PrivateKey>)> {
        for file in std::iter::once(first).chain(copies) {
            if let Some(key) = self.unlock(host, interaction, file).await {
                return Some((file, Arc::new(key)));
            }
        }
        None
    }

    async fn unlock(
        &mut self,
        host: &HostConfig,
        interaction: &Interaction,
        file: &KeyFile,
    ) -> Option<keys::PrivateKey> {
        let min_rsa_bits = host.required_rsa_size as usize;
        let mut passphrase: Option<Zeroizing<String>> = None;
        for _ in 0..=host.number_of_password_prompts {
            let file_to_open = file.clone();
            let given = passphrase.take();
            let opened = tokio::task::spawn_blocking(move || {
                file_to_open.unlock(given.as_ref().map(|passphrase| passphrase.as_str()), min_rsa_bits)
            });
            match opened.await.ok()? {
                Ok(key) => return Some(key),
                Err(KeyError::PassphraseNeeded { .. } | KeyError::WrongPassphrase { .. }) => {}
                Err(error) => {
                    // ssh can read these, or judges them differently.
                    let ssh_takes_it = match error {
                        KeyError::Cipher { .. } | KeyError::Cost { .. } | KeyError::Unsupported { .. } => {
                            true
                        }
                        KeyError::RsaSize { bits, .. } => bits >= min_rsa_bits,
                        _ => false,
                    };
                    if ssh_takes_it {
                        self.only_ssh.named = true;
                    } else {
                        interaction.warning(&error.to_string());
                        self.told.push(error.to_string());
                    }
                    self.notes.push(error.to_string());
                    return None;
                }
            }
            let text = format!("Enter passphrase for key '{}': ", file.path().display());
            let prompt = Prompt::new(PromptKind::Passphrase, text, false);
            match interaction.prompter().ask(&prompt).await {
                Some(answer) if !answer.is_empty() => {
                    self.answered = self.answered.max(interaction.prompter().answerer());
                    passphrase = Some(answer);
                }
                _ => break,
            }
        }
        self.notes.push(format!(
            "{} is encrypted and was not opened",
            file.path().display()
        ));
        None
    }

    /// Applies AddKeysToAgent, and returns whether the agent now has the key.
    async fn give_to_agent(
        &mut self,
        host: &HostConfig,
        interaction: &Interaction,
        file: &KeyFile,
        key: &keys::PrivateKey,
    ) -> bool {
        let wanted = &host.add_keys_to_agent;
        if wanted.ask {
            // As in ssh, with the comment that the agent will show.
            let path = file.path().display();
            let prompt = Prompt::new(
                PromptKind::Confirm,
                format!("Add key {path} ({path}) to agent?"),
                true,
            );
            let answer = interaction.prompter().ask(&prompt).await;
            if !prompt::allows(answer.as_deref().map(String::as_str)) {
                tracing::debug!(key = %path, "the user denied adding this key to the agent");
                return false;
            }
        }
        let constraints = Constraints {
            lifetime: wanted.lifetime,
            confirm: wanted.confirm,
        };
        let Some(agent) = &mut self.agent else {
            return false;
        };
        let comment = file.path().display().to_string();
        let added = agent.add(key, file.certificate(), &comment, constraints).await;
        if let Err(error) = &added {
            interaction.warning(&error.to_string());
        }
        added.is_ok()
    }
}

/// The candidates in the order found, each key once.
struct Ordered<'a> {
    candidates: VecDeque<Candidate>,
    /// The agent's keys.
    held: &'a [Identity],
}

impl<'a> Ordered<'a> {
    fn new(held: &'a [Identity]) -> Self {
        Self {
            candidates: VecDeque::new(),
            held,
        }
    }

    fn agent_has(&self, blob: &Bytes) -> bool {
        self.held.iter().any(|identity| identity.blob == *blob)
    }

    fn add(&mut self, blob: &Bytes, signer: Signer) {
        let mut known = self.candidates.iter_mut().filter(|known| !known.is_sealed());
        if let Some(known) = known.find(|known| known.blob == *blob) {
            if let (Signer::File(first), Signer::File(file)) = (&known.signer, &signer) {
                let mut same = std::iter::once(&**first).chain(&known.copies);
                if same.all(|other| other.path() != file.path()) {
                    known.copies.push((**file).clone());
                }
            }
            return;
        }
        let key_type = match Reader::new(blob).name() {
            Ok(name) => name,
            // Sealed.
            Err(_) if blob.is_empty() => "",
            Err(_) => return,
        };
        self.candidates.push_back(Candidate {
            blob: blob.clone(),
            key_type: key_type.to_owned(),
            signer,
            copies: Vec::new(),
        });
    }

    /// Adds the certificates for which there is a key: separate ones, and those beside key files.
    fn add_certificates(&mut self, certificates: &[PublicKey], files: &[KeyFile]) {
        let beside = files.iter().filter_map(|file| file.certificate());
        for certificate in certificates.iter().chain(beside) {
            let Ok(parsed) = Certificate::parse(&certificate.blob) else {
                continue;
            };
            let plain = Bytes::copy_from_slice(parsed.key_blob());
            if self.agent_has(&certificate.blob) {
                self.add(&certificate.blob, Signer::Agent(certificate.blob.clone()));
            } else if self.agent_has(&plain) {
                self.add(&certificate.blob, Signer::Agent(plain));
            } else if let Some(file) = files
                .iter()
                .find(|file| file.has_private_half() && file.is_certified_by(certificate))
            {
                self.add(&certificate.blob, Signer::File(Box::new(file.clone())));
            }
        }
    }
}

/// Returns the user's agent and its keys, if it answers.
async fn held_by_agent(host: &HostConfig, notes: &mut Vec<String>) -> (Option<Agent>, Vec<Identity>) {
    let Some(socket) = &host.identity_agent else {
        return (None, Vec::new());
    };
    let asked = async {
        let mut agent = Agent::connect(socket).await?;
        let held = agent.identities().await?;
        Ok::<_, AgentError>((Some(agent), held))
    };
    asked.await.unwrap_or_else(|error| {
        notes.push(error.to_string());
        (None, Vec::new())
    })
}

/// Returns whether a key file is one of ssh's default files.
fn is_default(host: &HostConfig, path: &Path) -> bool {
    let mut files = host.identity_files.iter();
    files
        .find(|file| file.path == path)
        .is_some_and(|file| file.is_default)
}

impl OnlySsh {
    fn add(&mut self, is_default: bool) {
        if is_default {
            self.default = true;
        } else {
            self.named = true;
        }
    }
}

/// The content of the configuration's files.
#[derive(Default)]
struct KeyFiles {
    keys: Vec<KeyFile>,
    certificates: Vec<PublicKey>,
    /// Keys of unsupported types.
    refused: Vec<(PathBuf, String)>,
    unreadable: VecDeque<Unreadable>,
    notes: Vec<String>,
}

fn read_files(paths: &[(PathBuf, bool)], certificates: &[PathBuf]) -> KeyFiles {
    let mut files = KeyFiles::default();
    for (at, (path, is_default)) in paths.iter().enumerate() {
        match KeyFile::open(path) {
            Ok(file) => files.keys.push(file),
            Err(error) => {
                if !is_default {
                    files.notes.push(error.to_string());
                }
                if let KeyError::Unreadable { path, source } = &error
                    && !is_default
                {
                    let (path, why) = (path.display(), io_words(source));
                    let (level, text) = match source.kind() {
                        std::io::ErrorKind::NotFound => {
                            (LogLevel::Info, format!("no such identity: {path}: {why}"))
                        }
                        _ => (LogLevel::Error, format!("Load key \"{path}\": {why}")),
                    };
                    let note = error.to_string();
                    files.unreadable.push_back(Unreadable {
                        note,
                        at,
                        level,
                        text,
                    });
                }
                if let KeyError::Unsupported { path, algorithm } = error {
                    files.refused.push((path, algorithm));
                }
            }
        }
    }
    for path in certificates {
        match KeyFile::read_certificate(path) {
            Ok(certificate) => files.certificates.push(certificate),
            Err(error) => files.notes.push(error.to_string()),
        }
    }
    files
}
