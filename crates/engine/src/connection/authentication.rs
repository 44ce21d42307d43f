//! Chooses the next authentication method, in the order of OpenSSH's client but without its avoidable probes.

pub(super) mod identities;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use trunkline_proto::{Event, HostClaim};
use trunkline_request::LogLevel;
use zeroize::Zeroizing;

use crate::config::{
    HostConfig, HostKeyCheck, KeyUsed, LogIn, LogInTerms, Method as Way, PubkeyAuthentication,
};
use crate::connection::driver::Driver;
use crate::connection::login::{Agreement, Attempt, Authenticator, Method};
use crate::error::Error;
use crate::host_key::Server;
use crate::interaction::Interaction;
use crate::keys;
use crate::prompt::{Answerer, Prompt, PromptKind, ServerQuestions};
use identities::{Candidate, Identities, SessionProof};

/// ssh's default for PreferredAuthentications, without the methods that the engine lacks.
const PREFERRED: [&str; 3] = ["publickey", "keyboard-interactive", "password"];

/// One authentication.
pub(crate) struct Authentication<'a> {
    host: &'a HostConfig,
    interaction: &'a Interaction,
    identities: Identities,
    /// The first candidate is the key that worked last time.
    remembered: bool,
    sole: bool,
    /// Methods that reveal secrets are off: the host key is not verified (StrictHostKeyChecking no, changed key).
    key_only: bool,
    probing: Option<Candidate>,
    /// The last attempt's credential and signature algorithm.
    shown: Option<(Candidate, String)>,
    /// Keys without an algorithm that the server has said it accepts.
    unmatched: VecDeque<Candidate>,
    /// An RSA key (or certificate) was among them, for which ssh would sign with SHA-1.
    wants_sha1: bool,
    /// The client is a program in ssh's place: it can leave to ssh what only ssh does.
    is_ssh: bool,
    used: Option<Candidate>,
    /// The method of the last attempt.
    used_method: &'static str,
    /// The outcome of each method so far, for deciding who may share the connection.
    course_taken: CourseTaken,
    /// The methods that the user allows.
    terms: LogInTerms,
    /// The log-in of the connection beside which this one is made; this one repeats it.
    like: Option<LogIn>,
    asked_none: bool,
    passwords_left: u32,
    interactive_left: u32,
    password_failed: bool,
    last_password: Option<Zeroizing<String>>,
    /// The one who has answered questions.
    answered: Answerer,
    allowed: Vec<String>,
    /// The last attempt succeeded, and the server wants another method.
    partial: bool,
    /// The program's own authenticator, instead of ssh's order.
    course: Option<(u32, Arc<dyn Authenticator>)>,
    /// The number of the identities' notes that the program has received.
    notes_told: usize,
    /// Bytes of banners that may still be shown.
    banners_left: usize,
    /// The first [`MOST_KEPT`] bytes of banners, for later users of the connection.
    banner: String,
}

/// The outcome of the methods so far.
#[derive(Debug, Clone, Default)]
struct CourseTaken {
    trying: Option<Way>,
    accepted: Vec<Way>,
    refused: Vec<Way>,
    /// The key of the accepted method.
    key: Option<KeyUsed>,
}

impl CourseTaken {
    /// Notes that the last method did not let the user in, at least not by itself.
    fn note_refusal(&mut self, partial: bool, used: Option<&Candidate>) {
        match self.trying.take() {
            Some(way) if partial => {
                self.accepted.push(way);
                if way == Way::PublicKey {
                    self.key = used.map(Candidate::as_used);
                }
            }
            Some(way) => self.refuse(way),
            None => {}
        }
    }

    fn refuse(&mut self, way: Way) {
        if !self.refused.contains(&way) {
            self.refused.push(way);
        }
    }
}

/// The most bytes of banners that one log-in shows. One message holds 256 KiB, and their number is not limited.
const MOST_BANNERS: usize = 1024 * 1024;

/// The most bytes of banners that a connection keeps.
const MOST_KEPT: usize = 64 * 1024;

