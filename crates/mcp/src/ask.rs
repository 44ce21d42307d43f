//! Questions to the user: through the assistant's client with its protocol's form, or by a program that the rules name.
//!
//! A yes applies exactly to the text shown, once, while the call is waited for. Everything else is a no.

use std::collections::{HashMap, HashSet};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use rmcp::model::{
    CallToolRequestParams, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequiredResult, ProtocolVersion, RequestStateCodec, SealOptions, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext, RoleServer};
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::rules::Asking;

/// The time limit for the user's answer. The client may give up earlier.
const PATIENCE: Duration = Duration::from_secs(300);

/// The most open questions of the newer protocol.
const MOST_OPEN: usize = 64;

/// The most answers remembered for the session.
const MOST_REMEMBERED: usize = 1024;

/// The name of the question in an answer.
const QUESTION: &str = "permission";

/// Asks the user, and remembers answers for the session.
pub(crate) struct Person {
    codec: Option<RequestStateCodec>,
    /// The numbers of unanswered questions, and when they expire.
    open: Mutex<HashMap<String, Instant>>,
    /// The questions that are allowed for the session.
    remembered: Mutex<HashSet<String>>,
}

pub(crate) struct Question {
    /// Each action that needs a yes, as shown: host, user, directory, exact words, and the rule.
    pub(crate) lines: Vec<String>,
    /// Whom to ask.
    pub(crate) asking: Asking,
}

/// The answer to a question.
pub(crate) enum Answer {
    /// Yes, and who said so.
    Yes(&'static str),
    /// No, and the reason.
    No(String),
    /// The client has to ask, and to call again.
    Later(Box<InputRequiredResult>),
}

/// The user's choice in the client's message.
#[derive(Deserialize)]
struct Choice {
    answer: String,
}

impl Person {
    pub(crate) fn new() -> Self {
        // Any codec accepts 32 bytes.
        let key: [u8; 32] = rand::random();
        Self {
            codec: RequestStateCodec::try_new(key).ok(),
            open: Mutex::default(),
            remembered: Mutex::default(),
        }
    }

    /// Asks, unless everything is allowed for the session.
    pub(crate) async fn ask(
        &self,
        question: &Question,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Answer {
        if self.remembers(question) {
            return Answer::Yes("the person, for this session");
        }
        let answer = match &question.asking {
            Asking::Nobody => {
                return Answer::No(
                    "it would have to be asked for, and the rules say ask = \"nobody\"".into(),
                );
            }
            Asking::Program(words) => by_program(words, question, context).await,
            Asking::Client if is_stateless(context) => match self.by_client(question, request, context) {
                Ok(answer) => answer,
                Err(later) => return later,
            },
            Asking::Client => elicit(question, context).await,
        };
        // An answer to a cancelled call does not count.
        if context.ct.is_cancelled() {
            return Answer::No("the call was cancelled before it was answered".into());
        }
        match answer {
            Ok(Said::Once) => Answer::Yes("the person, once"),
            Ok(Said::Session) => {
                self.remember(question);
                Answer::Yes("the person, for this session")
            }
            Ok(Said::No) => Answer::No("the person said no".into()),
            Err(why) => Answer::No(why),
        }
    }

    fn remembers(&self, question: &Question) -> bool {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        question.lines.iter().all(|line| remembered.contains(line))
    }

    fn remember(&self, question: &Question) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() + question.lines.len() <= MOST_REMEMBERED {
            remembered.extend(question.lines.iter().cloned());
        }
    }

    /// Handles a client that may not be asked during a call: it is told what to ask, and calls again with the answer.
    fn by_client(
        &self,
        question: &Question,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<Said, String>, Answer> {
        let Some(codec) = &self.codec else {
            return Ok(Err("questions cannot be sealed".into()));
        };
        let bound = bound_to(question, request);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, end| *end > Instant::now());
        let Some(state) = &request.request_state else {
            if !can_be_asked(context) {
                return Ok(Err(CANNOT_ASK.into()));
            }
            if open.len() >= MOST_OPEN {
                return Ok(Err("too many questions are open".into()));
            }
            let number = format!("{:032x}", rand::random::<u128>());
            let options = SealOptions::new().associated_data(&bound).ttl(PATIENCE);
            let sealed = codec.seal_with(number.as_bytes(), &options);
            let Some(params) = form(question) else {
                return Ok(Err("the question cannot be put".into()));
            };
            let asked = InputRequest::Elicitation(ElicitRequest::new(params));
            open.insert(number, Instant::now() + PATIENCE);
            let requests = [(QUESTION.to_owned(), asked)].into();
            return Err(Answer::Later(Box::new(InputRequiredResult::new(
                Some(requests),
                Some(sealed),
            ))));
        };
        let stale =
            "the answer is not to this question, is too late, or was used before: call again without it";
        let number = codec.open_with(state, &bound).ok();
        let number = number.and_then(|number| String::from_utf8(number).ok());
        // Removed whatever the answer is, so that it is used once.
        if number.is_none_or(|number| open.remove(&number).is_none()) {
            return Ok(Err(stale.into()));
        }
        let said = request
            .input_responses
            .as_ref()
            .and_then(|said| said.get(QUESTION));
        let result = said.and_then(|said| serde_json::from_value::<ElicitResult>(said.clone()).ok());
        Ok(Ok(result.map_or(Said::No, |result| Said::from_result(&result))))
    }
}

const CANNOT_ASK: &str = "a person has to be asked, and this client cannot ask: have 'ask' in mcp.toml name a program that does, or allow \
                          it there";

/// The user's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    No,
    Once,
    Session,
}

