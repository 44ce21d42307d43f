//! The tools: their arguments, effects and answers.

mod commands;
mod files;
mod hosts;

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::Contract;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use trunkline_embed::Failure;

use crate::call::{Call, Problem};
use crate::{answers, arguments};

/// The longest answer that is sent. Some clients end the connection at ten times as much.
const LONGEST: usize = 1_000_000;

/// The result of a tool, as text and as data.
pub(crate) struct Done {
    text: String,
    value: Value,
    /// True if a part of it failed.
    failed: bool,
}

impl Done {
    fn new(text: impl Into<String>, answer: &impl Serialize) -> Result<Self, Problem> {
        let value = serde_json::to_value(answer).map_err(|error| Problem::new(error.to_string()))?;
        Ok(Self {
            text: text.into(),
            value,
            failed: false,
        })
    }

    pub(crate) fn into_result(self) -> CallToolResult {
        let mut result = CallToolResult::structured(self.value);
        result.content = vec![ContentBlock::text(self.text)];
        result.is_error = Some(self.failed);
        // All answers are bounded where they are built. If one is not, its text is the copy that can be dropped.
        if serde_json::to_vec(&result).map_or(0, |bytes| bytes.len()) > LONGEST {
            result.content = vec![ContentBlock::text("The answer is in the structured content.")];
        }
        result
    }
}

/// The effect of a tool on hosts.
#[derive(Clone, Copy)]
enum Effect {
    /// It only looks.
    Reads,
    /// It may change or end anything.
    Destroys,
    /// The same, but repeating it has no further effect.
    Replaces,
}

/// Returns every tool.
pub(crate) fn all() -> Vec<Tool> {
    use Effect::{Destroys, Reads, Replaces};
    vec![
        tool::<arguments::Hosts, answers::Hosts>(
            "hosts",
            Reads,
            "Lists the hosts that may be reached, which of them have an open connection and how far away they are, and what the rules \
             allow on each: begin here.",
        ),
        tool::<arguments::Run, answers::Run>(
            "run",
            Destroys,
            "Runs a command on one host or several at the same time, over connections that stay open, and says for each host whether \
             it finished (exit status, standard output and error apart), is running still, did not start, or may have started. Long \
             output is cut in its middle. 'hosts' tells which commands are allowed.",
        ),
        tool::<arguments::Follow, answers::Ran>(
            "follow",
            Reads,
            "Gives what a command of 'run' prints, from an offset on, and waits for more of it or for its end.",
        ),
        tool::<arguments::Stop, answers::Ran>(
            "stop",
            Replaces,
            "Stops a command of 'run' (SIGTERM, then its channel is closed).",
        ),
        tool::<arguments::Read, answers::Read>(
            "read",
            Reads,
            "Reads a file of a host, or a part of it: text as it is, anything else in base64.",
        ),
        tool::<arguments::Write, answers::Write>(
            "write",
            Replaces,
            "Creates a file on a host, or replaces all of one at once if it is what expected_sha256 says. Owner and permissions stay; \
             hard links, ACLs and extended attributes of a replaced file do not.",
        ),
        tool::<arguments::List, answers::List>("list", Reads, "Lists a directory of a host."),
        tool::<arguments::Stat, answers::Stat>(
            "stat",
            Reads,
            "Tells kind, size, permissions, owner and time of a path on a host.",
        ),
        tool::<arguments::Search, answers::Search>(
            "search",
            Reads,
            "Finds lines that match a regular expression in a file of a host or in the files of a directory and those below it: up \
             to 2000 files, 64 MiB and 20 seconds.",
        ),
        tool::<arguments::Tail, answers::Tail>(
            "tail",
            Reads,
            "Gives the last lines of a file of a host, or what was added behind an offset, and waits for it.",
        ),
        tool::<arguments::Copy, answers::Copy>(
            "copy",
            Replaces,
            "Copies one file from a host to another, through this machine.",
        ),
    ]
}