impl<'a> Authentication<'a> {
    pub(crate) fn new(
        host: &'a HostConfig,
        interaction: &'a Interaction,
        mut identities: Identities,
        remembered: Option<&[u8; 32]>,
        key_only: bool,
    ) -> Self {
        let remembered = remembered.is_some_and(|digest| identities.prefer(digest));
        let secrets = !key_only && !host.batch_mode;
        Self {
            host,
            interaction,
            remembered,
            sole: identities.candidates.len() == 1,
            identities,
            key_only,
            probing: None,
            shown: None,
            unmatched: VecDeque::new(),
            wants_sha1: false,
            is_ssh: false,
            used: None,
            used_method: "none",
            course_taken: CourseTaken::default(),
            terms: host.log_in_terms(),
            like: None,
            asked_none: false,
            passwords_left: if secrets && host.password_authentication {
                host.number_of_password_prompts
            } else {
                0
            },
            interactive_left: if secrets && host.kbd_interactive_authentication {
                host.number_of_password_prompts
            } else {
                0
            },
            password_failed: false,
            last_password: None,
            answered: Answerer::Nobody,
            allowed: Vec::new(),
            partial: false,
            course: None,
            notes_told: 0,
            banners_left: MOST_BANNERS,
            banner: String::new(),
        }
    }

    /// Tries only what made the connection beside which this one is made, because their users may share both.
    pub(crate) fn repeat(&mut self, made: &LogIn) {
        let used = made.key.as_ref().map(|key| key.digest);
        let candidates = &mut self.identities.candidates;
        candidates.retain(|candidate| used == Some(candidate.digest()));
        self.sole = candidates.len() == 1;
        self.course_taken.refused.clone_from(&made.refused);
        self.like = Some(made.clone());
    }

    /// Lets the program choose what is tried.
    pub(crate) fn follow(&mut self, course: &Arc<dyn Authenticator>, proto: &trunkline_proto::Connection) {
        self.remembered = false;
        self.sole = false;
        static LOGINS: AtomicU32 = AtomicU32::new(0);
        let login = LOGINS.fetch_add(1, Ordering::Relaxed);
        if let Some(agreement) = Agreement::from_proto(proto) {
            course.note_agreement(login, agreement);
        }
        self.course = Some((login, course.clone()));
    }

    /// Marks the waiting client as one in ssh's place.
    pub(crate) fn stand_for_ssh(&mut self) {
        self.is_ssh = true;
    }

    /// Returns the key that was accepted, for host memory: the next log-in uses it without a probe. Keys whose agent
    /// asks for each signature are excluded, as ssh lets it ask only after the server has accepted the key.
    pub(crate) fn used_key(&self) -> Option<[u8; 32]> {
        let asks = self.identities.agent_asks;
        let used = self.used.as_ref().filter(|used| !(asks && used.is_agents()));
        used.map(Candidate::digest)
    }

    /// Returns who had to answer or confirm something, and would have to again.
    pub(crate) fn answerer(&self) -> Answerer {
        match &self.used {
            Some(used) if used.wants_touch() => Answerer::Person,
            _ => self.answered.max(self.identities.answered),
        }
    }

    pub(crate) fn into_banner(self) -> String {
        self.banner
    }

    fn log(&self, level: LogLevel, text: &str) {
        self.interaction.log(level, text);
    }

    /// Logs the keys that will be tried, and notes about those left out.
    pub(crate) fn log_identities(&self) {
        for candidate in &self.identities.candidates {
            self.log(LogLevel::Debug1, &format!("Will attempt key: {candidate}"));
        }
        for note in &self.identities.notes {
            self.log(LogLevel::Debug1, note);
        }
    }

    /// Logs how the log-in succeeded.
    pub(crate) fn log_success(&self, server: &Server<'_>) {
        let Server {
            name, port, address, ..
        } = server;
        let address = address.map_or_else(|| "via proxy".to_owned(), |address| format!("[{address}]:{port}"));
        let method = self.used_method;
        self.log(
            LogLevel::Verbose,
            &format!("Authenticated to {name} ({address}) using \"{method}\"."),
        );
    }