impl Said {
    fn from_result(result: &ElicitResult) -> Self {
        if result.action != ElicitationAction::Accept {
            return Self::No;
        }
        let choice = result
            .content
            .clone()
            .and_then(|content| serde_json::from_value::<Choice>(content).ok());
        choice.map_or(Self::No, |choice| Self::word(&choice.answer))
    }

    fn word(word: &str) -> Self {
        match word {
            "once" => Self::Once,
            "session" => Self::Session,
            _ => Self::No,
        }
    }
}

/// Returns true if the server may not ask by itself.
fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

fn can_be_asked(context: &RequestContext<RoleServer>) -> bool {
    let capabilities = context.client_capabilities();
    let elicitation = capabilities.and_then(|capabilities| capabilities.elicitation);
    // A client that names no mode supports forms.
    elicitation.is_some_and(|modes| modes.form.is_some() || modes.url.is_none())
}

/// Returns the data that an answer is bound to: the whole call, and all text shown.
fn bound_to(question: &Question, request: &CallToolRequestParams) -> Vec<u8> {
    let call = json!([request.name, request.arguments, question.lines]).to_string();
    digest::digest(&digest::SHA256, call.as_bytes()).as_ref().to_vec()
}

fn text(question: &Question) -> String {
    format!(
        "An assistant wants to do this on your hosts:\n\n{}\n\nAllow it?",
        question.lines.join("\n")
    )
}

fn form(question: &Question) -> Option<ElicitRequestParams> {
    let schema = json!({
        "type": "object",
        "properties": {
            "answer": {
                "type": "string",
                "title": "Allow it?",
                "description": "once: this call; session: the same again until the assistant ends; no: not at all",
                "enum": ["no", "once", "session"],
            },
        },
        "required": ["answer"],
    });
    Some(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: text(question),
        requested_schema: serde_json::from_value(schema).ok()?,
    })
}

/// Asks through the client, which waits for its call meanwhile. The question is withdrawn with the call.
async fn elicit(question: &Question, context: &RequestContext<RoleServer>) -> Result<Said, String> {
    if !can_be_asked(context) {
        return Err(CANNOT_ASK.into());
    }
    let params = form(question).ok_or("the question cannot be put")?;
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
    let options = PeerRequestOptions::no_options();
    let sent = context.peer.send_request_with_option(request, options).await;
    let mut handle = sent.map_err(|error| format!("the person could not be asked: {error}"))?;
    let answered = tokio::select! {
        biased;
        () = context.ct.cancelled() => None,
        () = tokio::time::sleep(PATIENCE) => None,
        answered = &mut handle.rx => Some(answered),
    };
    let Some(answered) = answered else {
        let _ = handle.cancel(Some("the call is over".into())).await;
        return Err("nobody answered in time".into());
    };
    match answered {
        Ok(Ok(rmcp::model::ClientResult::ElicitResult(result))) => Ok(Said::from_result(&result)),
        _ => Ok(Said::No),
    }
}

/// Asks through a program: the question is its input. For a yes it prints "once" or "session" and exits with status 0.
async fn by_program(
    words: &[String],
    question: &Question,
    context: &RequestContext<RoleServer>,
) -> Result<Said, String> {
    let [program, arguments @ ..] = words else {
        return Ok(Said::No);
    };
    let failed = |error: std::io::Error| {
        let error = trunkline_request::words_of(error);
        format!("{program}, which asks the person, failed: {error}")
    };
    let mut command = tokio::process::Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A program that reads nothing may know the question.
        let _ = input.write_all(text(question).as_bytes()).await;
    }
    let output = tokio::select! {
        biased;
        () = context.ct.cancelled() => return Err("the call was cancelled before it was answered".into()),
        output = tokio::time::timeout(PATIENCE, child.wait_with_output()) => output,
    };
    let output = output
        .map_err(|_| "nobody answered in time".to_owned())?
        .map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(match output.status.success() {
        true => Said::word(said.trim()),
        false => Said::No,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_is_yes() {
        let accepted = |content| ElicitResult::new(ElicitationAction::Accept).with_content(content);
        assert_eq!(
            Said::from_result(&accepted(json!({"answer": "once"}))),
            Said::Once
        );
        assert_eq!(
            Said::from_result(&accepted(json!({"answer": "session"}))),
            Said::Session
        );
        for other in [
            accepted(json!({"answer": "no"})),
            accepted(json!({"answer": "yes"})),
            accepted(json!({"answer": true})),
            accepted(json!({})),
            accepted(json!("once")),
            ElicitResult::new(ElicitationAction::Accept),
            ElicitResult::new(ElicitationAction::Decline).with_content(json!({"answer": "once"})),
            ElicitResult::new(ElicitationAction::Cancel).with_content(json!({"answer": "once"})),
        ] {
            assert_eq!(Said::from_result(&other), Said::No, "{other:?}");
        }
    }

    #[test]
    fn an_answer_is_bound_to_all_of_the_call() {
        let question = |line: &str| Question {
            lines: vec![line.to_owned()],
            asking: Asking::Client,
        };
        let request = |name: &'static str, argument: &str| {
            let arguments = json!({"command": argument}).as_object().cloned().unwrap();
            CallToolRequestParams::new(name).with_arguments(arguments)
        };
        let bound = bound_to(&question("a"), &request("run", "x"));
        assert_eq!(bound, bound_to(&question("a"), &request("run", "x")));
        assert_ne!(bound, bound_to(&question("b"), &request("run", "x")));
        assert_ne!(bound, bound_to(&question("a"), &request("write", "x")));
        assert_ne!(bound, bound_to(&question("a"), &request("run", "y")));
    }
}