fn tool<I: JsonSchema, O: JsonSchema>(name: &'static str, effect: Effect, description: &'static str) -> Tool {
    let mut tool = Tool::new(
        Cow::Borrowed(name),
        Cow::Borrowed(description),
        Arc::new(schema::<I>(Contract::Deserialize)),
    );
    tool.output_schema = Some(Arc::new(schema::<O>(Contract::Serialize)));
    let annotations = ToolAnnotations::new()
        .read_only(matches!(effect, Effect::Reads))
        .destructive(!matches!(effect, Effect::Reads))
        .idempotent(!matches!(effect, Effect::Destroys))
        // The rules list the hosts.
        .open_world(matches!(name, "run"));
    tool.annotations = Some(annotations);
    tool
}

/// Returns a type's schema without parts that some clients do not support: everything is inlined, and numbers have no
/// formats. Fields that an answer may omit are not required, since clients refuse answers that violate their schema.
fn schema<T: JsonSchema>(contract: Contract) -> JsonObject {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
        settings.contract = contract;
    });
    let mut value = settings.into_generator().into_root_schema_for::<T>().to_value();
    plain(&mut value);
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

fn plain(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            object.values_mut().for_each(plain);
        }
        Value::Array(values) => values.iter_mut().for_each(plain),
        _ => {}
    }
}

/// Runs a call.
///
/// # Errors
/// The reason for the assistant why it was not run.
pub(crate) async fn call(call: &Call<'_>) -> Result<Done, Problem> {
    match &*call.request.name {
        "hosts" => hosts::list(call, parse_arguments(call)?).await,
        "run" => commands::run(call, parse_arguments(call)?).await,
        "follow" => commands::follow(call, parse_arguments(call)?).await,
        "stop" => commands::stop(call, &parse_arguments(call)?).await,
        "read" => files::read(call, &parse_arguments(call)?).await,
        "write" => files::write(call, parse_arguments(call)?).await,
        "list" => files::list(call, &parse_arguments(call)?).await,
        "stat" => files::stat(call, &parse_arguments(call)?).await,
        "search" => files::search(call, &parse_arguments(call)?).await,
        "tail" => files::tail(call, &parse_arguments(call)?).await,
        "copy" => files::copy(call, &parse_arguments(call)?).await,
        other => {
            let other = trunkline_text::Printable::short_line(other, 100);
            Err(Problem::new(format!("there is no tool \"{other}\"")))
        }
    }
}

fn parse_arguments<T: DeserializeOwned>(call: &Call<'_>) -> Result<T, Problem> {
    let arguments = call.request.arguments.clone().unwrap_or_default();
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Problem::new(format!("{}: {error}; nothing was done", call.request.name)))
}

/// Converts a host's failure into a problem of a call.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::new(format!(
            "{} ({})",
            trunkline_text::Printable::text(failure.to_string()),
            failure.execution
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_such_that_every_client_compiles_them() {
        for tool in all() {
            for schema in [&tool.input_schema, tool.output_schema.as_ref().unwrap()] {
                let text = serde_json::to_string(schema).unwrap();
                assert_eq!(schema["type"], "object", "{}", tool.name);
                for wrong in [
                    "\"null\"",
                    "$ref",
                    "$defs",
                    "\"format\"",
                    ":true,\"default\"",
                    "$schema",
                ] {
                    assert!(!text.contains(wrong), "{}: {wrong} in {text}", tool.name);
                }
            }
            let text = serde_json::to_string(&tool.input_schema).unwrap();
            assert!(
                text.contains("\"additionalProperties\":false"),
                "{}: {text}",
                tool.name
            );
            let answer = serde_json::to_string(tool.output_schema.as_ref().unwrap()).unwrap();
            assert!(
                !answer.contains("\"exit_status\",\"signal\""),
                "{}: {answer}",
                tool.name
            );
            let annotations = tool.annotations.unwrap();
            let hints = [
                annotations.read_only_hint,
                annotations.destructive_hint,
                annotations.idempotent_hint,
                annotations.open_world_hint,
            ];
            assert!(hints.iter().all(Option::is_some), "{}", tool.name);
        }
    }
}
