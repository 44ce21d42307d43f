//! One call of a tool: what it wants to do is held against the rules, the person is asked where they say so, and all of it is
//! recorded, before anything happens.

use std::fmt;

use rmcp::model::{CallToolRequestParams, InputRequiredResult, ProgressNotificationParam};
use rmcp::service::{RequestContext, RoleServer};
use trunkline_audit::{Entry, Subject};
use trunkline_embed::{ErrorKind, Failure, OnBehalf};
use trunkline_request::destination::Destination;
use trunkline_text::Printable;

use crate::ask::{Answer, Question};
use crate::hosts;
use crate::record;
use crate::rules::{Action, Rules, Verdict};
use crate::state::State;

/// The reason why a call did nothing, or not everything.
pub(crate) enum Problem {
    /// A message for the assistant.
    Told(String),
    /// The client has to ask the person first.
    Later(Box<InputRequiredResult>),
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Told(message.into())
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(message) => f.write_str(message),
            Self::Later(_) => f.write_str("the person has to be asked"),
        }
    }
}

pub(crate) struct Call<'a> {
    pub(crate) state: &'a State,
    pub(crate) rules: &'a Rules,
    pub(crate) request: &'a CallToolRequestParams,
    pub(crate) context: &'a RequestContext<RoleServer>,
    /// The client, and the number of the call.
    pub(crate) client: OnBehalf,
}

/// The permission for an action, once that is decided.
pub(crate) struct Permit {
    /// The rules that the person said yes to.
    asked: Vec<String>,
    /// The audit records of each action, in the order in which they were named.
    pub(crate) entries: Vec<Entry>,
}

impl Call<'_> {
    /// A host by the name that the assistant gives it.
    ///
    /// # Errors
    /// It is not a host, or none that any rule is about.
    pub(crate) async fn destination(&self, name: &str) -> Result<Destination, Problem> {
        let destination = hosts::destination(name).map_err(Problem::new)?;
        // Of a name that no rule is about, ssh_config is not asked: what it runs for names is not for an assistant to choose.
        if self.rules.knows(&destination) && self.rules.deny_anything() {
            let hostname = self.state.hosts.hostname(&destination, self.rules).await?;
            self.rules.means(&destination, &hostname);
        }
        match self.rules.knows(&destination) {
            true => Ok(destination),
            false => Err(Problem::new(format!(
                "{}: no rule is about {}, or it is denied; 'hosts' lists what may be reached (did not start)",
                self.rules.path().display(),
                destination.as_hop()
            ))),
        }
    }

    /// Decides whether all of this may be done, and records it.
    ///
    /// # Errors
    /// It may not.
    pub(crate) async fn permit(&self, wants: &[(Destination, Action)]) -> Result<Permit, Problem> {
        let verdicts: Vec<_> = wants
            .iter()
            .map(|(host, action)| self.rules.verdict(host, action))
            .collect();
        for ((host, action), verdict) in wants.iter().zip(&verdicts) {
            if let Verdict::Denied(why) = verdict {
                return Err(self.refuse(host, action, "denied", why).await);
            }
        }
        let asks = || {
            verdicts
                .iter()
                .zip(wants)
                .filter_map(|(verdict, want)| match verdict {
                    Verdict::Ask(rule) => Some((rule, want)),
                    _ => None,
                })
        };
        let asked: Vec<String> = asks().map(|(rule, _)| rule.clone()).collect();
        let mut said = None;
        if !asked.is_empty() {
            let mut lines = Vec::new();
            for (rule, (host, action)) in asks() {
                lines.push(self.describe(rule, host, action).await?);
            }
            let question = Question {
                lines,
                asking: self.rules.ask.clone(),
            };
            match self.state.person.ask(&question, self.request, self.context).await {
                Answer::Yes(who) => said = Some(who),
                Answer::Later(later) => return Err(Problem::Later(later)),
                Answer::No(why) => {
                    let (host, action) = asks().map(|(_, want)| want).next().unwrap_or(&wants[0]);
                    return Err(self.refuse(host, action, "asked for: no", &why).await);
                }
            }
        }
        let mut entries = Vec::new();
        for ((host, action), verdict) in wants.iter().zip(&verdicts) {
            let decision = match verdict {
                Verdict::Allowed(rule) => format!("allowed by rule {rule}"),
                Verdict::Ask(rule) => format!("rule {rule}: yes by {}", said.unwrap_or_default()),
                Verdict::Denied(why) => why.clone(),
            };
            entries.push(self.begin(host, action, &decision).await?);
        }
        Ok(Permit { asked, entries })
    }

    /// Returns the text that a person sees of an action that needs a yes.
    async fn describe(&self, rule: &str, host: &Destination, action: &Action) -> Result<String, Problem> {
        let address = self.state.hosts.address(host, self.rules).await?;
        let place = match action {
            Action::Run { .. } | Action::Shell(_) => " in the home directory",
            Action::Read(_) | Action::Write(_) => "",
        };
        let what = action.to_string();
        // Nothing that was shown may be other than what is done: text that would have to be cut or marked is not asked for.
        let shown = Printable::line(&what);
        if *shown != what {
            return Err(Problem::new(
                "what has to be asked for must be one line of printable text, and no longer than 4096 bytes",
            ));
        }
        Ok(format!(
            "{} ({}){place}: {shown} [rule {rule}]",
            host.as_hop(),
            Printable::line(&address)
        ))
    }

    async fn begin(&self, host: &Destination, action: &Action, decision: &str) -> Result<Entry, Failure> {
        let subject = Subject::call(&self.request.name, &host.as_hop(), &action.to_string(), decision);
        let place = self.state.hosts.place().await?;
        self.state
            .trail
            .begin(&place, self.rules.record, subject, &self.client)
            .await
    }

    /// Records that something is not done, and tells why.
    async fn refuse(&self, host: &Destination, action: &Action, decision: &str, why: &str) -> Problem {
        let failure = Failure::new(ErrorKind::Configuration, why);
        match self.begin(host, action, decision).await {
            Ok(entry) => record::end::<()>(&entry, &Err(failure)),
            // What may not be done need not be recorded to be refused.
            Err(error) => tracing::warn!("a refusal is not in the audit trail: {error}"),
        }
        Problem::new(format!("{why} (did not start)"))
    }

    /// Returns whether something may be done that was found out meanwhile: `named` as the rules allow it, `really` what
    /// it is, for instance where a link leads to.
    pub(crate) fn permits(
        &self,
        permit: &Permit,
        host: &Destination,
        named: &Action,
        really: &Action,
    ) -> bool {
        let is_allowed = match self.rules.verdict(host, named) {
            Verdict::Allowed(_) => true,
            Verdict::Ask(rule) => permit.asked.contains(&rule),
            Verdict::Denied(_) => false,
        };
        is_allowed && !self.rules.denies(host, really)
    }

    /// A host to work on.
    ///
    /// # Errors
    /// This process has no place in the system.
    pub(crate) async fn host(
        &self,
        destination: &Destination,
    ) -> Result<std::sync::Arc<hosts::Host>, Failure> {
        self.state.hosts.host(destination, self.rules, &self.client).await
    }

    /// Tells the client how far the call is, where it wants to know.
    pub(crate) async fn progress(&self, done: f64, message: String) {
        if let Some(token) = self.context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done).with_message(message);
            // Whoever has gone hears nothing.
            let _ = self.context.peer.notify_progress(progress).await;
        }
    }
}