    /// Returns the finished log-in, with the check of the host key.
    pub(crate) fn log_in(&self, host_key: HostKeyCheck) -> LogIn {
        let CourseTaken {
            trying,
            accepted,
            refused,
            key,
        } = self.course_taken.clone();
        LogIn {
            methods: accepted.into_iter().chain(trying).collect(),
            refused,
            key: key.or_else(|| self.used.as_ref().map(Candidate::as_used)),
            host_key,
        }
    }

    /// Returns the last method tried.
    pub(crate) fn used_method(&self) -> &'static str {
        self.used_method
    }

    /// Answers one of the server's questions.
    pub(crate) async fn answer(&mut self, driver: &mut Driver, question: Event) -> Result<(), Error> {
        match question {
            Event::Authenticate(turn) => {
                if let Some(methods) = &turn.methods {
                    let more = if turn.partial_success {
                        "partial success; "
                    } else {
                        ""
                    };
                    self.log(
                        LogLevel::Debug1,
                        &format!("Authentications that can continue: {more}{}", methods.join(",")),
                    );
                    // The last attempt did not suffice by itself.
                    let used = self.used.take();
                    self.course_taken
                        .note_refusal(turn.partial_success, used.as_ref());
                }
                let first = turn.methods.is_none();
                if let Some(methods) = turn.methods {
                    self.allowed = methods;
                }
                self.partial = turn.partial_success;
                self.next(driver, first).await
            }
            Event::PublicKeyAccepted => {
                let Some(candidate) = self.probing.take() else {
                    return Ok(());
                };
                self.log(LogLevel::Debug1, &format!("Server accepts key: {candidate}"));
                // A signature by a probed key is as good as accepted: channel requests may follow it.
                if self.sign(driver, candidate, true).await? {
                    Ok(())
                } else {
                    self.next(driver, false).await
                }
            }
            Event::PasswordExpired { prompt } => self.change_password(driver, &prompt).await,
            Event::Questions {
                name,
                instruction,
                prompts,
            } => {
                let kind = PromptKind::KeyboardInteractive;
                let asked = ServerQuestions {
                    name,
                    instruction,
                    prompts: prompts
                        .into_iter()
                        .map(|asked| Prompt::from_server(kind, &asked.text, asked.echo))
                        .collect(),
                };
                let answers = self.answers(asked).await?;
                driver.proto.answer_questions(&answers);
                Ok(())
            }
            Event::Banner(text) => {
                self.show(&text);
                Ok(())
            }
            Event::HostKey(_)
            | Event::Authenticated
            | Event::Channel(_)
            | Event::Pong
            | Event::EarlySession(_)
            | Event::EarlyCommand => Ok(()),
        }
    }

    /// Shows a banner of the server's.
    fn show(&mut self, text: &str) {
        // Bounded, because banners are queued for a viewer who may have stopped reading.
        if let Some(left) = self.banners_left.checked_sub(text.len()) {
            self.banners_left = left;
            if self.host.tells() {
                self.interaction.banner(text);
            }
        }
        if self.banner.len() + text.len() <= MOST_KEPT {
            self.banner.push_str(text);
        }
    }

    /// Waits for the program while showing banners and watching for the connection's end.
    async fn meanwhile<T>(
        &mut self,
        driver: &mut Driver,
        program: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let mut program = std::pin::pin!(program);
        loop {
            tokio::select! {
                biased;
                answer = &mut program => return Ok(answer),
                question = driver.question() => {
                    // Between two requests the server has nothing else to send.
                    if let Event::Banner(text) = question? {
                        self.show(&text);
                    }
                }
            }
        }
    }

    /// Returns as many answers as there are questions.
    async fn answers(&mut self, mut asked: ServerQuestions) -> Result<Vec<Zeroizing<String>>, Error> {
        let prompter = self.interaction.prompter();
        if !asked.prompts.is_empty() {
            self.answered = self.answered.max(prompter.answerer());
        }
        if let Some(together) = prompter.ask_together(&asked) {
            let mut answers = together.await.unwrap_or_else(|| {
                self.interactive_left = 0;
                Vec::new()
            });
            // Missing answers are empty, and fail this attempt.
            answers.resize_with(asked.prompts.len(), Zeroizing::default);
            return Ok(answers);
        }
        for text in [&asked.name, &asked.instruction] {
            if !text.is_empty() {
                self.interaction.notice(text);
            }
        }
        let who = format!("({}) ", self.host.who());
        let mut answers = Vec::with_capacity(asked.prompts.len());
        for prompt in &mut asked.prompts {
            prompt.text.insert_str(0, &who);
            match prompter.ask(prompt).await {
                Some(answer) => answers.push(answer),
                // The answerer has left: do not let the account have a failed attempt because of that.
                None if prompter.answerer() == Answerer::Nobody => return Err(self.denial()),
                None => {
                    // Without an answer, an empty one fails this attempt, and there is no other.
                    self.interactive_left = 0;
                    answers.push(Zeroizing::new(String::new()));
                }
            }
        }
        Ok(answers)
    }

    /// Tries the next method. `first`: the server has not yet said which it allows.
    async fn next(&mut self, driver: &mut Driver, first: bool) -> Result<(), Error> {
        if let Some((login, course)) = self.course.clone() {
            return self.next_of_course(driver, login, &*course, first).await;
        }
        // A server that lists no method may accept some: ssh tries what it has.
        let says_nothing = first || self.allowed.iter().all(String::is_empty);
        let preferred: Vec<&str> = match &self.host.preferred_authentications[..] {
            [] => PREFERRED.to_vec(),
            preferred => preferred.iter().map(String::as_str).collect(),
        };
        for method in preferred {
            let way = Way::from_name(method);
            let is_left_out = self
                .like
                .as_ref()
                .is_some_and(|made| way.is_none_or(|way| !made.methods.contains(&way)));
            if is_left_out {
                continue;
            }
            if !says_nothing && !self.allowed.iter().any(|allowed| allowed == method) {
                self.pass_over(way, first);
                continue;
            }
            let started = match method {
                "publickey" => {
                    let started = self.next_key(driver).await?;
                    // ssh would continue with keys before it asks for a password.
                    if !started && !first && self.only_ssh() {
                        return Err(self.denial());
                    }
                    started
                }
                // Learning the methods is worth a round trip before the user is asked for a password.
                "keyboard-interactive" | "password" if first => false,
                "keyboard-interactive" if self.interactive_left > 0 => {
                    self.interactive_left -= 1;
                    self.used_method = "keyboard-interactive";
                    self.log(
                        LogLevel::Debug1,
                        "Next authentication method: keyboard-interactive",
                    );
                    driver.proto.authenticate_keyboard_interactive();
                    true
                }
                "password" if self.passwords_left > 0 => self.next_password(driver).await,
                _ => false,
            };
            if started {
                self.course_taken.trying = way;
                return Ok(());
            }
            self.pass_over(way, first);
        }
        if first && !self.asked_none {
            self.asked_none = true;
            self.used_method = "none";
            self.log(LogLevel::Debug1, "Asking which authentication methods there are");
            driver.proto.authenticate_none();
            return Ok(());
        }
        Err(self.denial())
    }

    /// Notes that a method has nothing to offer, or that the server does not allow it.
    fn pass_over(&mut self, way: Option<Way>, first: bool) {
        if let Some(way) = way.filter(|way| !first && self.terms.methods.contains(way)) {
            self.course_taken.refuse(way);
        }
    }

    /// Tries what the program chooses: each attempt's keys in turn, then the next attempt.
    async fn next_of_course(
        &mut self,
        driver: &mut Driver,
        login: u32,
        course: &dyn Authenticator,
        first: bool,
    ) -> Result<(), Error> {
        loop {
            if self.next_key(driver).await? {
                return Ok(());
            }
            for note in &self.identities.notes[self.notes_told..] {
                course.unusable(login, note);
            }
            self.notes_told = self.identities.notes.len();
            let allowed = self.allowed.clone();
            let methods = (!first).then_some(&allowed[..]);
            let next = course.next(login, methods, self.partial);
            let Some(Attempt { user, method }) = self.meanwhile(driver, next).await? else {
                return Err(self.denial());
            };
            driver.proto.authenticate_as(&user);
            // Only keys: an agent without the host's files, or a key without an agent.
            let only = |agent: Option<PathBuf>| HostConfig {
                identity_agent: agent,
                identity_files: Vec::new(),
                certificate_files: Vec::new(),
                identities_only: false,
                ..self.host.clone()
            };
            let identities = match method {
                Method::None => {
                    driver.proto.authenticate_none();
                    return Ok(());
                }
                Method::Password(_) | Method::KeyboardInteractive if self.key_only => continue,
                Method::Password(password) => {
                    driver.proto.authenticate_password(&password, None, true);
                    self.last_password = Some(password);
                    return Ok(());
                }
                Method::KeyboardInteractive => {
                    driver.proto.authenticate_keyboard_interactive();
                    return Ok(());
                }
                Method::Key(key) => Identities::collect(&only(None), &[*key]).await,
                Method::Agent(path) => Identities::collect(&only(Some(path)), &[]).await,
                Method::Keys(blobs, signer) => Identities::of_program(blobs, &signer),
                Method::HostBased { key, host, user } => {
                    self.identities = Identities::collect(&only(None), &[*key]).await;
                    if self.claim(driver, &host, &user).await? {
                        return Ok(());
                    }
                    continue;
                }
            };
            let heard = std::mem::replace(&mut self.identities, identities).notes;
            // All of them are shown if the log-in fails.
            self.notes_told = heard.len();
            self.identities.notes.splice(0..0, heard);
        }
    }

    async fn next_key(&mut self, driver: &mut Driver) -> Result<bool, Error> {
        if self.host.pubkey_authentication == PubkeyAuthentication::No {
            return Ok(false);
        }
        self.reconsider(driver);
        while let Some(candidate) = self.identities.candidates.pop_front() {
            let (host, interaction) = (self.host, self.interaction);
            self.identities
                .tell_of_unreadable(host, interaction, Some(&candidate));
            let candidate = if candidate.is_sealed() {
                let opened = self.identities.open(self.host, self.interaction, candidate).await;
                let Some(opened) = opened else { continue };
                if self.sign(driver, opened, true).await? {
                    return Ok(true);
                }
                continue;
            } else {
                candidate
            };
            // An agent may ask its user for each signature: do not sign with a key the server has never accepted.
            let is_remembered = std::mem::take(&mut self.remembered);
            let unprobed =
                (self.sole && !candidate.is_agents() || is_remembered) && candidate.signs_quietly();
            if unprobed {
                if self.sign(driver, candidate, true).await? {
                    return Ok(true);
                }
                continue;
            }
            let Some(algorithm) = self.algorithm(driver, &candidate) else {
                self.unmatched.push_back(candidate);
                continue;
            };
            self.log(LogLevel::Debug1, &format!("Offering public key: {candidate}"));
            driver.proto.probe_key(&algorithm, &candidate.blob);
            self.shown = Some((candidate.clone(), algorithm));
            self.probing = Some(candidate);
            return Ok(true);
        }
        self.identities
            .tell_of_unreadable(self.host, self.interaction, None);
        Ok(false)
    }

    /// Puts back keys that the server may accept after all. It names the signature algorithms for a user only after the
    /// first request (OpenSSH's PROTOCOL, section 1.10).
    fn reconsider(&mut self, driver: &Driver) {
        // A key that was right is not offered again.
        let refused = self.shown.take().filter(|_| !self.partial);
        if let Some((candidate, algorithm)) = refused {
            self.wants_sha1 |= self.would_sign_with_sha1(driver, &candidate);
            if self
                .algorithm(driver, &candidate)
                .is_some_and(|now| now != algorithm)
            {
                self.identities.candidates.push_front(candidate);
            }
        }
        for candidate in std::mem::take(&mut self.unmatched) {
            if self.algorithm(driver, &candidate).is_some() {
                self.identities.candidates.push_back(candidate);
            } else {
                self.wants_sha1 |= self.would_sign_with_sha1(driver, &candidate);
                self.unmatched.push_back(candidate);
            }
        }
    }

    /// Returns whether ssh would sign with SHA-1 for this server and this key.
    fn would_sign_with_sha1(&self, driver: &Driver, candidate: &Candidate) -> bool {
        let server = driver.proto.ext_info().server_sig_algs.as_deref();
        self.host.allows_sha1_for(&candidate.key_type)
            && match server {
                None => true,
                Some(names) => {
                    self.algorithm(driver, candidate).is_none() && names.iter().any(|name| name == "ssh-rsa")
                }
            }
    }

    /// Returns whether ssh has credentials that the engine lacks.
    fn only_ssh(&self) -> bool {
        let keys = self.identities.only_ssh;
        self.course.is_none() && (self.wants_sha1 || keys.named || (keys.default && self.is_ssh))
    }

    /// Returns whether only keys could work.
    fn has_only_keys(&self) -> bool {
        let asks = |method: &str| matches!(method, "password" | "keyboard-interactive");
        let mut allowed = self.allowed.iter();
        allowed.all(|method| method == "publickey" || self.host.batch_mode && asks(method))
    }

    /// Sends a signed request; returns `false` if there is no signature.
    async fn sign(&mut self, driver: &mut Driver, candidate: Candidate, early: bool) -> Result<bool, Error> {
        let Some(algorithm) = self.algorithm(driver, &candidate) else {
            self.unmatched.push_back(candidate);
            return Ok(false);
        };
        let data = driver.proto.data_to_sign(&algorithm, &candidate.blob);
        let Some(signed) = self.signature(driver, &candidate, &algorithm, data).await? else {
            return Ok(false);
        };
        self.log(
            LogLevel::Debug1,
            &format!("Authenticating with public key: {candidate}, signed as {algorithm}"),
        );
        self.used_method = "publickey";
        driver
            .proto
            .authenticate_key(&algorithm, &candidate.blob, &signed, early);
        self.shown = Some((candidate.clone(), algorithm));
        self.used = Some(candidate);
        Ok(true)
    }

    /// Makes a host-based request, signed by the only identity, this machine's. Returns `false` if it cannot sign.
    async fn claim(&mut self, driver: &mut Driver, host: &str, user: &str) -> Result<bool, Error> {
        let Some(mut candidate) = self.identities.candidates.pop_front() else {
            return Ok(false);
        };
        if candidate.is_sealed() {
            match self.identities.open(self.host, self.interaction, candidate).await {
                Some(opened) => candidate = opened,
                None => return Ok(false),
            }
        }
        let Some(algorithm) = self.algorithm(driver, &candidate) else {
            return Ok(false);
        };
        let claim = HostClaim {
            algorithm: &algorithm,
            key: &candidate.blob,
            host,
            user,
        };
        let data = driver.proto.data_for_host_to_sign(&claim);
        let Some(signed) = self.signature(driver, &candidate, &algorithm, data).await? else {
            return Ok(false);
        };
        self.used_method = "hostbased";
        driver.proto.authenticate_host(&claim, &signed);
        Ok(true)
    }

    /// Returns a signature over `data`; `None` if there is none, or no host key is verified yet.
    async fn signature(
        &mut self,
        driver: &mut Driver,
        candidate: &Candidate,
        algorithm: &str,
        data: Option<Bytes>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let proto = &driver.proto;
        let (Some(data), Some(host_key), Some(session_id), Some(signature)) = (
            data,
            proto.host_key().cloned(),
            proto.session_id().cloned(),
            proto.host_signature().cloned(),
        ) else {
            return Ok(None);
        };
        let proof = SessionProof {
            host_key: &host_key,
            session_id: &session_id,
            signature: &signature,
        };
        self.identities
            .sign(self.host, self.interaction, candidate, algorithm, &data, proof)
            .await
    }

    /// Returns the best public key algorithm for a key that the configuration and, for RSA, the server allow.
    ///
    /// As in ssh, the server's list only matters among the algorithms for RSA. Other keys have one algorithm, which the
    /// server may accept without listing it (the server of npm's ssh2 leaves a comma out of its list).
    fn algorithm(&self, driver: &Driver, candidate: &Candidate) -> Option<String> {
        let accepted = &self.host.pubkey_accepted_algorithms;
        let algorithms = keys::public_key_algorithms(&candidate.key_type);
        let server = match algorithms.len() {
            0 | 1 => None,
            _ => driver.proto.ext_info().server_sig_algs.as_deref(),
        };
        algorithms
            .into_iter()
            .filter(|algorithm| accepted.iter().any(|name| name == algorithm))
            // Without a list, the server decides.
            .find(|algorithm| {
                server.is_none_or(|names| {
                    names
                        .iter()
                        .any(|name| name == keys::signature_algorithm(algorithm) || name == algorithm)
                })
            })
            .map(str::to_owned)
    }

    async fn next_password(&mut self, driver: &mut Driver) -> bool {
        self.passwords_left -= 1;
        self.used_method = "password";
        self.log(LogLevel::Debug1, "Next authentication method: password");
        let again = if self.password_failed {
            "Permission denied, please try again.\n"
        } else {
            ""
        };
        let text = format!("{again}{}'s password: ", self.host.who());
        let prompt = Prompt::new(PromptKind::Password, text, false);
        let Some(password) = self.interaction.prompter().ask(&prompt).await else {
            self.passwords_left = 0;
            return false;
        };
        self.answered = self.answered.max(self.interaction.prompter().answerer());
        self.password_failed = true;
        driver.proto.authenticate_password(&password, None, true);
        self.last_password = Some(password);
        true
    }

    async fn change_password(&mut self, driver: &mut Driver, server_text: &str) -> Result<(), Error> {
        let Some(old) = self.last_password.take() else {
            return Err(self.denial());
        };
        if let Some((login, course)) = self.course.clone() {
            let Some(new) = course.new_password(login, server_text).await else {
                return self.next(driver, false).await;
            };
            driver.proto.authenticate_password(&old, Some(&new), false);
            return Ok(());
        }
        self.interaction.notice(server_text);
        let ask = async |text: String| {
            let prompt = Prompt::new(PromptKind::Password, text, false);
            self.interaction.prompter().ask(&prompt).await
        };
        let who = self.host.who();
        let new = ask(format!("Enter {who}'s new password: ")).await;
        let again = ask(format!("Retype {who}'s new password: ")).await;
        match (new, again) {
            (Some(new), Some(again)) if new == again && !new.is_empty() => {
                driver.proto.authenticate_password(&old, Some(&new), false);
                Ok(())
            }
            _ => Err(self.denial()),
        }
    }

    fn denial(&self) -> Error {
        let mut advice = self.identities.notes.clone();
        advice.extend(
            self.unmatched
                .iter()
                .map(|candidate| format!("no signature algorithm for {} is allowed", candidate.key_type)),
        );
        if self.wants_sha1 {
            advice.push("signatures with SHA-1 (ssh-rsa) are made by the system's ssh only".into());
        }
        if self.key_only {
            advice.push("passwords are not sent to a host whose key is not verified".into());
        }
        if self.host.batch_mode && self.allowed.iter().any(|method| method == "password") {
            advice.push("BatchMode forbids asking for a password".into());
        }
        if self.allowed.iter().any(|method| method == "gssapi-with-mic") && self.host.gssapi_authentication {
            advice.push("for GSSAPI use the system's ssh (transport = openssh)".into());
        }
        let untold: Vec<&str> = advice
            .iter()
            .filter(|note| !self.identities.told.contains(note))
            .map(String::as_str)
            .collect();
        Error::Authentication {
            user: self.host.user.clone(),
            host: self.host.original_host.clone(),
            allowed: self.allowed.clone(),
            partial: self.partial,
            untold: untold.join("; ").into(),
            advice: advice.join("; "),
            only_ssh: self.only_ssh(),
            declined: self.identities.user_declined && !self.only_ssh() && self.has_only_keys(),
        }
    }
}
