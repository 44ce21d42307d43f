//! One call of a tool. Before anything happens, its actions are checked against the rules, the user is asked if
//! necessary, and everything is recorded.

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

/// The reason why a call did nothing, or only a part.
pub(crate) enum Problem {
    /// A message for the assistant.
    Told(String),
    /// The client has to ask the user first.
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

/// The permission for actions.
pub(crate) struct Permit {
    /// The rules for which the user said yes.
    asked: Vec<String>,
    /// The audit records of the actions, in order.
    pub(crate) entries: Vec<Entry>,
}

impl Call<'_> {
    /// Parses the host's name from the assistant.
    ///
    /// # Errors
    /// It is not a host, or no rule is about it.
    pub(crate) async fn destination(&self, name: &str) -> Result<Destination, Problem> {
        let destination = hosts::destination(name).map_err(Problem::new)?;
        // ssh_config is not asked about names that no rule is about: an assistant must not choose the commands that it
        // runs for names.
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

    /// Decides whether all actions are permitted, and records them.
    ///
    /// # Errors
    /// They are not permitted.
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

    /// Returns the text that a user sees about an action that needs a yes.
    async fn describe(&self, rule: &str, host: &Destination, action: &Action) -> Result<String, Problem> {
        let address = self.state.hosts.address(host, self.rules).await?;
        let place = match action {
            Action::Run { .. } | Action::Shell(_) => " in the home directory",
            Action::Read(_) | Action::Write(_) => "",
        };
        let what = action.to_string();
        // The text shown must be exactly what is done, so nothing that would be cut or escaped can be asked.
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

    /// Records that an action was refused, and returns the reason.
    async fn refuse(&self, host: &Destination, action: &Action, decision: &str, why: &str) -> Problem {
        let failure = Failure::new(ErrorKind::Configuration, why);
        match self.begin(host, action, decision).await {
            Ok(entry) => record::end::<()>(&entry, &Err(failure)),
            // A refusal does not depend on its record.
            Err(error) => tracing::warn!("a refusal is not in the audit trail: {error}"),
        }
        Problem::new(format!("{why} (did not start)"))
    }

    /// Returns true if an action is permitted that turned out to differ: `named` is the action as the rules allow it,
    /// `really` what it is, for instance at a link's target.
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

    /// Returns a host to work on.
    ///
    /// # Errors
    /// This process has no working directory.
    pub(crate) async fn host(
        &self,
        destination: &Destination,
    ) -> Result<std::sync::Arc<hosts::Host>, Failure> {
        self.state.hosts.host(destination, self.rules, &self.client).await
    }

    /// Reports progress to the client, if requested.
    pub(crate) async fn progress(&self, done: f64, message: String) {
        if let Some(token) = self.context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done).with_message(message);
            // The client may have gone.
            let _ = self.context.peer.notify_progress(progress).await;
        }
    }
}
